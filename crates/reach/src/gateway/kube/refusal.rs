//! A problem as Kubernetes clients expect it, so that kubectl prints it.

use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use prost::Message;
use serde_json::json;
use tarbet_link::Body;
use tarbet_telemetry::Problem;

/// How a kas begins what it says itself.
const OF_GITLAB: &str = "GitLab Agent Server: ";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// What objects in protobuf begin with.
const MAGIC: &[u8] = b"k8s\0";

/// In which form a client takes answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Yaml,
    Protobuf,
    /// For a client that is discovering the API: client-go drops the message of a Status object there and
    /// keeps that of a text.
    Text,
}

/// How a refusal of this listener is put.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    form: Form,
    /// Whether clients of GitLab read it.
    of_gitlab: bool,
}

impl Manner {
    /// As a request with these headers wants it.
    pub(crate) fn of(headers: &HeaderMap, of_gitlab: bool) -> Self {
        Self { form: Form::wanted(headers), of_gitlab }
    }

    /// The refusal.
    pub(crate) fn put(self, problem: &Problem) -> Response<Body> {
        let status = kube_status(problem);
        let begin = if self.of_gitlab { OF_GITLAB } else { "" };
        let Problem { message, code, hop, remedy, .. } = problem;
        let message = format!("{begin}{message} [{code}; {hop}; try: {remedy}]");
        let text = || respond(status, "text/plain; charset=utf-8", message.clone().into_bytes());
        let object = || {
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": reason(status), "code": status.as_u16(),
                "details": {"causes": [{"reason": problem.code, "message": problem.cause, "field": problem.hop}]},
            })
        };
        match self.form {
            Form::Text => text(),
            Form::Json => respond(status, "application/json", object().to_string().into_bytes()),
            Form::Yaml => match serde_saphyr::to_string(&object()) {
                Ok(yaml) => respond(status, "application/yaml", yaml.into_bytes()),
                Err(_) => text(),
            },
            Form::Protobuf => respond(status, PROTOBUF, protobuf(status, &message, problem)),
        }
    }
}

impl Form {
    /// The one of our forms that the client likes best.
    fn wanted(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut clauses: Vec<(f32, &str)> =
            values.flat_map(|value| value.split(',')).map(|clause| (weight(clause), clause.trim())).collect();
        if clauses.iter().any(|(_, clause)| clause.contains("as=APIGroupDiscoveryList")) {
            return Self::Text;
        }
        // Those that are liked alike stay in their order.
        clauses.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let form = |clause: &str| match clause.split(';').next().map(str::trim) {
            Some("application/json" | "application/*" | "*/*") => Some(Self::Json),
            Some("application/yaml") => Some(Self::Yaml),
            Some(PROTOBUF) => Some(Self::Protobuf),
            _ => None,
        };
        clauses.iter().find_map(|(_, clause)| form(clause)).unwrap_or(Self::Json)
    }
}

fn weight(clause: &str) -> f32 {
    let given = clause.split(';').find_map(|part| part.trim().strip_prefix("q="));
    given.and_then(|text| text.parse().ok()).unwrap_or(1.0)
}

/// client-go replaces what 503 and 504 say by sentences of its own, and kas answers 502 as well; a 404
/// makes it believe that the API server is an old one.
fn kube_status(problem: &Problem) -> StatusCode {
    match problem.status() {
        StatusCode::NOT_FOUND => StatusCode::FORBIDDEN,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => StatusCode::BAD_GATEWAY,
        status => status,
    }
}

fn reason(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "Unauthorized",
        403 => "Forbidden",
        409 => "Conflict",
        429 => "TooManyRequests",
        400 => "BadRequest",
        _ => "InternalError",
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

// The few messages of Kubernetes' own protobuf that a Status is made of.

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    kind: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    /// `status` there.
    #[prost(string, tag = "2")]
    outcome: String,
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<Details>,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct ListMeta {}

#[derive(Clone, PartialEq, Message)]
struct Details {
    #[prost(message, repeated, tag = "4")]
    causes: Vec<Cause>,
}

#[derive(Clone, PartialEq, Message)]
struct Cause {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(string, tag = "3")]
    field: String,
}

