//! Who may ask: this machine's own names, and for changes the bearer of a token.

use std::net::IpAddr;

use axum::Json;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, reach};

/// Whether a `Host` header names this machine itself: `localhost` or a loopback address.
///
/// A page elsewhere can make its own name resolve to 127.0.0.1; it cannot make the browser say
/// another name than that.
pub fn is_own_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

pub(crate) async fn check(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(http::uri::Authority::as_str));
    if !host.is_some_and(is_own_host) {
        let problem = Problem::new(
            &ground::BAD_REQUEST,
            "The console answers only under this machine's own names.",
        )
        .at("browser → console")
        .because(format!("it was asked for as `{}`", host.unwrap_or_default()))
        .advising("open http://127.0.0.1:7480; from another machine first `ssh -L 7480:127.0.0.1:7480 HOST`");
        return (StatusCode::MISDIRECTED_REQUEST, Json(problem)).into_response();
    }
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if !reads && !bearer.is_some_and(|value| value.starts_with("Bearer ")) {
        let problem = Problem::new(&reach::CREDENTIALS_MISSING, "Changing something needs a token.")
            .at("browser → console")
            .because("the request has no bearer token")
            .advising(
                "unlock the console with a token: that of `tarbet up` is admin.token in its state folder",
            );
        return (problem.status(), Json(problem)).into_response();
    }
    next.run(request).await
}

pub(crate) async fn not_found(request: Request) -> Response {
    let problem = Problem::new(&ground::BAD_REQUEST, "The console has nothing at this address.")
        .at("console")
        .because(format!("`{}` is no page and no panel", request.uri().path()))
        .advising("open the console at its root");
    (StatusCode::NOT_FOUND, Json(problem)).into_response()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn own_names_are_taken_and_others_are_not() {
        for own in [
            "localhost",
            "LOCALHOST:7480",
            "127.0.0.1",
            "127.0.0.1:7480",
            "127.9.9.9:1",
            "[::1]:7480",
            "[::1]",
        ] {
            assert!(is_own_host(own), "{own}");
        }
        for other in [
            "",
            "example.org",
            "127.0.0.1.example.org",
            "localhost.example.org:7480",
            "10.0.0.1",
            "[::2]:1",
            ":",
            "[::1",
        ] {
            assert!(!is_own_host(other), "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_name_with_letters_is_own_only_if_it_is_localhost(name in "[a-z0-9.-]{0,40}[g-z][a-z0-9.-]{0,10}", port in 0_u16..) {
            let said = format!("{name}:{port}");
            prop_assert_eq!(is_own_host(&said), name == "localhost");
        }

        #[test]
        fn nothing_said_is_too_odd(host in "\\PC{0,60}") {
            let _ = is_own_host(&host);
        }
    }
}
