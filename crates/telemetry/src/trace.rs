//! Traces over OTLP, when asked for.
//!
//! Tasks of the process are spans of `tracing`. What a process did for a request is told as a whole once it is over
//! ([`tell`]): its trace is the request's id, so that the parts of all processes on the way make one trace, and a
//! request that nobody follows costs nothing.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SdkTracer, SdkTracerProvider, Span, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;
use uuid::Uuid;

use crate::request::RequestId;

/// Where this process sends its spans, if it does.
static SPANS: OnceLock<Spans> = OnceLock::new();

/// The exporter of one process. Flush it before the process ends or the last spans are lost.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Sends spans to an OTLP/gRPC collector at `endpoint`, such as `http://127.0.0.1:4317`.
    pub fn to(endpoint: &str, role: &str, version: &str) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
        let resource = Resource::builder()
            .with_service_name(format!("tarbet-{role}"))
            .with_attribute(KeyValue::new("service.version", version.to_owned()))
            .build();
        let mut spans = BatchSpanProcessor::builder(exporter).build();
        spans.set_resource(&resource);
        let spans = Spans(Arc::new(spans));
        let provider =
            SdkTracerProvider::builder().with_span_processor(spans.clone()).with_resource(resource).build();
        // A process has one; whoever makes a second sends what `tracing` knows, and requests go to the first.
        let _ = SPANS.set(spans);
        Ok(Self { provider })
    }

    /// The layer that turns `tracing` spans into exported ones.
    pub fn layer<S>(&self) -> OpenTelemetryLayer<S, SdkTracer>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("tarbet"))
    }

    /// Sends what is still held. Blocks; call it from a blocking thread.
    pub fn flush(&self) -> Result<(), OTelSdkError> {
        self.provider.force_flush()
    }
}

/// Spans of both kinds, on their way out.
#[derive(Debug, Clone)]
struct Spans(Arc<BatchSpanProcessor>);

impl SpanProcessor for Spans {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.0.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        self.0.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }
}

/// What one process did for a request.
#[derive(Debug)]
pub struct Part {
    /// Which request.
    pub request: RequestId,
    /// What kind of request: one of few.
    pub name: String,
    /// When it came in here.
    pub began: SystemTime,
    /// How long it was here.
    pub took: Duration,
    /// What happened, and how long after the beginning.
    pub steps: Vec<(Duration, String)>,
    /// What else is known of it.
    pub about: Vec<(&'static str, String)>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// Whether anybody follows requests.
pub fn wanted() -> bool {
    SPANS.get().is_some()
}

/// Tells a part of a request that is over to the collector.
pub fn tell(part: Part) {
    let Some(spans) = SPANS.get() else { return };
    let Part { request, name, began, took, steps, about, failure } = part;
    let id = SpanId::from(Uuid::new_v4().as_u64_pair().1 | 1);
    let trace = TraceId::from(request.number());
    let event = |(after, what): (Duration, String)| Event::new(what, began + after, Vec::new(), 0);
    let mut events = SpanEvents::default();
    events.events = steps.into_iter().map(event).collect();
    spans.on_end(SpanData {
        span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default()),
        parent_span_id: SpanId::INVALID,
        parent_span_is_remote: false,
        span_kind: SpanKind::Server,
        name: name.into(),
        start_time: began,
        end_time: began + took,
        attributes: about.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect(),
        dropped_attributes_count: 0,
        events,
        links: SpanLinks::default(),
        status: failure.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("tarbet").build(),
    });
}
