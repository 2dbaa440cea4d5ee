use tarbet_telemetry::intake::{self, Limits};
use tarbet_telemetry::{Health, Metrics, observe};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn probes_and_metrics_tell_the_truth_over_http() {
    let (metrics, health, stop) = (Metrics::new("test", "0"), Health::default(), CancellationToken::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let router = observe::router(metrics, health.clone(), &observe::Paths::default());
    let server = tokio::spawn(intake::serve(listener, router, Limits::default(), stop.clone()));

    let get = async |path: &str| {
        let answer = reqwest::get(format!("{base}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(get("/livez").await.0, 200);
    assert_eq!(get("/readyz").await.0, 503);

    let part = health.part("store");
    part.failing("connection refused by 127.0.0.1:6379");
    let (status, body) = get("/readiness").await;
    assert_eq!(status, 503);
    assert!(body.contains("connection refused by 127.0.0.1:6379"), "{body}");
    part.ready();
    assert_eq!(get("/readyz").await.0, 200);

    let (status, page) = get("/metrics").await;
    assert_eq!(status, 200);
    assert!(page.ends_with("# EOF\n") && page.contains("process_open_fds"), "{page}");

    stop.cancel();
    server.await.unwrap();
}
