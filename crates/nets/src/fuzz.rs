//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use prost::Message as _;

use crate::clouds::aws;
use crate::model::{ResourceTag, Rule, Subscriber};
use crate::plan::rule;
use crate::wire::{invisinets, paraglider, seed_tags, tags};

/// Rules as they come by REST and by gRPC of both generations.
pub fn rules(data: &[u8]) {
    if let Ok(rules) = serde_json::from_slice(data) {
        judge(rules);
    }
    if let Ok(request) = paraglider::AddPermitListRulesRequest::decode(data) {
        judge(request.rules.into_iter().map(Rule::from).collect());
    }
    if let Ok(list) = invisinets::PermitList::decode(data) {
        judge(list.rules.into_iter().map(Rule::from).collect());
    }
}

fn judge(rules: Vec<Rule>) {
    drop(rule::check_request(&rules));
    drop(rule::check_call(&rules));
    for rule in &rules {
        drop(rule::targets(rule));
        drop(rule::name_of_contents(rule));
    }
}

/// Tags of both generations, and the names in them.
pub fn tags(data: &[u8]) {
    drop(tags::SetTagRequest::decode(data));
    drop(seed_tags::TagMapping::decode(data));
    let text = String::from_utf8_lossy(data);
    drop(rule::tag_name(&text));
    for (read, written) in [
        (ResourceTag::parse(&text).map(|tag| tag.to_string()), &text),
        (Subscriber::parse(&text).map(|subscriber| subscriber.to_string()), &text),
    ] {
        assert!(read.is_none_or(|read| read == *written), "a name that was read is written the same");
    }
}

/// An answer of EC2.
pub fn ec2(data: &[u8]) {
    aws::read_answer(&String::from_utf8_lossy(data));
}
