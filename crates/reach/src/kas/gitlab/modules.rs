//! What modules of an agent ask of GitLab: each has a path of its own there, below which it may ask anything.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, Request, Response, header};
use http_body_util::BodyExt;
use prost::Message;
use prost_types::Any;
use tarbet_identity::Secret;
use tarbet_link::{Body, Caller, LinkError};
use tarbet_telemetry::problem::chain;
use tonic::Status;

use super::GitlabClient;
use crate::kas::prefix::Prefix;
use crate::kas::proto::gitlab_access;

const EXTRA: &str = "gitlab_access.rpc.HeaderExtra";
const MODULES: &str = "/api/v4/internal/kubernetes/modules";
/// How long one request may take, body and answer together. Modules send what they found, however much it is.
const LONGEST: Duration = Duration::from_hours(1);

/// What an agent may not say to GitLab in our name.
const OURS: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
    header::CONTENT_LENGTH,
    HeaderName::from_static("gitlab-kas-api-request"),
    HeaderName::from_static("job-token"),
];

/// The module of an agent that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module(String);

impl Module {
    /// Reads what goes with a request.
    pub(crate) fn from_any(any: Option<&Any>, prefix: Prefix) -> Result<Self, Status> {
        let refused = |text: &str| Status::invalid_argument(format!("agent → gateway: HttpRequest: {text}"));
        let any = any.filter(|any| prefix.is_type(&any.type_url, EXTRA));
        let any = any.ok_or_else(|| refused("`extra` does not name a module"))?;
        let extra = gitlab_access::HeaderExtra::decode(&any.value[..]);
        let name = extra.map_err(|_| refused("`extra` cannot be read"))?.module_name;
        // It becomes a part of a path.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(refused("the name of a module has letters, digits, - and _ only"));
        }
        Ok(Self(name))
    }

    /// The path at GitLab; nothing if it would lead out of the module's own.
    fn path(&self, asked: &str) -> Option<String> {
        let leads_out = asked.split('/').any(|part| matches!(part, "." | ".."));
        (asked.starts_with('/') && !leads_out).then(|| format!("{MODULES}/{}{asked}", self.0))
    }
}

/// GitLab, for the modules of one agent.
pub(crate) struct ForModules {
    client: Arc<GitlabClient>,
    token: Secret,
}

impl ForModules {
    /// In the name of the agent with this token.
    pub(crate) fn new(client: Arc<GitlabClient>, token: Secret) -> Self {
        Self { client, token }
    }

    async fn ask(&self, request: Request<Body>) -> Result<Response<Body>, LinkError> {
        let (mut parts, body) = request.into_parts();
        let module = parts.extensions.get::<Module>();
        let path = module.and_then(|module| module.path(parts.uri.path()));
        let path = path.ok_or_else(|| LinkError::Request("the path leads out of the module's own".into()))?;
        for name in &OURS {
            parts.headers.remove(name);
        }
        let asking = self.client.ask_as(parts.method, &path, parts.uri.query(), &self.token);
        let mut asking = asking.timeout(LONGEST).headers(sensible(parts.headers));
        if !http_body::Body::is_end_stream(&body) {
            let length = http_body::Body::size_hint(&body).exact();
            asking = asking.body(reqwest::Body::wrap_stream(body.into_data_stream()));
            if let Some(length) = length {
                asking = asking.header(header::CONTENT_LENGTH, length);
            }
        }
        let failed = |error: reqwest::Error| {
            LinkError::Request(format!("GitLab does not answer: {}", chain(&error.without_url())).into())
        };
        let (head, body) = Response::<reqwest::Body>::from(asking.send().await.map_err(failed)?).into_parts();
        Ok(Response::from_parts(head, Body::new(body)))
    }
}

/// Without what belongs to one connection only.
fn sensible(mut headers: HeaderMap) -> HeaderMap {
    crate::kas::kubernetes::strip_hop_by_hop(&mut headers);
    headers.remove(header::CONNECTION);
    headers.remove(header::UPGRADE);
    headers
}

impl Caller for ForModules {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        self.ask(request).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Result<Module, Status> {
        let value = gitlab_access::HeaderExtra { module_name: name.into() }.encode_to_vec();
        let any = Any { type_url: Prefix::Gitlab.type_url(EXTRA), value };
        Module::from_any(Some(&any), Prefix::Gitlab)
    }

    #[test]
    fn a_module_has_a_path_of_its_own_and_stays_below_it() {
        let module = named("starboard_vulnerability").unwrap();
        let path = |asked| module.path(asked);
        assert_eq!(
            path("/scan/1").unwrap(),
            "/api/v4/internal/kubernetes/modules/starboard_vulnerability/scan/1"
        );
        for asked in ["", "scan", "/../agent_info", "/a/..", "/./a", "/a/../../../x"] {
            assert_eq!(path(asked), None, "{asked}");
        }
        for name in ["", "..", "a/b", "a%2fb", "a b", "ä"] {
            assert!(named(name).is_err(), "{name}");
        }
        assert!(Module::from_any(None, Prefix::Gitlab).is_err());
        let other =
            Any { type_url: Prefix::Gitlab.type_url("kubernetes_api.rpc.HeaderExtra"), value: Vec::new() };
        assert!(Module::from_any(Some(&other), Prefix::Gitlab).is_err());
    }
}
