//! Telemetry seen from outside: real HTTP, a real OTLP collector, real signals.

mod it {
    mod intake;
    mod pages;
    mod traces;
}