fn protobuf(status: StatusCode, message: &str, problem: &Problem) -> Vec<u8> {
    let cause =
        Cause { reason: problem.code.clone(), message: problem.cause.clone(), field: problem.hop.clone() };
    let object = Status {
        metadata: Some(ListMeta {}),
        outcome: "Failure".into(),
        message: message.to_owned(),
        reason: reason(status).into(),
        details: Some(Details { causes: vec![cause] }),
        code: i32::from(status.as_u16()),
    };
    let kind = Some(TypeMeta { api_version: "v1".into(), kind: "Status".into() });
    [MAGIC, &Unknown { kind, raw: object.encode_to_vec() }.encode_to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tarbet_telemetry::codes::reach;

    use super::*;

    fn accepting(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (ACCEPT, value.parse().unwrap())).collect()
    }

    async fn refusal(accept: &str, of_gitlab: bool) -> (StatusCode, String, Vec<u8>) {
        let problem = Problem::new(&reach::SITE_NOT_CONNECTED, "Nobody came.");
        let response = Manner::of(&accepting(&[accept]), of_gitlab).put(&problem);
        let kind = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let status = response.status();
        (status, kind, response.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    #[test]
    fn the_client_chooses_the_form() {
        for (accept, form) in [
            (&[][..], Form::Json),
            (&["*/*"], Form::Json),
            (&["application/json;as=Table;v=v1;g=meta.k8s.io,application/json"], Form::Json),
            (&["application/yaml"], Form::Yaml),
            (&["application/vnd.kubernetes.protobuf,application/json"], Form::Protobuf),
            (&["application/json", "application/yaml"], Form::Json),
            (&["application/json;q=0.5, application/yaml;q=0.9"], Form::Yaml),
            (&["text/html, application/yaml;q=0.9, */*;q=0.8"], Form::Yaml),
            (&["text/html"], Form::Json),
            (&["application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"], Form::Text),
        ] {
            assert_eq!(Form::wanted(&accepting(accept)), form, "{accept:?}");
        }
    }

    #[tokio::test]
    async fn every_form_says_the_same() {
        let (status, kind, body) = refusal("application/json", true).await;
        assert_eq!((status, kind.as_str()), (StatusCode::BAD_GATEWAY, "application/json"));
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let message = json["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with("GitLab Agent Server: Nobody came. [TB-1102; "), "{message}");
        assert_eq!((json["kind"].as_str(), json["code"].as_i64()), (Some("Status"), Some(502)));

        let (_, kind, body) = refusal("application/yaml", true).await;
        let yaml: serde_json::Value = serde_saphyr::from_str(std::str::from_utf8(&body).unwrap()).unwrap();
        assert_eq!((kind.as_str(), yaml), ("application/yaml", json.clone()));

        let (_, kind, body) = refusal(PROTOBUF, true).await;
        assert_eq!((kind.as_str(), &body[..4]), (PROTOBUF, MAGIC));
        // Field 1 holds version and kind, each by length.
        assert!(body[4..].starts_with(b"\x0a\x0c\x0a\x02v1\x12\x06Status\x12"), "{body:?}");
        let status = Status::decode(&*Unknown::decode(&body[4..]).unwrap().raw).unwrap();
        assert_eq!((status.message.as_str(), status.code), (message.as_str(), 502));
        assert_eq!(status.details.unwrap().causes[0].reason, "TB-1102");

        // Where no GitLab is, none is named.
        let (_, _, body) = refusal("*/*", false).await;
        assert!(String::from_utf8(body).unwrap().contains(r#""message":"Nobody came. ["#));
    }
}
