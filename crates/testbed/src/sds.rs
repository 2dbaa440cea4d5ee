//! What an Istio agent does beside a proxy: hands out the workload's certificate and the root,
//! behind a socket file.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Waking, Poll};

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use prost::Message;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::Issued;

const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

// The few fields that matter of Envoy's discovery and of its secrets.

#[derive(Clone, PartialEq, Message)]
struct Asked {
    #[prost(string, repeated, tag = "3")]
    names: Vec<String>,
    #[prost(string, tag = "5")]
    nonce: String,
}

#[derive(Clone, PartialEq, Message)]
struct Told {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<prost_types::Any>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

#[derive(Clone, PartialEq, Message)]
struct Secret {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    certificate: Option<Pair>,
    #[prost(message, optional, tag = "4")]
    validation: Option<Validation>,
}

#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(message, optional, tag = "1")]
    chain: Option<Inline>,
    #[prost(message, optional, tag = "2")]
    key: Option<Inline>,
}

#[derive(Clone, PartialEq, Message)]
struct Validation {
    #[prost(message, optional, tag = "1")]
    authority: Option<Inline>,
}

#[derive(Clone, PartialEq, Message)]
struct Inline {
    #[prost(string, tag = "3")]
    text: String,
}

/// A server of one workload's secrets; it goes when dropped.
#[derive(Debug)]
pub(crate) struct Secrets {
    task: JoinHandle<()>,
}

impl Drop for Secrets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Secrets {
    /// Serves a workload's certificate as `default` and the authority's as `ROOTCA`.
    pub(crate) fn serve(socket: &Path, issued: &Issued, authority: &str) -> Result<Self> {
        let inline = |text: &str| Some(Inline { text: text.to_owned() });
        let pair = Pair { chain: inline(&issued.certificate), key: inline(&issued.key) };
        let own = Secret { name: "default".into(), certificate: Some(pair), validation: None };
        let validation = Some(Validation { authority: inline(authority) });
        let root = Secret { name: "ROOTCA".into(), certificate: None, validation };
        let listener =
            UnixListener::bind(socket).with_context(|| format!("listen at {}", socket.display()))?;
        let server =
            tonic::transport::Server::builder().add_service(Discovery { secrets: Arc::new([own, root]) });
        let serving = server.serve_with_incoming(UnixListenerStream::new(listener));
        Ok(Self { task: tokio::spawn(async move { drop(serving.await) }) })
    }
}

#[derive(Clone)]
struct Discovery {
    secrets: Arc<[Secret; 2]>,
}

impl NamedService for Discovery {
    const NAME: &'static str = "envoy.service.secret.v3.SecretDiscoveryService";
}

impl Service<http::Request<Body>> for Discovery {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Waking<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let stream = self.clone();
        Box::pin(async move {
            if !request.uri().path().ends_with("/StreamSecrets") {
                return Ok(Status::unimplemented("only StreamSecrets").into_http());
            }
            Ok(Grpc::new(ProstCodec::default()).streaming(stream, request).await)
        })
    }
}

impl StreamingService<Asked> for Discovery {
    type Response = Told;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Told, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Asked>>) -> Self::Future {
        let secrets = Arc::clone(&self.secrets);
        let answers = request.into_inner().filter_map(move |asked| ready(answer(secrets.as_slice(), asked)));
        ready(Ok(Response::new(Box::pin(answers))))
    }
}

/// Answers a question; what confirms an answer needs none.
fn answer(secrets: &[Secret], asked: Result<Asked, Status>) -> Option<Result<Told, Status>> {
    let asked = match asked {
        Ok(asked) if asked.nonce.is_empty() => asked,
        Ok(_) => return None,
        Err(error) => return Some(Err(error)),
    };
    let wanted = secrets.iter().filter(|secret| asked.names.contains(&secret.name));
    let any = |secret: &Secret| prost_types::Any { type_url: SECRET.into(), value: secret.encode_to_vec() };
    let resources = wanted.map(any).collect();
    Some(Ok(Told { version: "1".into(), resources, type_url: SECRET.into(), nonce: "1".into() }))
}
