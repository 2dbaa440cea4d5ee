use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tarbet_telemetry::trace::Traces;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tracing_subscriber::layer::SubscriberExt;

/// A collector that hands on what it receives.
struct Collector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_an_otlp_collector() {
    let (sender, mut received) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let collector = tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(Collector(sender)))
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );

    let traces = Traces::to(&endpoint, "gateway", "9.9.9").unwrap();
    let subscriber = tracing_subscriber::registry().with(traces.layer());
    tracing::subscriber::with_default(subscriber, || {
        tracing::info_span!("route", site = "lab").in_scope(|| {});
    });
    tokio::task::spawn_blocking(move || traces.flush()).await.unwrap().unwrap();

    let export = received.recv().await.unwrap();
    let text = format!("{export:?}");
    for expected in ["tarbet-gateway", "9.9.9", "\"route\"", "\"lab\""] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    collector.abort();
}
