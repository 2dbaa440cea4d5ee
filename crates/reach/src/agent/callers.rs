//! Callers who prove who they are: short tokens of issuers whose keys the site holds.
//!
//! What a gateway says about callers counts for nothing here. A token is bound to this site, to a
//! few minutes and, for requests that change something, to the very request, once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Method, Request};
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use tarbet_identity::caller::{Caller, CallerError, CallerVerifier, RequestDigest, Use};
use tarbet_identity::{PublicKey, Subject};
use tarbet_link::Body;
use tokio::time::Instant;

/// The header in which a caller's token travels with a request.
pub const TOKEN: HeaderName = HeaderName::from_static("tarbet-caller-token");

/// The largest body that is read into memory to be compared with a token.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// Tokens of writes that are remembered until they end. At the usual few minutes this is hundreds
/// of writes a second, by callers who are all known.
const MAX_SEEN: usize = 200_000;
/// Tokens live a little longer here than they say, because clocks differ.
const SKEW: Duration = Duration::from_mins(1);
/// Tokens tell when they were made to the second.
const SECOND: Duration = Duration::from_secs(1);

/// Why a caller was not believed.
#[derive(Debug, thiserror::Error)]
pub enum NotProven {
    /// The token is no good, or not for this.
    #[error(transparent)]
    Token(#[from] CallerError),
    /// It was used before.
    #[error("the caller's token was used before, and this request changes something")]
    Used,
    /// It may have been used before this process remembered any.
    #[error(
        "the caller's token was made before this agent started, and this request changes something; make another \
         token and send the request again"
    )]
    Early,
    /// Too many are remembered.
    #[error("too many tokens are remembered; try again in a few minutes")]
    Busy,
    /// The body does not fit into memory.
    #[error("the body is larger than {} MiB, too large to be compared with the token; use an end-to-end connection", MAX_BODY >> 20)]
    TooLarge,
    /// The body broke off.
    #[error("the body ended early")]
    Body,
}

/// Checks callers' tokens for one site.
pub struct Callers {
    verifier: CallerVerifier,
    seen: Arc<Mutex<HashMap<String, Timestamp>>>,
    /// Since when it remembers. Told by a clock that does not jump: that of the machine may be set right
    /// after the start.
    since: Instant,
}

impl Callers {
    /// Believes these issuers, about the site of this name.
    pub fn new(
        site: Subject,
        issuers: impl IntoIterator<Item = PublicKey>,
    ) -> Result<Self, tarbet_identity::jwt::BadPolicy> {
        let verifier = CallerVerifier::new(site, issuers)?;
        Ok(Self { verifier, seen: Arc::default(), since: Instant::now() })
    }

    /// The same, with the tokens that were used before at `earlier`, and will be.
    #[must_use]
    pub fn remembering(self, earlier: &Self) -> Self {
        Self { seen: Arc::clone(&earlier.seen), since: earlier.since, ..self }
    }

    /// Who opened a connection that the gateway cannot read, and until when that holds.
    pub fn of_connection(&self, token: &str, now: Timestamp) -> Result<Caller, NotProven> {
        Ok(self.verifier.verify(token, Use::Stream, now)?)
    }

    /// Who sent a request. Its body comes back, read if it had to be.
    pub async fn of_request(
        &self,
        token: &str,
        head: &Request<()>,
        body: Body,
        now: Timestamp,
    ) -> Result<(Caller, Body), NotProven> {
        let empty = http_body::Body::is_end_stream(&body);
        let bytes = if empty {
            Bytes::new()
        } else {
            let read = Limited::new(body, MAX_BODY).collect().await;
            let cut = |error: Box<dyn std::error::Error + Send + Sync>| {
                if error.is::<http_body_util::LengthLimitError>() {
                    NotProven::TooLarge
                } else {
                    NotProven::Body
                }
            };
            read.map_err(cut)?.to_bytes()
        };
        let path = head.uri().path_and_query().map_or("/", |path| path.as_str());
        let digest = RequestDigest::new(head.method().as_str(), path, &bytes);
        let writes = !is_read(head);
        let usage = if writes { Use::Write(&digest) } else { Use::Read(&digest) };
        let caller = self.verifier.verify(token, usage, now)?;
        if writes {
            self.once(&caller, now)?;
        }
        Ok((caller, if empty { Body::empty() } else { Body::from(bytes) }))
    }

    /// The first use of a token that is good for one request.
    fn once(&self, caller: &Caller, now: Timestamp) -> Result<(), NotProven> {
        let since = now.checked_sub(self.since.elapsed()).unwrap_or(Timestamp::MIN);
        if caller.issued.checked_add(SECOND).is_ok_and(|issued| issued <= since) {
            return Err(NotProven::Early);
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MAX_SEEN {
            seen.retain(|_, end| *end > now);
            if seen.len() >= MAX_SEEN {
                return Err(NotProven::Busy);
            }
        }
        let end = caller.expires.checked_add(SKEW).unwrap_or(Timestamp::MAX);
        match seen.insert(caller.id.clone(), end) {
            None => Ok(()),
            Some(_) => Err(NotProven::Used),
        }
    }
}

/// Whether a request changes nothing. One that changes its protocol may do anything.
fn is_read(head: &Request<()>) -> bool {
    let safe = matches!(*head.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    safe && !head.headers().contains_key(http::header::UPGRADE)
}
