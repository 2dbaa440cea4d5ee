//! How a client says who it is.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use tokio::sync::Mutex;

use super::pace::Clock;
use crate::error::Error;

/// A token is fetched anew this long before it ends.
const MARGIN: Duration = Duration::from_mins(2);

/// Puts credentials on a request that is otherwise ready.
#[async_trait]
pub trait Authorize: Send + Sync + 'static {
    /// Adds what the cloud wants to see.
    async fn authorize(&self, request: &mut reqwest::Request) -> Result<(), Error>;
    /// The cloud did not take what was added: anything kept is dropped.
    async fn refused(&self) {}
}

/// Fetches tokens from wherever they come.
#[async_trait]
pub trait TokenSource: Send + Sync + 'static {
    /// A new token, and how long it is good.
    async fn fetch(&self) -> Result<(String, Duration), Error>;
}

/// `Authorization: Bearer`, with a token that is kept while it is good.
pub struct Bearer<S> {
    source: S,
    clock: Arc<dyn Clock>,
    kept: Mutex<Option<(HeaderValue, Duration)>>,
}

impl<S: TokenSource> Bearer<S> {
    /// Nothing is fetched yet.
    pub fn new(source: S, clock: Arc<dyn Clock>) -> Self {
        Self { source, clock, kept: Mutex::default() }
    }
}

#[async_trait]
impl<S: TokenSource> Authorize for Bearer<S> {
    async fn authorize(&self, request: &mut reqwest::Request) -> Result<(), Error> {
        // Held while fetching: many calls at once need one token.
        let mut kept = self.kept.lock().await;
        let good =
            kept.as_ref().filter(|(_, until)| self.clock.now() < *until).map(|(value, _)| value.clone());
        let value = if let Some(value) = good {
            value
        } else {
            let (token, lasts) = self.source.fetch().await?;
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| unusable("the token", "it is not one line of visible characters"))?;
            value.set_sensitive(true);
            *kept = Some((value.clone(), self.clock.now() + lasts.saturating_sub(MARGIN)));
            value
        };
        request.headers_mut().insert(http::header::AUTHORIZATION, value);
        Ok(())
    }

    async fn refused(&self) {
        *self.kept.lock().await = None;
    }
}

/// A token that somebody else keeps fresh in a file.
pub struct TokenFile(pub std::path::PathBuf);

#[async_trait]
impl TokenSource for TokenFile {
    async fn fetch(&self) -> Result<(String, Duration), Error> {
        let read = std::fs::read_to_string(&self.0);
        let text = read.map_err(|error| unusable(&self.0.display().to_string(), &error.to_string()))?;
        // No longer than the margin, so it is read again each time.
        Ok((text.trim().to_owned(), MARGIN))
    }
}

/// Credentials that cannot be used; `said` must not hold any secret.
pub fn unusable(what: &str, said: &str) -> Error {
    Error::Cloud {
        cloud: "the cloud's identity service".into(),
        what: format!("a request for a token ({what})"),
        said: said.into(),
    }
}
