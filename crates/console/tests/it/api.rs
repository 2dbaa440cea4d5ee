use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::served::served;

/// Long on a busy machine, never waited for when all is well.
const SOON: Duration = Duration::from_mins(1);

#[tokio::test]
async fn each_panel_has_its_reading_and_a_failing_one_says_why() {
    let console = served().await;
    let get = async |path: &str| {
        let answer = reqwest::get(format!("{}/api/{path}", console.url)).await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    assert_eq!(get("count").await, (200, json!({"count": 0})));
    assert_eq!(get("still").await, (200, json!(["stays"])));
    let (status, problem) = get("broken").await;
    assert_eq!((status, &problem["cause"]), (500, &json!("it always is")));
    assert_eq!(get("nothing").await.0, 404);
}

#[tokio::test]
async fn changes_need_a_bearer_token_and_reads_do_not() {
    let console = served().await;
    let http = reqwest::Client::new();
    let more = || http.post(format!("{}/api/count/more", console.url));
    let refused = more().send().await.unwrap();
    assert_eq!(refused.status(), 401);
    assert!(refused.text().await.unwrap().contains("TB-"));
    // What a browser sends by itself is not enough.
    assert_eq!(
        more().header("cookie", "token=x").basic_auth("a", Some("b")).send().await.unwrap().status(),
        401
    );
    assert_eq!(console.count.load(Ordering::SeqCst), 0);
    assert_eq!(more().bearer_auth("any").send().await.unwrap().text().await.unwrap(), "1");
    let now = reqwest::get(format!("{}/api/count/now", console.url)).await.unwrap();
    assert_eq!(now.text().await.unwrap(), "1");
}

/// Reads the stream until it has said this.
async fn hear(stream: &mut reqwest::Response, heard: &mut String, wanted: &str) {
    let waiting = async {
        while !heard.contains(wanted) {
            let chunk = stream.chunk().await.unwrap().expect("the stream ended");
            heard.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    assert!(tokio::time::timeout(SOON, waiting).await.is_ok(), "never heard {wanted} in {heard}");
}

#[tokio::test]
async fn one_stream_tells_everything_once_and_then_what_changes() {
    let mut console = served().await;
    let mut stream = reqwest::get(format!("{}/api/events", console.url)).await.unwrap();
    let mut heard = String::new();
    hear(&mut stream, &mut heard, r#"{"count":0}"#).await;
    hear(&mut stream, &mut heard, "it always is").await;
    console.count.store(7, Ordering::SeqCst);
    hear(&mut stream, &mut heard, r#"{"count":7}"#).await;
    assert_eq!(heard.matches("event: broken").count(), 1, "what did not change is not sent again: {heard}");
    // A page that comes later is told all at once as well.
    let mut late = reqwest::get(format!("{}/api/events", console.url)).await.unwrap();
    hear(&mut late, &mut String::new(), r#"{"count":7}"#).await;
    // The end of the console is the end of its streams.
    console.stop.cancel();
    let served = tokio::time::timeout(SOON, console.task.take().unwrap()).await;
    served.expect("open streams keep the console from ending").unwrap().unwrap();
}
