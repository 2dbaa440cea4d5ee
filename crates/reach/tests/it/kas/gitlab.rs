//! GitLab's answers about tokens and people.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;

use base64::Engine as _;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prost::Message;
use tarbet_identity::SecretBytes;
use tarbet_identity::jwt::kas::KasSigner;
use tarbet_reach::kas::frame::put;
use tarbet_reach::kas::gitlab::{
    Credential, GitlabClient, GitlabError, GitlabSettings, access_of_job, access_of_user,
};
use tarbet_reach::kas::proto::{gitlab_access, grpctool, prototool};
use tarbet_reach::kas::{Prefix, Rpc};
use tonic::{Code, Status};

use super::raw::Peer;
use super::*;

/// Path, headers and body of a question.
type Question = (String, HashMap<String, String>, String);

/// A GitLab that knows a few tokens and remembers what it was asked.
struct Gitlab {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Question>>>,
}

impl Gitlab {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Question>>> = Arc::default();
        let shared = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let asked = Arc::clone(&shared);
                let service = service_fn(move |request: Request<Incoming>| {
                    let asked = Arc::clone(&asked);
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        let body = String::from_utf8(body.to_vec()).unwrap();
                        let headers: HashMap<_, _> = head
                            .headers
                            .iter()
                            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
                            .collect();
                        let reply = answer(head.uri.path(), &headers, &body);
                        asked.lock().unwrap().push((head.uri.path().to_owned(), headers, body));
                        Ok::<_, Infallible>(reply)
                    }
                });
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, asked }
    }

    fn client(&self) -> GitlabClient {
        let address = format!("http://{}/root/", self.address).parse().unwrap();
        let signer = KasSigner::gitlab(SecretBytes::from(vec![7; 32]));
        GitlabClient::new(GitlabSettings::new(address, signer)).unwrap()
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn answer(path: &str, headers: &HashMap<String, String>, body: &str) -> Response<Full<Bytes>> {
    let json = |status: u16, text: &str| {
        Response::builder()
            .status(status)
            .header("content-type", "application/json; charset=utf-8")
            .body(Full::from(text.to_owned()))
            .unwrap()
    };
    let known = |name: &str| headers.get(name).map(String::as_str);
    if path.starts_with("/root/api/v4/internal/kubernetes/modules/") {
        return json(202, &format!("{path} with {} bytes", body.len()));
    }
    match path {
        "/root/api/v4/internal/kubernetes/agent_info" => match known("authorization") {
            Some("Bearer good") => {
                json(200, r#"{"project_id": 70, "agent_id": 7, "agent_name": "lab", "gitaly_info": {}}"#)
            }
            Some("Bearer forbidden") => json(403, "{}"),
            Some("Bearer absent") => json(404, "{}"),
            Some("Bearer broken") => json(502, "oops"),
            Some("Bearer empty") => json(200, r#"{"project_id": 70, "agent_id": 0, "agent_name": ""}"#),
            Some("Bearer html") => Response::new(Full::from("<html>")),
            Some("Bearer moved") => Response::builder()
                .status(302)
                .header("location", "http://127.0.0.1:1/")
                .body(Full::default())
                .unwrap(),
            Some("Bearer endless") => json(200, &" ".repeat(2 << 20)),
            _ => json(401, "{}"),
        },
        "/root/api/v4/job/allowed_agents" if known("job-token") == Some("job") => json(
            200,
            r#"{"allowed_agents": [{"id": 7, "config_project": {"id": 70}, "configuration": {"access_as": {"ci_job": {}}}}],
                "job": {"id": 1}, "pipeline": {"id": 2}, "project": {"id": 3, "groups": []}, "user": {"id": 4, "username": "ada"}}"#,
        ),
        "/root/api/v4/internal/kubernetes/authorize_proxy_user"
            if body.contains("glpat") || body.contains("session") =>
        {
            json(
                200,
                r#"{"agent": {"id": 7, "config_project": {"id": 70}}, "user": {"id": 4, "username": "ada"},
                "access_as": {"user": {"projects": [{"id": 3, "roles": ["developer"]}], "groups": []}}}"#,
            )
        }
        _ => json(401, "{}"),
    }
}

#[tokio::test]
async fn an_agent_token_is_asked_about_once_with_our_own_token() {
    let gitlab = Gitlab::start().await;
    let client = gitlab.client();
    let token = Secret::from("good");
    let crowd = (0..20).map(|_| client.agent_info(&token));
    for info in futures::future::join_all(crowd).await {
        let info = info.unwrap();
        assert_eq!((info.agent_id, &info.agent_name[..], info.project_id), (7, "lab", 70));
    }
    assert_eq!(gitlab.asked(), 1);
    let headers = gitlab.asked.lock().unwrap()[0].1.clone();
    let claims = headers["gitlab-kas-api-request"].split('.').nth(1).unwrap().to_owned();
    let claims = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(claims["iss"], "gitlab-kas");
    assert!(claims["aud"] == "gitlab" || claims["aud"][0] == "gitlab", "{claims}");
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 30);
}

