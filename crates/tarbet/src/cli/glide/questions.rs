//! `tarbet glide can` and `tarbet glide test`.

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::plan::expect::{Expectations, Protocol};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, nets};

use super::client::{Glide, escape};
use crate::output::Format;

#[derive(Debug, Args)]
pub struct CanArgs {
    /// The one that opens the flow: a resource's tag or an address
    from: String,
    /// The other one, with a port where the protocol has ports
    #[arg(value_name = "TO[:PORT]")]
    to: String,
    /// tcp, udp, icmp, sctp or a number
    #[arg(long, default_value = "tcp")]
    protocol: Protocol,
}

/// Apart into host and port; `[fd00::1]:443` is an IPv6 address with a port, more colons are one without.
fn split(to: &str) -> Result<(&str, u16), Problem> {
    let (host, port) = match to.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => match to.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (to, None),
        },
    };
    let Some(port) = port else { return Ok((host, 0)) };
    // `parse` alone would take a sign.
    let number = port.parse().ok().filter(|_| port.bytes().all(|b| b.is_ascii_digit()));
    let wrong = || Problem::new(&ground::BAD_REQUEST, format!("`{}` is not a port.", port.escape_debug()));
    Ok((host, number.ok_or_else(|| wrong().advising("give a number from 0 to 65535, or none"))?))
}

async fn ask(glide: &Glide, from: &str, to: &str, port: u16, protocol: u8) -> Result<Value, Problem> {
    let (from, to) = (escape(from), escape(to));
    glide
        .ask(Method::GET, &format!("/can?from={from}&to={to}&port={port}&protocol={protocol}"), Value::Null)
        .await
}

pub async fn can(glide: &Glide, args: CanArgs) -> Result<(), Problem> {
    let (to, port) = split(&args.to)?;
    let verdict = ask(glide, &args.from, to, port, args.protocol.0).await?;
    let allowed = verdict["allowed"] == json!(true);
    if glide.format == Format::Table {
        let mut text = if allowed { "Yes.".to_owned() } else { "No.".to_owned() };
        for end in verdict["ends"].as_array().into_iter().flatten() {
            let field = |name: &str| end[name].as_str().unwrap_or_default().to_owned();
            // Writing to a string cannot fail.
            let _ = match end["rule"].as_str() {
                Some(rule) => {
                    write!(text, "\n  {} permits it {} by rule {rule}", field("resource"), field("direction"))
                }
                None => write!(text, "\n  {} has no {} rule for it", field("resource"), field("direction")),
            };
        }
        glide.format.text(&text)?;
    } else {
        glide.format.value(&verdict)?;
    }
    if allowed {
        return Ok(());
    }
    Err(Problem::new(&nets::NOT_PERMITTED, format!("{} may not reach {}.", args.from, args.to)))
}

pub async fn test(glide: &Glide, file: &Path) -> Result<(), Problem> {
    let wrong = |cause: String| {
        Problem::new(
            &ground::BAD_REQUEST,
            format!("The expectations in {} cannot be judged.", file.display()),
        )
        .at("tarbet glide test")
        .because(cause)
        .advising("see the guide for the form of the file")
    };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let expectations: Expectations =
        serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let mut rows = Vec::new();
    if expectations.resources.is_empty() {
        for test in &expectations.tests {
            let verdict = ask(glide, &test.from, &test.to, test.port, test.protocol.0).await?;
            let allowed = verdict["allowed"] == json!(true);
            rows.push(row(&test.from, &test.to, test.port, test.allow, allowed));
        }
    } else {
        for judged in expectations.judge().map_err(|error| wrong(error.to_string()))? {
            let test = &judged.expectation;
            rows.push(row(&test.from, &test.to, test.port, test.allow, judged.verdict.allowed));
        }
    }
    let failed = rows.iter().filter(|row| row["holds"] != json!(true)).count();
    let columns = ["from", "to", "port", "expected", "found", "holds"];
    glide.rows(&Value::from(rows.clone()), &columns, "The file expects nothing.")?;
    if failed == 0 {
        return Ok(());
    }
    Err(Problem::new(&nets::EXPECTATION, format!("{failed} of {} expectations do not hold.", rows.len())))
}

fn row(from: &str, to: &str, port: u16, expected: bool, found: bool) -> Value {
    let word = |allow: bool| if allow { "allow" } else { "deny" };
    json!({ "from": from, "to": to, "port": port, "expected": word(expected), "found": word(found), "holds": expected == found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_told_from_the_rest() {
        for (text, host, port) in [
            ("default.local.web", "default.local.web", 0),
            ("default.local.web:443", "default.local.web", 443),
            ("10.0.0.4:65535", "10.0.0.4", 65535),
            ("fd00::443", "fd00::443", 0),
            ("[fd00::1]:443", "fd00::1", 443),
            ("[fd00::1]", "fd00::1", 0),
        ] {
            assert_eq!(split(text).unwrap(), (host, port), "{text}");
        }
        for text in ["web:65536", "web:https", "web:", "web:+1", "[fd00::1]:x"] {
            assert!(split(text).is_err(), "{text}");
        }
    }
}
