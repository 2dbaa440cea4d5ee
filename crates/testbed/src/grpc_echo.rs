//! A gRPC service that gives back what it is told, and a caller of it: one answer to one message, and a
//! conversation, with metadata, trailers and failures.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::Result;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap};
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

/// The service on a port of loopback; it goes when dropped.
#[derive(Debug)]
pub struct GrpcEcho {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl GrpcEcho {
    /// Its full name.
    pub const SERVICE: &str = <Echo as NamedService>::NAME;
    /// Its methods: `Say` answers once, `Chat` answers each message.
    pub const METHODS: [&str; 2] = ["Say", "Chat"];

    /// Starts it.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = tonic::transport::Server::builder()
            .add_service(Echo)
            .serve_with_incoming(TcpListenerStream::new(listener));
        Ok(Self { address, task: tokio::spawn(async move { drop(serving.await) }) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for GrpcEcho {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug, Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "tarbet.test.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<String, String>::default());
            Ok(match request.uri().path().rsplit('/').next() {
                Some("Say") => grpc.unary(Self, request).await,
                Some("Chat") => grpc.streaming(Self, request).await,
                _ => Status::unimplemented("it has no such method").into_http(),
            })
        })
    }
}

/// What callers may say of themselves, given back at the beginning and at the end.
const WORD: &str = "x-word";

fn marked(name: &'static str, asked: &MetadataMap) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    if let Some(word) = asked.get(WORD) {
        metadata.insert(MetadataKey::<Ascii>::from_static(name), word.clone());
    }
    metadata
}

impl UnaryService<String> for Echo {
    type Response = String;
    type Future = Ready<Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let (metadata, _, text) = request.into_parts();
        if let Some(why) = text.strip_prefix("fail ") {
            let end = marked("x-end", &metadata);
            return ready(Err(Status::with_metadata(Code::FailedPrecondition, why, end)));
        }
        let mut response = Response::new(format!("you said {text}"));
        *response.metadata_mut() = marked("x-begin", &metadata);
        ready(Ok(response))
    }
}

impl StreamingService<String> for Echo {
    type Response = String;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<String, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<String>>) -> Self::Future {
        let (metadata, _, messages) = request.into_parts();
        let answers = messages.map(|message| match message?.as_str() {
            "fail" => Err(Status::aborted("as you wish")),
            text => Ok(format!("you said {text}")),
        });
        // A success that says more than that is a status like any other.
        let end = Status::with_metadata(Code::Ok, "", marked("x-end", &metadata));
        let answers = answers.chain(futures::stream::iter([Err(end)]));
        let mut response = Response::new(Box::pin(answers) as Self::ResponseStream);
        *response.metadata_mut() = marked("x-begin", &metadata);
        ready(Ok(response))
    }
}

/// A caller of the service, with metadata for every call.
#[derive(Debug, Clone)]
pub struct GrpcEchoClient {
    channel: Channel,
    metadata: MetadataMap,
}

/// A conversation.
#[derive(Debug)]
pub struct GrpcChat {
    say: Option<mpsc::UnboundedSender<String>>,
    begin: MetadataMap,
    answers: Streaming<String>,
}

impl GrpcEchoClient {
    /// One that dials this `http://` URL when it is first used. Each call has these pairs as metadata.
    pub fn new(url: &str, metadata: &[(&'static str, &str)]) -> Result<Self> {
        let channel = Endpoint::from_shared(url.to_owned())?.connect_lazy();
        let mut map = MetadataMap::new();
        for (name, value) in metadata {
            map.append(MetadataKey::<Ascii>::from_static(name), value.parse()?);
        }
        Ok(Self { channel, metadata: map })
    }

    /// The same with one more pair.
    pub fn with(&self, name: &'static str, value: &str) -> Result<Self> {
        let mut other = self.clone();
        other.metadata.insert(MetadataKey::<Ascii>::from_static(name), value.parse()?);
        Ok(other)
    }

    async fn ready(&self) -> Result<Client<Channel>, Status> {
        let mut client = Client::new(self.channel.clone());
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(client)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata.clone();
        request
    }

    /// Says one thing to a method of any service: its answer and the metadata before it.
    pub async fn call(&self, method: &'static str, text: &str) -> Result<(String, MetadataMap), Status> {
        let path = http::uri::PathAndQuery::from_static(method);
        let codec = ProstCodec::<String, String>::default();
        let answer = self.ready().await?.unary(self.request(text.to_owned()), path, codec).await?;
        let (metadata, answer, _) = answer.into_parts();
        Ok((answer, metadata))
    }

    /// Says one thing.
    pub async fn say(&self, text: &str) -> Result<(String, MetadataMap), Status> {
        self.call("/tarbet.test.Echo/Say", text).await
    }

    /// Begins a conversation. Nothing is said yet.
    pub async fn chat(&self) -> Result<GrpcChat, Status> {
        let (say, said) = mpsc::unbounded_channel();
        let path = http::uri::PathAndQuery::from_static("/tarbet.test.Echo/Chat");
        let request = self.request(UnboundedReceiverStream::new(said));
        let codec = ProstCodec::<String, String>::default();
        let answer = self.ready().await?.streaming(request, path, codec).await?;
        let (begin, answers, _) = answer.into_parts();
        Ok(GrpcChat { say: Some(say), begin, answers })
    }
}

impl GrpcChat {
    /// The metadata before the first answer.
    pub fn begin(&self) -> &MetadataMap {
        &self.begin
    }

    /// Says something and waits for the answer to it.
    pub async fn say(&mut self, text: &str) -> Result<Option<String>, Status> {
        let gone = |_| Status::unknown("the conversation is over");
        self.say.as_ref().map_or(Ok(()), |say| say.send(text.to_owned())).map_err(gone)?;
        self.answers.message().await
    }

    /// Has no more to say, and waits for the end: the metadata behind the last answer.
    pub async fn end(mut self) -> Result<MetadataMap, Status> {
        self.say = None;
        while self.answers.message().await?.is_some() {}
        Ok(self.answers.trailers().await?.unwrap_or_default())
    }
}
