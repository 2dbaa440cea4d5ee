//! Which offer, if any, a request falls under.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use super::{Asked, PipelineSource, Wish};
use crate::crd::{InternalServicesConfigSpec, NamedValue, Offer, OfferedResolver, PipelineRef};
use crate::params::quoted;
use crate::tenant;

/// What the git resolver gets without an offer. Its other parameters name hosts and secrets.
const GIT_PARAMS: [&str; 3] = ["url", "revision", "pathInRepo"];

/// The remote and the namespace that ask.
type Asker<'a> = (&'a str, &'a str);

/// The way a request may go.
pub(super) struct Granted<'a> {
    pub(super) name: String,
    pub(super) offer: Option<&'a Offer>,
    pub(super) source: PipelineSource,
}

pub(super) fn grant<'a>(
    asker: Asker<'_>,
    wish: &Wish<'_>,
    config: &'a InternalServicesConfigSpec,
) -> Result<Granted<'a>, String> {
    let reference = match wish.asked {
        Asked::Pipeline(name) => return local(asker, name, false, config),
        Asked::Resolver(reference) => reference,
    };
    let asked = unique(&reference.params)?;
    for (name, value) in &asked {
        if let Some(why) = crate::params::refusal(value) {
            return Err(format!("the value of the resolver parameter {} {why}", quoted(name)));
        }
    }
    match by_resolver(asker, &reference.resolver, &asked, config) {
        Some(Ok(granted)) => Ok(granted),
        refused => match without_offer(asker, reference, &asked, config) {
            Ok(granted) => Ok(granted),
            // An offer that nearly fits says more than the general rule.
            Err(general) => Err(refused.and_then(Result::err).unwrap_or(general)),
        },
    }
}

fn without_offer<'a>(
    asker: Asker<'_>,
    reference: &PipelineRef,
    asked: &BTreeMap<&str, &str>,
    config: &'a InternalServicesConfigSpec,
) -> Result<Granted<'a>, String> {
    match reference.resolver.as_str() {
        "cluster" => {
            let name = asked.get("name").ok_or("the cluster resolver needs the parameter \"name\"")?;
            // Namespace and kind are ours to say, whatever stands there.
            if let Some(other) = asked.keys().find(|name| !["name", "namespace", "kind"].contains(*name)) {
                return Err(format!("the cluster resolver takes no parameter {}", quoted(other)));
            }
            local(asker, name, true, config)
        }
        "git" if !config.allowed_git_resolver_urls.is_empty() => {
            let url = asked.get("url").copied().unwrap_or_default();
            if !config.allowed_git_resolver_urls.iter().any(|allowed| allowed == url) {
                return Err(format!(
                    "the pipeline git resolver URL ({url}) is not in the allowed list: [{}]",
                    config.allowed_git_resolver_urls.join(" ")
                ));
            }
            if let Some(other) = asked.keys().find(|name| !GIT_PARAMS.contains(*name)) {
                return Err(format!("the git resolver parameter {} is not allowed", quoted(other)));
            }
            let source =
                PipelineSource::Resolver { name: "git".to_owned(), params: reference.params.clone() };
            Ok(Granted { name: git_name(asked), offer: None, source })
        }
        other => Err(format!(
            "the resolver ({other}) is not allowed; the administrator of the private side can allow it with an offer that names the resolver and its parameters{}",
            if other == "git" { ", or list the repository in allowedGitResolverURLs" } else { "" }
        )),
    }
}

/// A Pipeline of the controller's own namespace.
fn local<'a>(
    asker: Asker<'_>,
    name: &str,
    resolver: bool,
    config: &'a InternalServicesConfigSpec,
) -> Result<Granted<'a>, String> {
    let source = || PipelineSource::Local { name: name.to_owned(), resolver };
    if !is_object_name(name) {
        return Err(format!("No endpoint to handle '{}' requests", quoted(name).trim_matches('"')));
    }
    if config.offers.is_empty() {
        return Ok(Granted { name: name.to_owned(), offer: None, source: source() });
    }
    let offers = || config.offers.iter().filter(|offer| offer.resolver.is_none() && offer.pipeline == name);
    if let Some(offer) = offers().find(|offer| admits(offer, asker)) {
        return Ok(Granted { name: name.to_owned(), offer: Some(offer), source: source() });
    }
    if offers().next().is_some() {
        return Err(not_for(name, asker.1));
    }
    Err(format!("No endpoint to handle '{name}' requests"))
}

