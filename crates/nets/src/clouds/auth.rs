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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex as Held;

    use axum::Router;
    use axum::response::IntoResponse as _;
    use http::{Method, StatusCode};
    use url::Url;

    use super::*;
    use crate::clouds::rest::{Call, client, plain};

    /// Time that passes only by waiting.
    #[derive(Default)]
    struct Waited(Held<Duration>);

    #[async_trait]
    impl Clock for Waited {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }
        fn unix(&self) -> u64 {
            self.now().as_secs()
        }
        async fn wait(&self, pause: Duration) {
            *self.0.lock().unwrap() += pause;
        }
    }

    /// An identity service that fails like this, one after the other, and then gives tokens.
    struct Service {
        url: Url,
        failures: Arc<Held<VecDeque<u16>>>,
        clock: Arc<Waited>,
        http: reqwest::Client,
    }

    #[async_trait]
    impl TokenSource for Service {
        async fn fetch(&self) -> Result<(String, Duration), Error> {
            let call = Call::new(Method::POST, self.url.clone()).form([("apikey", "open-up")]);
            let answer = plain(&self.http, &*self.clock, &call).await?;
            Ok((answer.text, Duration::from_hours(1)))
        }
    }

    async fn service(failures: &[u16]) -> Service {
        let failures = Arc::new(Held::new(failures.iter().copied().collect::<VecDeque<_>>()));
        let left = failures.clone();
        let app = Router::new().fallback(move |body: String| async move {
            let failure = left.lock().unwrap().pop_front();
            let Some(failure) = failure else { return "token".into_response() };
            let said = (StatusCode::from_u16(failure).unwrap(), format!("not with {body}"));
            if failure == 429 { ([("retry-after", "7")], said).into_response() } else { said.into_response() }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(axum::serve(listener, app).into_future());
        Service { url, failures, clock: Arc::default(), http: client().unwrap() }
    }

    /// What is sent, the failures that were not met, and how long it took.
    async fn authorized(service: Service) -> (Result<HeaderValue, String>, usize, Duration) {
        let (failures, clock) = (service.failures.clone(), service.clock.clone());
        let mut request = reqwest::Request::new(Method::GET, service.url.clone());
        let done = Bearer::new(service, clock.clone()).authorize(&mut request).await;
        let sent = done.map(|()| request.headers()[http::header::AUTHORIZATION].clone());
        let left = failures.lock().unwrap().len();
        (sent.map_err(|error| format!("{error:?}")), left, clock.now())
    }

    #[tokio::test]
    async fn a_busy_identity_service_is_waited_for() {
        let (sent, left, took) = authorized(service(&[429, 503, 500, 429]).await).await;
        assert_eq!((sent.unwrap(), left), (HeaderValue::from_static("Bearer token"), 0));
        assert!(took > Duration::from_secs(14), "it asked for 7 seconds twice, {took:?} passed");
    }

    #[tokio::test]
    async fn an_identity_service_that_refuses_or_stays_away_is_told_without_the_secret() {
        let (sent, left, took) = authorized(service(&[401, 401]).await).await;
        assert_eq!((left, took), (1, Duration::ZERO), "refused is refused");
        let refused = sent.unwrap_err();
        let (sent, left, took) = authorized(service(&[503; 1000]).await).await;
        assert!(left > 900 && took <= Duration::from_mins(2), "{left} of 1000 left after {took:?}");
        for (said, status) in [(refused, "401"), (sent.unwrap_err(), "503")] {
            assert!(said.contains(status) && said.contains("token") && !said.contains("open-up"), "{said}");
        }
    }
}