#[tokio::test]
async fn refusals_are_told_apart() {
    let gitlab = Gitlab::start().await;
    let client = gitlab.client();
    for (token, code) in [
        ("unknown", Code::Unauthenticated),
        ("forbidden", Code::PermissionDenied),
        ("absent", Code::NotFound),
        ("broken", Code::Unavailable),
        ("empty", Code::Unavailable),
        ("html", Code::Unavailable),
        ("moved", Code::Unavailable),
        ("endless", Code::Unavailable),
        ("not a\nheader", Code::Unauthenticated),
    ] {
        let error = client.agent_info(&token.into()).await.unwrap_err();
        assert_eq!(Status::from(error).code(), code, "{token}");
    }
    let before = gitlab.asked();
    assert!(client.agent_info(&"forbidden".into()).await.is_err());
    assert_eq!(gitlab.asked(), before, "a refusal is remembered");

    let nowhere = GitlabSettings::new(
        "http://127.0.0.1:1".parse().unwrap(),
        KasSigner::gitlab(SecretBytes::from(vec![7; 32])),
    );
    let error = GitlabClient::new(nowhere).unwrap().agent_info(&"good".into()).await.unwrap_err();
    assert!(matches!(error, GitlabError::Unavailable { .. }), "{error}");
    assert!(!error.to_string().contains("good"), "{error}");
}

