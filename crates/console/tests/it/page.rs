use std::io::Read;

use super::served::served;

#[tokio::test]
async fn the_page_and_its_files_are_served_with_a_strict_policy() {
    let console = served().await;
    for (path, kind) in [
        ("/", "text/html"),
        ("/app.js", "text/javascript"),
        ("/app.css", "text/css"),
        ("/icon.svg", "image/svg"),
    ] {
        let answer = reqwest::get(format!("{}{path}", console.url)).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        assert!(header("content-type").starts_with(kind), "{path}");
        assert!(header("content-security-policy").starts_with("default-src 'self'"));
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert!(!answer.headers().contains_key("set-cookie"));
        let tag = header("etag");
        assert!(tag.starts_with("W/"), "one tag stands for two forms of {path}: {tag}");
        let again =
            reqwest::Client::new().get(format!("{}{path}", console.url)).header("if-none-match", &tag);
        assert_eq!(again.send().await.unwrap().status(), 304, "{path}");
    }
}

#[tokio::test]
async fn the_page_is_packed_for_whoever_takes_it_so() {
    let console = served().await;
    let script = include_bytes!("../../dist/app.js");
    for (takes, packed) in [(None, false), (Some("br, gzip"), true), (Some("gzip;q=0"), false)] {
        let mut asked = reqwest::Client::new().get(format!("{}/app.js", console.url));
        if let Some(takes) = takes {
            asked = asked.header("accept-encoding", takes);
        }
        let answer = asked.send().await.unwrap();
        assert_eq!(answer.headers().contains_key("content-encoding"), packed, "{takes:?}");
        assert_eq!(answer.headers()["vary"], "accept-encoding");
        let body = answer.bytes().await.unwrap();
        if packed {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap();
            assert!(body.len() < script.len() / 2 && plain == script, "{} bytes", body.len());
        } else {
            assert!(body[..] == script[..], "{takes:?}");
        }
    }
}

#[test]
fn nothing_in_the_page_comes_from_elsewhere() {
    for text in [
        include_str!("../../dist/index.html"),
        include_str!("../../dist/app.css"),
        include_str!("../../dist/app.js"),
    ] {
        let rest = text.replace("http://www.w3.org/", "").replace("http://127.0.0.1", "");
        assert!(!rest.contains("http://") && !rest.contains("https://"), "an outside address is in the page");
    }
}

#[tokio::test]
async fn other_names_for_this_machine_are_refused() {
    let console = served().await;
    let asked =
        reqwest::Client::new().get(format!("{}/api/count", console.url)).header("host", "evil.example:80");
    let answer = asked.send().await.unwrap();
    assert_eq!(answer.status(), 421);
    assert!(answer.text().await.unwrap().contains("evil.example"));
}
