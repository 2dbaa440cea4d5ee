//! Requests that go round: a site whose API server is this very gateway would be asked for ever.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::reach;

/// The header that RFC 8586 has for this: whoever stands in between sends it on as it is.
const PASSED: HeaderName = HeaderName::from_static("cdn-loop");
/// A site may stand behind another of the same gateway, and that one behind a third; more is a circle.
const MOST: usize = 3;
/// This process: gateways of different owners may have the same name.
static MARK: LazyLock<HeaderValue> = LazyLock::new(|| {
    let mark = format!("tarbet-{:016x}", rand::random::<u64>());
    HeaderValue::try_from(mark).unwrap_or(HeaderValue::from_static("tarbet"))
});

/// Notes that a request passes here, and refuses one that did too often.
pub(super) fn pass(headers: &mut HeaderMap) -> Result<(), Problem> {
    let passed =
        headers.get_all(PASSED).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let times = passed.filter(|value| value.trim_ascii() == MARK.as_bytes()).count();
    if times >= MOST {
        return Err(Problem::new(
            &reach::REQUEST_LOOP,
            "The request came back to this gateway again and again.",
        )
        .because(format!("it has passed {times} times before")));
    }
    headers.append(PASSED, MARK.clone());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_times_pass_and_no_more_and_marks_of_others_do_not_count() {
        let mut headers = HeaderMap::new();
        for other in ["tarbet-0", "cdn.example.org; a=b, , tarbet", "\"", &"x, ".repeat(100)] {
            headers.append(PASSED, HeaderValue::from_str(other).unwrap());
        }
        for _ in 0..MOST {
            pass(&mut headers).unwrap();
        }
        assert_eq!(pass(&mut headers).unwrap_err().code, reach::REQUEST_LOOP.id);
        // Also when somebody in between joined the lines.
        let joined = headers.get_all(PASSED).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        let joined = HeaderValue::from_str(&joined.join(",")).unwrap();
        let mut headers = HeaderMap::from_iter([(PASSED, joined)]);
        assert!(pass(&mut headers).is_err());
    }
}