#[tokio::test]
async fn callers_become_the_people_they_are() {
    let gitlab = Gitlab::start().await;
    let client = gitlab.client();
    let allowed = client.allowed_agents(&"job".into()).await.unwrap();
    let access = access_of_job(&allowed, 7).unwrap();
    assert_eq!(access.impersonation().unwrap().username, "gitlab:ci_job:1");
    assert!(!gitlab.asked.lock().unwrap()[0].1.contains_key("gitlab-kas-api-request"));
    assert!(client.allowed_agents(&"other".into()).await.is_err());

    let read = |pairs: &[(&'static str, &str)]| {
        Credential::read(&headers(pairs), &"/".parse().unwrap()).unwrap().unwrap()
    };
    let pat = read(&[("authorization", "Bearer pat:7:glpat-x")]);
    let cookie =
        read(&[("cookie", "_gitlab_kas=session"), ("gitlab-agent-id", "7"), ("x-csrf-token", "proof")]);
    for (credential, body) in [
        (&pat, r#"{"access_key":"glpat-x","access_type":"personal_access_token","agent_id":7}"#),
        (
            &cookie,
            r#"{"access_key":"session","access_type":"session_cookie","agent_id":7,"csrf_token":"proof"}"#,
        ),
    ] {
        let user = client.authorize_proxy_user(credential).await.unwrap().unwrap();
        let access = access_of_user(&user, credential.access_type().unwrap()).unwrap();
        assert_eq!(access.impersonation().unwrap().username, "gitlab:user:ada");
        let asked = gitlab.asked.lock().unwrap().last().unwrap().clone();
        let (sent, expected): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(&asked.2).unwrap(), serde_json::from_str(body).unwrap());
        assert_eq!(sent, expected);
        assert!(asked.1.contains_key("gitlab-kas-api-request"));
    }
    // An answer about another agent is not an answer.
    let other = read(&[("authorization", "Bearer pat:8:glpat-x")]);
    assert!(matches!(client.authorize_proxy_user(&other).await, Some(Err(GitlabError::Malformed { .. }))));
    let job = read(&[("authorization", "Bearer ci:7:job")]);
    assert!(client.authorize_proxy_user(&job).await.is_none());
}

/// A request of a module of an agent, by its frames.
async fn ask_for(
    gateway: &Gateway,
    token: &str,
    module: &str,
    path: &str,
    body: &[Bytes],
) -> Result<String, Status> {
    use grpctool::http_request::{Data, Header, Message as Kind, Trailer};
    let values = |text: &str| prototool::Values { value: vec![text.to_owned()] };
    let headers = [("Content-Type", "text/plain"), ("Cookie", "a=b"), ("Authorization", "Bearer another")];
    let request = prototool::HttpRequest {
        method: "PUT".into(),
        header: headers.map(|(name, value)| (name.to_owned(), values(value))).into(),
        url_path: path.into(),
        query: [("a".to_owned(), values("1"))].into(),
    };
    let value = gitlab_access::HeaderExtra { module_name: module.into() }.encode_to_vec();
    let extra =
        prost_types::Any { type_url: Prefix::Gitlab.type_url("gitlab_access.rpc.HeaderExtra"), value };
    let header = Header { request: Some(request), extra: Some(extra), content_length: None };
    let mut frames = vec![Kind::Header(header)];
    frames.extend(body.iter().map(|data| Kind::Data(Data { data: data.clone() })));
    frames.push(Kind::Trailer(Trailer {}));
    let mut peer = Peer::call(gateway, Rpc::AskGitlab, token, false).await;
    for frame in frames {
        let mut buffer = bytes::BytesMut::new();
        put(&mut buffer, &grpctool::HttpRequest { message: Some(frame) });
        peer.bytes(&buffer);
    }
    peer.hang_up();
    let (mut said, mut ended) = (String::new(), false);
    loop {
        let message = match peer.next().await {
            Ok(message) => grpctool::HttpResponse::decode(message).unwrap().message.unwrap(),
            Err(status) if status.code() == Code::Ok => {
                assert!(ended, "no trailer");
                return Ok(said);
            }
            Err(status) => return Err(status),
        };
        match message {
            grpctool::http_response::Message::Header(header) => said += &header.response.unwrap().status,
            grpctool::http_response::Message::Data(data) => said += &String::from_utf8_lossy(&data.data),
            grpctool::http_response::Message::Trailer(_) => ended = true,
            grpctool::http_response::Message::UpgradeData(_) => panic!("nobody asked for it"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_of_an_agent_ask_gitlab_below_their_own_path() {
    let (gitlab, desk) = (Gitlab::start().await, Desk::with(&[("good", 7)]));
    let gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Arc::clone(&desk)).await;
    let status = ask_for(&gateway, "good", "scanning", "/found/7", &[]).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "there is no GitLab: {status}");
    *desk.gitlab.lock().unwrap() = Some(Arc::new(gitlab.client()));

    let pieces = vec![Bytes::from(vec![b'x'; 32 << 10]); 9];
    let said = ask_for(&gateway, "good", "scanning", "/found/7", &pieces).await.unwrap();
    let path = "/root/api/v4/internal/kubernetes/modules/scanning/found/7";
    assert_eq!(said, format!("202 Accepted{path} with {} bytes", 9 * (32 << 10)));
    let (asked, headers, _) = gitlab.asked.lock().unwrap()[0].clone();
    assert_eq!(asked, path);
    // In the name of the gateway and of the agent, and in no other.
    assert_eq!((&*headers["authorization"], &*headers["content-type"]), ("Bearer good", "text/plain"));
    assert!(headers["gitlab-kas-api-request"].split('.').count() == 3 && !headers.contains_key("cookie"));

    // Out of its own path, under no name, or by nobody: GitLab hears nothing of it.
    for (token, module, path, code) in [
        ("good", "scanning", "/../../agent_info", Code::Unavailable),
        ("good", "scanning/..", "/agent_info", Code::InvalidArgument),
        ("good", "", "/found", Code::InvalidArgument),
        ("nobody", "scanning", "/found", Code::Unauthenticated),
    ] {
        let status = ask_for(&gateway, token, module, path, &[]).await.unwrap_err();
        assert_eq!(status.code(), code, "{module} {path}: {status}");
    }
    assert_eq!(gitlab.asked(), 1);
}
