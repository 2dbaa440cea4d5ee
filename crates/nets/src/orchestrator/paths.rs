//! Paths with and without a slash at the end are one, as they are to clients of both generations.

use axum::Router;
use axum::extract::Request;
use http::Method;
use http::uri::{PathAndQuery, Uri};
use tower::ServiceExt as _;

/// The same paths in either spelling; the router knows them without the slash.
pub(super) fn in_either_spelling(router: Router) -> Router {
    Router::new().fallback_service(router.map_request(tidy as fn(Request) -> Request))
}

fn tidy(mut request: Request) -> Request {
    if let Some(uri) = tidied(request.method(), request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

/// The address without the slash, if there was one that means nothing.
fn tidied(method: &Method, uri: &Uri) -> Option<Uri> {
    let path = uri.path().strip_suffix('/').filter(|path| !path.is_empty())?;
    // What follows there is a resource's id, slashes and all.
    let is_id = method == Method::GET && path.split('/').nth(3) == Some("permit-list");
    if is_id {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{path}{query}")).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slash_at_the_end_is_dropped() {
        let of =
            |method: Method, uri: &str| tidied(&method, &uri.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(of(Method::POST, "/tags/g/").as_deref(), Some("/tags/g"));
        assert_eq!(of(Method::GET, "/namespace/?a=b%2F").as_deref(), Some("/namespace?a=b%2F"));
        let list = "/cloud/east/permit-list/rules";
        assert_eq!(of(Method::DELETE, &format!("{list}/")).as_deref(), Some(list));
        for (method, kept) in [
            (Method::GET, "/"),
            (Method::GET, "/tags/g"),
            (Method::GET, "/cloud/east/permit-list/an/id/"),
            (Method::PUT, "/tags/g%2F"),
        ] {
            assert_eq!(of(method, kept), None, "{kept}");
        }
    }
}
