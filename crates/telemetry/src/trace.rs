//! Traces over OTLP, when asked for.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

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
            .with_attribute(opentelemetry::KeyValue::new("service.version", version.to_owned()))
            .build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
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
