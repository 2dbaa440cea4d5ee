//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use prost::Message as _;

use crate::cloud::{NewConnections, NewGateway, NewResource, addresses_from, space_from};
use crate::clouds::{aws, azure, gcp, ibm, rest};
use crate::model::{Created, Mapping, ResourceTag, Rule, Subscriber};
use crate::orchestrator;
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

/// An answer in JSON of the other clouds.
pub fn clouds(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let body: serde_json::Value = serde_json::from_slice(data).unwrap_or_default();
    for read in [azure::read_answer, gcp::read_answer, ibm::read_answer] {
        read(&mut body.clone());
    }
    rest::read_answer(&text, body);
}

/// What people say of a machine to be made, in the words of each cloud.
pub fn descriptions(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for read in [aws::read_description, azure::read_description, gcp::read_description, ibm::read_description]
    {
        read(&text);
    }
}

/// The bodies of REST, of both generations.
pub fn bodies(data: &[u8]) {
    orchestrator::read_any_body(data);
}

/// The messages of gRPC between orchestrator and plugins, of both generations.
pub fn messages(data: &[u8]) {
    if let Ok(given) = paraglider::CreateResourceRequest::decode(data) {
        drop(NewResource::try_from(given));
    }
    if let Ok(given) = paraglider::CreateResourceResponse::decode(data) {
        drop(Created::from(given));
    }
    if let Ok(given) = paraglider::CreateVpnGatewayRequest::decode(data)
        && let Ok(read) = NewGateway::try_from(given)
    {
        let again = paraglider::CreateVpnGatewayRequest::from(read.clone());
        assert_eq!(
            NewGateway::try_from(again).ok().as_ref(),
            Some(&read),
            "what was read is written the same"
        );
    }
    if let Ok(given) = paraglider::CreateVpnConnectionsRequest::decode(data) {
        drop(NewConnections::try_from(given));
    }
    if let Ok(given) = paraglider::GetUsedAddressSpacesResponse::decode(data) {
        for mapping in given.address_space_mappings {
            drop(Mapping::try_from(mapping));
        }
    }
    if let Ok(given) = paraglider::FindUnusedAddressSpacesResponse::decode(data) {
        for text in &given.address_spaces {
            drop(space_from("address_spaces", text));
        }
    }
    if let Ok(given) = paraglider::GetUsedBgpPeeringIpAddressesResponse::decode(data) {
        drop(addresses_from("ip_addresses", &given.ip_addresses));
    }
    if let Ok(given) = paraglider::GetPermitListResponse::decode(data) {
        judge(given.rules.into_iter().map(Rule::from).collect());
    }
}
