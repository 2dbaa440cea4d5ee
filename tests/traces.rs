//! Requests as traces: what a collector hears of one that passes two gateways.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use tarbet_link::{Body, Caller, Target};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Lease, Redis, eventually};
use tonic::{Request, Response, Status};

use crate::asking::{add_site, client};

const SOON: Duration = Duration::from_mins(1);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A collector that keeps what it receives.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes =
            request.into_inner().resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        self.0.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn of(&self, trace: &str) -> Vec<Span> {
        let bytes: Vec<u8> = (0..trace.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&trace[at..at + 2], 16).unwrap())
            .collect();
        self.0.lock().unwrap().iter().filter(|span| span.trace_id == bytes).cloned().collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_gateway_on_the_way_tells_its_part_of_a_request() {
    let (collector, port) = (Collector::default(), Lease::block(1).unwrap());
    let service = TraceServiceServer::new(collector.clone());
    let at = ([127, 0, 0, 1], port.port(0)).into();
    let serving = tokio::spawn(tonic::transport::Server::builder().add_service(service).serve(at));

    let (product, redis) =
        (Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap(), Redis::start().await.unwrap());
    let store = format!("{{kind: redis, url: '{}'}}", redis.url());
    let to = format!("observability.otlp_endpoint=http://{at}");
    let entry = product.gateway("entry", &store, &["--set", &to]).await.unwrap();
    let holder = product.gateway("holder", &store, &["--set", &to]).await.unwrap();
    let token = add_site(&product, &entry, "far").await.unwrap();
    let _agent = product.agent("far-agent", &token, &[&holder], &[]).await.unwrap();

    let site = client(&product, &entry).site("far".parse().unwrap());
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let mut request = http::Request::get("/").header("traceparent", traceparent).body(Body::empty()).unwrap();
    request.extensions_mut().insert(Target::service("info").unwrap());
    assert!(site.call(request).await.unwrap().status().is_success());

    let both = || async {
        let spans = collector.of(TRACE);
        if spans.len() == 2 { Ok(spans) } else { Err(format!("{} spans so far", spans.len())) }
    };
    let spans = eventually(SOON, "the spans of both gateways", both).await.unwrap();
    let steps: Vec<String> =
        spans.iter().flat_map(|span| &span.events).map(|event| event.name.clone()).collect();
    for step in ["sent to the gateway at", "which this gateway holds", "answered with 200"] {
        assert!(steps.iter().any(|told| told.contains(step)), "{step}: {steps:?}");
    }
    for span in &spans {
        assert_eq!(span.name, "info GET", "{span:?}");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        assert!(format!("{:?}", span.attributes).contains("\"far\""), "{span:?}");
    }
    assert_ne!(spans[0].span_id, spans[1].span_id);
    serving.abort();
}
