//! What runs here now.

use super::super::facts::Facts;
use super::{Check, Finding, aside, fine, must, should, warning, wrong};

const fn check(
    name: &'static str,
    looks_at: &'static str,
    hint: &'static str,
    judge: fn(&Facts) -> Finding,
) -> Check {
    Check { name, looks_at, hint, live: true, judge }
}

#[rustfmt::skip]
pub(super) fn checks() -> Vec<Check> {
    vec![
        check("up.running", "whether `tarbet up` runs here", "start it: tarbet up", |f| if f.endpoint.is_some() { fine("it does") } else { warning("it does not") }),
        check("up.ready", "whether all its parts are ready", "read the reason of the part that is not; the log of `tarbet up` says more", ready),
        check("up.version", "whether it is this version", "restart it: tarbet down --keep-state && tarbet up", |f| match &f.live.version { None => aside("not told"), Some(version) => should(version == f.version, version.clone(), format!("it is {version}, this program is {}", f.version)) }),
        check("up.console", "whether the console answers", "restart `tarbet up`; see that nothing else took the console's port", |f| answers(f.live.console.as_ref())),
        check("reach.api", "whether the gateway's API answers with our token", "see that admin.token is the one of this installation; else restart `tarbet up`", |f| answers(f.live.sites.as_ref())),
        check("reach.sites", "whether there is a site", "add one: tarbet site add lab", |f| match &f.live.sites { Some(Ok(sites)) => should(!sites.is_empty(), format!("{} sites", sites.len()), "there is none"), _ => aside("not told") }),
        check("reach.connected", "whether every site is connected", "at the site: is the agent running, and does its log say why it cannot dial?", connected),
        check("reach.refused", "whether agents were turned away", "an agent shows a token that is unknown or revoked: issue another with `tarbet site token SITE`", |f| match f.live.refused { None => aside("not told"), Some(count) => should(count == 0, "none", format!("{count} times since the start")) }),
        check("reach.waiting", "whether requests wait for a site", "connect the site that they wait for; `tarbet why` lists them", |f| match f.live.waiting { None => aside("not told"), Some(count) => should(count < 100, format!("{count} wait"), format!("{count} wait")) }),
        check("pods.interlink", "whether interLink's API answers", "see the log of `tarbet up`; a plugin that is stuck is named there", |f| answers(f.live.pods.as_ref())),
        check("pods.runtime", "whether pods can be run", "start Docker again, or see why the plugin says so", |f| match &f.live.pods { Some(Ok(status)) => must(status == "ok", "ok", status.clone()), _ => aside("not told") }),
        check("nets.answers", "whether the orchestrator answers", "see the log of `tarbet up`", |f| answers(f.live.nets.as_ref())),
        check("nets.drift", "whether networks are as they should be", "look with `tarbet glide drift`, mend with `tarbet glide drift --repair`", |f| match &f.live.drift { Some(Ok(count)) => should(*count == 0, "nothing differs", format!("{count} differences")), Some(Err(why)) => warning(why.clone()), None => aside("not told") }),
        check("nets.vpns", "whether every VPN is complete", "see what stopped with `tarbet glide operation list`", vpns),
        check("audit.whole", "whether the record of requests is whole", "keep the file, compare it with a copy: tarbet audit verify FILE --head NUMBER:HASH", |f| match &f.live.audit { None => aside("no record is kept"), Some(Ok(count)) => fine(format!("{count} records")), Some(Err(why)) => wrong(why.clone()) }),
        check("audit.head", "whether the head beside the record can be read", "keep heads elsewhere too: the process prints one when it stops", |f| match f.live.audit_head { None => aside("no record is kept"), Some(read) => should(read, "readable", "it cannot be read") }),
    ]
}

fn answers<T>(asked: Option<&Result<T, String>>) -> Finding {
    match asked {
        None => aside("it does not run"),
        Some(Ok(_)) => fine("it does"),
        Some(Err(why)) => wrong(why.clone()),
    }
}

fn ready(facts: &Facts) -> Finding {
    match &facts.live.ready {
        None => aside("it does not run"),
        Some(Err(why)) => wrong(why.clone()),
        Some(Ok(said)) => {
            let parts = said["parts"].as_object().cloned().unwrap_or_default();
            let away: Vec<String> = parts
                .iter()
                .filter(|(_, part)| part["state"] != "ready")
                .map(|(name, part)| format!("{name}: {}", part["reason"].as_str().unwrap_or("not ready")))
                .collect();
            must(away.is_empty(), format!("{} parts", parts.len()), away.join("; "))
        }
    }
}

fn connected(facts: &Facts) -> Finding {
    let Some(Ok(sites)) = &facts.live.sites else { return aside("not told") };
    let away: Vec<&str> = sites.iter().filter(|(_, on)| !on).map(|(name, _)| name.as_str()).collect();
    should(away.is_empty(), "they are", format!("not connected: {}", away.join(", ")))
}

fn vpns(facts: &Facts) -> Finding {
    let Some(Ok(picture)) = &facts.live.nets else { return aside("not told") };
    let links = picture["links"].as_array().cloned().unwrap_or_default();
    let half = links.iter().filter(|link| link["complete"] != true).count();
    should(half == 0, format!("{} VPNs", links.len()), format!("{half} of {} are not", links.len()))
}