/// The offers of a resolver: granted, refused by one that nearly fits, or none at all.
fn by_resolver<'a>(
    asker: Asker<'_>,
    resolver: &str,
    asked: &BTreeMap<&str, &str>,
    config: &'a InternalServicesConfigSpec,
) -> Option<Result<Granted<'a>, String>> {
    let mut nearest = None;
    for offer in &config.offers {
        let Some(offered) = offer.resolver.as_ref().filter(|offered| offered.name == resolver) else {
            continue;
        };
        match pinned(offered, asked) {
            Ok(_) if !admits(offer, asker) => nearest = Some(Err(not_for(&offer.pipeline, asker.1))),
            Ok(params) => {
                let source = PipelineSource::Resolver { name: resolver.to_owned(), params };
                return Some(Ok(Granted { name: offer.pipeline.clone(), offer: Some(offer), source }));
            }
            Err(why) => nearest = nearest.or(Some(Err(why))),
        }
    }
    nearest
}

/// The parameters the resolver gets: the pinned ones as offered, the free ones as asked.
fn pinned(offered: &OfferedResolver, asked: &BTreeMap<&str, &str>) -> Result<Vec<NamedValue>, String> {
    let known: BTreeSet<&str> = offered.params.iter().map(|param| param.name.as_str()).collect();
    if let Some(other) = asked.keys().find(|name| !known.contains(*name)) {
        return Err(format!("the {} resolver parameter {} is not offered", offered.name, quoted(other)));
    }
    let mut params = Vec::new();
    for param in &offered.params {
        let wanted = asked.get(param.name.as_str()).copied();
        let value = match (&param.value, &param.pattern, wanted) {
            (Some(fixed), _, None) => Some(fixed.as_str()),
            (Some(fixed), _, Some(wanted)) if wanted == fixed => Some(wanted),
            (None, Some(pattern), Some(wanted)) if matches(pattern, wanted)? => Some(wanted),
            (None, _, None) => None,
            (_, _, Some(wanted)) => {
                return Err(format!(
                    "the {} resolver parameter {} is not offered with the value {}",
                    offered.name,
                    quoted(&param.name),
                    quoted(wanted)
                ));
            }
        };
        params.extend(value.map(|value| NamedValue { name: param.name.clone(), value: value.to_owned() }));
    }
    Ok(params)
}

/// Checks the pipeline's parameters against what the offer takes.
pub(super) fn check_params(offer: &Offer, params: &BTreeMap<String, String>) -> Result<(), String> {
    let Some(offered) = &offer.params else { return Ok(()) };
    for (name, value) in params {
        let Some(param) = offered.iter().find(|param| param.name == *name) else {
            return Err(format!("the offer {} takes no parameter {}", quoted(&offer.pipeline), quoted(name)));
        };
        if let Some(pattern) = &param.pattern
            && !matches(pattern, value)?
        {
            return Err(format!(
                "the value of the parameter {} is not one the offer {} takes",
                quoted(name),
                quoted(&offer.pipeline)
            ));
        }
    }
    match offered.iter().find(|param| param.required && !params.contains_key(&param.name)) {
        Some(missing) => Err(format!(
            "the offer {} needs the parameter {}",
            quoted(&offer.pipeline),
            quoted(&missing.name)
        )),
        None => Ok(()),
    }
}

/// Whether the whole text matches. A pattern that is none lets nothing pass.
fn matches(pattern: &str, text: &str) -> Result<bool, String> {
    let whole = Regex::new(&format!(r"\A(?:{pattern})\z"));
    let whole = whole.map_err(|_| {
        format!("the pattern {} of this offer is not valid; the administrator of the private side must correct it", quoted(pattern))
    })?;
    Ok(whole.is_match(text))
}

fn admits(offer: &Offer, (remote, namespace): Asker<'_>) -> bool {
    offer.namespaces.is_empty()
        || offer.namespaces.iter().any(|allowed| tenant::means(allowed, remote, namespace))
}

fn not_for(offer: &str, namespace: &str) -> String {
    format!("the pipeline ({offer}) is not offered to the namespace ({namespace})")
}

/// Each name once: with two it would be up to the resolver which one counts.
fn unique(params: &[NamedValue]) -> Result<BTreeMap<&str, &str>, String> {
    let mut all = BTreeMap::new();
    for NamedValue { name, value } in params {
        if all.insert(name.as_str(), value.as_str()).is_some() {
            return Err(format!("the resolver parameter {} is given twice", quoted(name)));
        }
    }
    Ok(all)
}

/// What a Kubernetes object may be called.
fn is_object_name(name: &str) -> bool {
    let label = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// The name of a pipeline in a repository: its file without folder and ending.
fn git_name(asked: &BTreeMap<&str, &str>) -> String {
    let path = asked.get("pathInRepo").copied().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    stem.chars().filter(|c| !c.is_control()).take(63).collect()
}
