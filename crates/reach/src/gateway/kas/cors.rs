//! Browsers: pages of GitLab may use a person's cookie here, and no others.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, HeaderMap,
    HeaderValue, ORIGIN, VARY,
};
use http::{Method, Response, StatusCode};
use tarbet_link::Body;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::reach;
use url::Url;

use crate::config::GitlabSection;

/// How long a browser may remember what it was told: a day.
const MAX_AGE: HeaderValue = HeaderValue::from_static("86400");
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// The origin of GitLab's pages.
pub(in crate::gateway) struct Origin(HeaderValue);

impl Origin {
    pub(super) fn of(gitlab: &GitlabSection) -> Option<Self> {
        let url = gitlab.external_url.as_ref().unwrap_or(&gitlab.address);
        let origin = Url::parse(url).ok()?.origin().ascii_serialization();
        HeaderValue::from_str(&origin).ok().map(Self)
    }
}

/// A request of a page, as far as its origin goes.
pub(in crate::gateway) enum Page {
    /// No page asks, or no page is known: nothing to do.
    None,
    /// A page of GitLab.
    Known(HeaderValue),
}

impl Page {
    /// Judges where a request comes from.
    pub(in crate::gateway) fn of(origin: Option<&Origin>, headers: &HeaderMap) -> Result<Self, Problem> {
        let (Some(Origin(known)), Some(given)) = (origin, headers.get(ORIGIN)) else { return Ok(Self::None) };
        if given == known {
            return Ok(Self::Known(known.clone()));
        }
        Err(Problem::new(&reach::CALLER_REFUSED, "A page of another origin asks.")
            .because("the request's Origin is not that of the GitLab this gateway knows")
            .advising("open the page through GitLab, or set gateway.kas.gitlab.external_url"))
    }

    /// The answer to a browser that asks whether it may ask.
    pub(in crate::gateway) fn preflight(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Response<Body>> {
        if method != Method::OPTIONS || matches!(self, Self::None) {
            return None;
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::OK;
        let answer = response.headers_mut();
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        Some(response)
    }

    /// Lets the page read the answer.
    pub(in crate::gateway) fn admit(&self, headers: &mut HeaderMap) {
        if let Self::Known(origin) = self {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            headers.append(VARY, HeaderValue::from_static("Origin"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(origin: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))])
    }

    #[test]
    fn only_pages_of_gitlab_may_ask() {
        let origin = Origin(HeaderValue::from_static("https://gitlab.example"));
        let judge = |given| Page::of(Some(&origin), &headers(given));
        assert!(judge("https://evil.example").is_err() && judge("null").is_err());
        let page = judge("https://gitlab.example").unwrap();
        assert!(page.preflight(&Method::GET, &HeaderMap::new()).is_none());
        let mut answer = page.preflight(&Method::OPTIONS, &HeaderMap::new()).unwrap();
        page.admit(answer.headers_mut());
        assert_eq!(answer.headers()[ACCESS_CONTROL_MAX_AGE], "86400");
        assert_eq!(answer.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], "https://gitlab.example");
        let none = Page::of(Some(&origin), &HeaderMap::new()).unwrap();
        assert!(none.preflight(&Method::OPTIONS, &HeaderMap::new()).is_none());
        assert!(matches!(Page::of(None, &headers("https://x.example")), Ok(Page::None)));
    }
}
