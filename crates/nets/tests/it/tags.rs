//! The tag service on both wires and on every store.

use std::time::Duration;

use serde_json::json;
use tarbet_nets::plan::tags::Mapping;
use tarbet_nets::tags::{Sharing, Tags, Touched};
use tarbet_nets::values::Values;
use tarbet_nets::wire::tags::kv_store_client::KvStoreClient;
use tarbet_nets::wire::tags::tag_service_client::TagServiceClient;
use tarbet_nets::wire::{seed_tags, tags};
use tarbet_store::Store;
use tarbet_testbed::{Redis, eventually};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::bed;

fn leaf(name: &str, ip: &str) -> Mapping {
    Mapping { name: name.into(), uri: Some(format!("uri/{name}")), ip: Some(ip.into()), ..Mapping::default() }
}

fn group(name: &str, children: &[&str]) -> Mapping {
    let child_tags = children.iter().map(ToString::to_string).collect();
    Mapping { name: name.into(), child_tags, ..Mapping::default() }
}

/// Every call of today's wire, against whatever store.
async fn speaks_today(store: &Store, sharing: Sharing) {
    let tags = Tags::open(store, sharing).await.unwrap();
    let listening = bed::serve(Routes::new(tags.today())).await;
    let mut client = TagServiceClient::connect(listening.url()).await.unwrap();
    let mapping = |mapping: Mapping| tags::SetTagRequest { tag: Some(mapping.into()) };
    client.set_tag(mapping(leaf("default.gcp.vm1", "10.0.0.1"))).await.unwrap();
    client.set_tag(mapping(leaf("default.azure.vm2", "10.1.0.1"))).await.unwrap();
    client.set_tag(mapping(group("web", &["default.gcp.vm1", "10.9.0.0/16"]))).await.unwrap();
    client.set_tag(mapping(group("all", &["web", "default.azure.vm2", "default.gcp.vm1"]))).await.unwrap();

    let circle = client.set_tag(mapping(group("web", &["all"]))).await.unwrap_err();
    assert_eq!(circle.code(), tonic::Code::FailedPrecondition, "{circle}");
    let missing = client.set_tag(tags::SetTagRequest { tag: None }).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::InvalidArgument, "{missing}");

    let request = || tags::GetTagRequest { tag_name: "web".into() };
    let web = client.get_tag(request()).await.unwrap().into_inner().tag.unwrap();
    assert_eq!(web.child_tags, ["10.9.0.0/16", "default.gcp.vm1"]);
    let unknown = client
        .get_tag(tags::GetTagRequest { tag_name: "no".into() })
        .await
        .unwrap()
        .into_inner()
        .tag
        .unwrap();
    assert_eq!((unknown.name.as_str(), unknown.child_tags.len(), unknown.uri), ("no", 0, None));

    let resolved = client.resolve_tag(tags::ResolveTagRequest { tag_name: "all".into() }).await.unwrap();
    let mut addresses: Vec<String> =
        resolved.into_inner().tags.into_iter().filter_map(|tag| tag.ip).collect();
    addresses.sort();
    assert_eq!(addresses, ["10.0.0.1", "10.1.0.1", "10.9.0.0/16"]);
    let list = client.list_tags(tags::ListTagsRequest {}).await.unwrap().into_inner().tags;
    let names: Vec<&str> = list.iter().map(|tag| tag.name.as_str()).collect();
    assert_eq!(names, ["all", "default.azure.vm2", "default.gcp.vm1", "web"]);

    let subscription =
        |tag: &str| tags::Subscription { tag_name: tag.into(), subscriber: "default>gcp>uri/x".into() };
    client.subscribe(tags::SubscribeRequest { subscription: Some(subscription("web")) }).await.unwrap();
    client.subscribe(tags::SubscribeRequest { subscription: Some(subscription("all")) }).await.unwrap();
    let subscribers = || tags::GetSubscribersRequest { tag_name: "web".into() };
    assert_eq!(
        client.get_subscribers(subscribers()).await.unwrap().into_inner().subscribers,
        ["default>gcp>uri/x"]
    );
    client.unsubscribe(tags::UnsubscribeRequest { subscription: Some(subscription("web")) }).await.unwrap();
    assert!(client.get_subscribers(subscribers()).await.unwrap().into_inner().subscribers.is_empty());

    let member =
        |child: &str| tags::DeleteTagMemberRequest { parent_tag: "web".into(), child_tag: child.into() };
    client.delete_tag_member(member("10.9.0.0/16")).await.unwrap();
    client.delete_tag_member(member("10.9.0.0/16")).await.expect("a member that is none is as wanted");
    client.subscribe(tags::SubscribeRequest { subscription: Some(subscription("web")) }).await.unwrap();
    for why in ["it goes", "what is not there is as wanted"] {
        client.delete_tag(tags::DeleteTagRequest { tag_name: "web".into() }).await.expect(why);
    }
    let all = client
        .get_tag(tags::GetTagRequest { tag_name: "all".into() })
        .await
        .unwrap()
        .into_inner()
        .tag
        .unwrap();
    assert_eq!(all.child_tags, ["default.azure.vm2", "default.gcp.vm1"], "no dangling member");
    // The original's orchestrator asks who followed a tag after it has removed it.
    let followers = client.get_subscribers(subscribers()).await.unwrap().into_inner().subscribers;
    assert_eq!(followers, ["default>gcp>uri/x"]);

    // And it reads both halves of a leaf unasked.
    let half = Mapping { uri: None, ..leaf("half", "10.7.0.1") };
    client.set_tag(mapping(half)).await.unwrap();
    let half =
        client.get_tag(tags::GetTagRequest { tag_name: "half".into() }).await.unwrap().into_inner().tag;
    assert_eq!(half.map(|tag| (tag.uri, tag.ip)), Some((Some(String::new()), Some("10.7.0.1".into()))));
    client.set_tag(mapping(group("halves", &["half", "10.7.0.2"]))).await.unwrap();
    let resolved = client.resolve_tag(tags::ResolveTagRequest { tag_name: "halves".into() }).await.unwrap();
    let uris: Vec<Option<String>> = resolved.into_inner().tags.into_iter().map(|tag| tag.uri).collect();
    assert_eq!(uris, [None, Some(String::new())], "an address stands for itself");

    // Another process finds exactly this.
    let again = Tags::open(store, sharing).await.unwrap();
    assert_eq!(again.list(), tags.list());
    assert_eq!(again.subscribers("all"), ["default>gcp>uri/x"]);
}

#[tokio::test]
async fn today_in_memory() {
    speaks_today(&bed::memory().await, Sharing::Alone).await;
}

#[tokio::test]
async fn today_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    speaks_today(&bed::redb(&folder).await, Sharing::Alone).await;
}

#[tokio::test]
async fn today_in_redis() {
    let redis = Redis::start().await.unwrap();
    speaks_today(&bed::redis(&redis).await, Sharing::Shared).await;
}

#[tokio::test]
async fn the_first_generation_speaks_to_the_same_tags() {
    let tags = Tags::open(&bed::memory().await, Sharing::Alone).await.unwrap();
    let listening = bed::serve(Routes::new(tags.seed())).await;
    let mut client = seed_tags::tag_service_client::TagServiceClient::connect(listening.url()).await.unwrap();
    let tag = |name: &str| seed_tags::Tag { tag_name: name.into() };
    let answer =
        client.set_tag(seed_tags::TagMapping::from(leaf("a", "10.0.0.1"))).await.unwrap().into_inner();
    assert!(answer.success, "{answer:?}");
    client.set_tag(seed_tags::TagMapping::from(group("g", &["a", "10.0.0.9"]))).await.unwrap();
    assert_eq!(client.get_tag(tag("a")).await.unwrap().into_inner().ip.as_deref(), Some("10.0.0.1"));
    let half = Mapping { ip: None, ..leaf("half", "") };
    client.set_tag(seed_tags::TagMapping::from(half)).await.unwrap();
    assert_eq!(client.get_tag(tag("half")).await.unwrap().into_inner().ip.as_deref(), Some(""));
    let mappings = client.resolve_tag(tag("g")).await.unwrap().into_inner().mappings;
    assert_eq!(mappings.len(), 2);
    let subscription = || seed_tags::Subscription { tag_name: "g".into(), subscriber: "s".into() };
    client.subscribe(subscription()).await.unwrap();
    assert_eq!(client.get_subscribers(tag("g")).await.unwrap().into_inner().subscribers, ["s"]);
    client.unsubscribe(subscription()).await.unwrap();
    client.delete_tag_member(seed_tags::TagMapping::from(group("g", &["10.0.0.9"]))).await.unwrap();
    assert_eq!(tags.get("g").unwrap().child_tags, ["a"]);
    for why in ["it goes", "what is not there is as wanted"] {
        client.delete_tag(tag("g")).await.expect(why);
    }
    assert!(!tags.exists("g") && tags.exists("a"));
}

async fn forgets_who_followed_what_is_deleted(store: Store, sharing: Sharing) {
    let kept = Duration::from_hours(1);
    let tags = Tags::open_keeping(&store, sharing, kept).await.unwrap();
    for tag in ["g", "h"] {
        tags.set(&group(tag, &["10.0.0.1"])).await.unwrap();
        tags.subscribe(tag, "s").await.unwrap();
        tags.delete(tag).await.unwrap();
        assert_eq!(tags.subscribers(tag), ["s"], "the original's orchestrator asks only now");
    }
    // Whoever is told that they were told forgets them at once; a tag that is set again has its own again.
    tags.forget_subscribers("h").await.unwrap();
    tags.set(&group("g", &["10.0.0.2"])).await.unwrap();
    tags.forget_subscribers("g").await.unwrap();
    for tags in [&tags, &Tags::open_keeping(&store, sharing, kept).await.unwrap()] {
        assert_eq!((tags.subscribers("g"), tags.subscribers("h")), (vec!["s".to_owned()], vec![]));
    }
    // Their time is over, here and for whoever reads the store later.
    let tags = Tags::open_keeping(&store, sharing, Duration::from_millis(1)).await.unwrap();
    tags.delete("g").await.unwrap();
    eventually(Duration::from_secs(30), "nobody follows it", || async { tags.subscribers("g").is_empty() })
        .await
        .unwrap();
    tags.set(&group("g", &["10.0.0.3"])).await.unwrap();
    assert!(tags.subscribers("g").is_empty(), "and it stays so");
    let again = Tags::open(&store, sharing).await.unwrap();
    assert!(again.subscribers("g").is_empty() && again.affected("g").is_empty());
}

#[tokio::test]
async fn who_followed_a_tag_that_is_deleted_is_known_for_a_while() {
    forgets_who_followed_what_is_deleted(bed::memory().await, Sharing::Alone).await;
    let folder = tempfile::tempdir().unwrap();
    forgets_who_followed_what_is_deleted(bed::redb(&folder).await, Sharing::Alone).await;
    let redis = Redis::start().await.unwrap();
    forgets_who_followed_what_is_deleted(bed::redis(&redis).await, Sharing::Shared).await;
}

#[tokio::test]
async fn two_services_on_one_redis_agree() {
    let redis = Redis::start().await.unwrap();
    let one = Tags::open(&bed::redis(&redis).await, Sharing::Shared).await.unwrap();
    let two = Tags::open(&bed::redis(&redis).await, Sharing::Shared).await.unwrap();
    let stop = CancellationToken::new();
    for tags in [&one, &two] {
        let (tags, stop) = (tags.clone(), stop.clone());
        tokio::spawn(async move { tags.follow(stop).await });
    }
    one.set(&leaf("a", "10.0.0.1")).await.unwrap();
    eventually(Duration::from_mins(1), "the other service hears of it", || async { two.exists("a") })
        .await
        .unwrap();

    // Both write at once, into the same group: nothing is lost and no circle slips through.
    let writes = 20 * bed::effort();
    let half = |tags: Tags, side: &'static str| async move {
        for index in 0..writes {
            tags.set(&group("g", &[&format!("{side}{index}")])).await.unwrap();
        }
    };
    tokio::join!(half(one.clone(), "x"), half(two.clone(), "y"));
    eventually(Duration::from_mins(1), "both see all members", || async {
        let counts = [&one, &two].map(|tags| tags.get("g").unwrap().child_tags.len());
        if counts == [2 * writes; 2] { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await
    .unwrap();
    let (up, down) = (group("top", &["bottom"]), group("bottom", &["top"]));
    let (first, second) = tokio::join!(one.set(&up), two.set(&down));
    assert!(first.is_ok() != second.is_ok(), "exactly one side of the circle: {first:?} {second:?}");
    stop.cancel();
}

#[tokio::test]
async fn a_service_that_was_away_reads_everything_again() {
    let redis = Redis::start().await.unwrap();
    let one = Tags::open(&bed::redis(&redis).await, Sharing::Shared).await.unwrap();
    one.set(&leaf("old", "10.0.0.1")).await.unwrap();
    redis.flush().await.unwrap();
    let two = Tags::open(&bed::redis(&redis).await, Sharing::Shared).await.unwrap();
    two.set(&leaf("new", "10.0.0.2")).await.unwrap();
    one.set(&leaf("third", "10.0.0.3")).await.unwrap();
    assert!(one.exists("new") && one.exists("third"));
    two.refresh().await.unwrap();
    assert!(two.exists("third"));
}

#[tokio::test]
async fn a_service_that_missed_changes_reads_only_those() {
    let redis = Redis::start().await.unwrap();
    let store = bed::redis(&redis).await;
    let one = Tags::open(&store, Sharing::Shared).await.unwrap();
    let two = Tags::open(&bed::redis(&redis).await, Sharing::Shared).await.unwrap();
    let (mut known, long) = (0, "x".repeat(900));
    // Fewer than go into a row of the log, more, and so much that each needs one.
    for (missed, uri) in [(1, "u"), (3, "u"), (5, "u"), (30, "u"), (7, long.as_str()), (1, "u")] {
        let names: Vec<String> = (known..known + missed).map(|number| format!("leaf-{number}")).collect();
        for name in &names {
            one.set(&Mapping { uri: Some(uri.repeat(6)), ..leaf(name, "10.0.0.1") }).await.unwrap();
        }
        two.refresh().await.unwrap();
        assert_eq!(two.heard().await, Touched::Tags(names.into_iter().collect()));
        known += missed;
        assert_eq!(two.list(), one.list());
    }
    let third = Tags::open(&store, Sharing::Shared).await.unwrap();
    two.set(&leaf("last", "10.0.0.2")).await.unwrap();
    for tags in [&one, &third] {
        tags.refresh().await.unwrap();
        assert_eq!(tags.heard().await, Touched::Tags(["last".to_owned()].into()));
    }
}

#[tokio::test]
async fn a_service_of_an_earlier_version_beside_it_costs_time_and_nothing_else() {
    let redis = Redis::start().await.unwrap();
    let store = bed::redis(&redis).await;
    let tags = Tags::open(&store, Sharing::Shared).await.unwrap();
    tags.set(&leaf("ours", "10.0.0.1")).await.unwrap();
    // What it writes for a change: the tag, a counter without what led to it, and a row in a log of its own.
    let row = |table: &str, key: &[u8]| tarbet_store::TableName::new(table).unwrap().key(key.to_vec());
    let counter = store.list(&tarbet_store::TableName::new("tag-counter").unwrap().prefix("")).await.unwrap();
    let theirs = json!({ "v": 1, "kind": "tag", "body": { "uri": "u", "ip": "10.0.0.2" } });
    let two = json!({ "v": 1, "kind": "counter", "body": { "number": 2 } });
    let commit = tarbet_store::Commit::new()
        .at(counter[0].key.clone(), counter[0].revision)
        .put(row("tags", b"theirs"), theirs.to_string())
        .put(counter[0].key.clone(), two.to_string());
    store.commit(commit).await.unwrap();
    tags.set(&leaf("third", "10.0.0.3")).await.unwrap();
    assert_eq!(tags.heard().await, Touched::Everything);
    assert!(tags.exists("theirs") && tags.exists("ours") && tags.exists("third"));
    let again = Tags::open(&store, Sharing::Shared).await.unwrap();
    assert_eq!(again.list(), tags.list());
}

#[tokio::test]
async fn many_tags_and_large_groups() {
    let count = 20_000 * bed::effort();
    let folder = tempfile::tempdir().unwrap();
    {
        let store = bed::redb(&folder).await;
        let tags = Tags::open(&store, Sharing::Alone).await.unwrap();
        let children: Vec<String> = (0..count).map(|index| format!("default.local.vm{index}")).collect();
        let all = Mapping { name: "all".into(), child_tags: children, ..Mapping::default() };
        assert!(tags.set(&all).await.unwrap().changed);
        for index in 0..100 {
            tags.set(&leaf(&format!("default.local.vm{index}"), &format!("10.0.0.{index}"))).await.unwrap();
        }
        assert_eq!(tags.addresses("all").len(), 100);
    }
    let store = bed::redb(&folder).await;
    let tags = Tags::open(&store, Sharing::Alone).await.unwrap();
    assert_eq!((tags.len(), tags.get("all").unwrap().child_tags.len()), (101, count));
    tags.delete("all").await.unwrap();
    assert_eq!(Tags::open(&store, Sharing::Alone).await.unwrap().len(), 100);
}

const GROUP: usize = 100;

/// A million tags at the effort of `make verify`.
fn very_many_groups() -> usize {
    if bed::effort() > 1 { 1000 * bed::effort() } else { 200 }
}

fn member(group: usize, member: usize) -> Mapping {
    let ip = std::net::Ipv4Addr::from(0x0a00_0000 + (group * GROUP + member) as u32);
    leaf(&format!("default.local.m{group}-{member}"), &ip.to_string())
}

/// Groups of a hundred, and one of all of them that somebody follows.
async fn fill(tags: &Tags, groups: usize) {
    for number in 0..groups {
        let members: Vec<Mapping> = (1..GROUP).map(|index| member(number, index)).collect();
        for member in &members {
            tags.set(member).await.unwrap();
        }
        let child_tags = members.into_iter().map(|member| member.name).collect();
        tags.set(&Mapping { name: format!("g{number}"), child_tags, ..Mapping::default() }).await.unwrap();
    }
    let top: Vec<String> = (0..groups).map(|number| format!("g{number}")).collect();
    tags.set(&Mapping { name: "top".into(), child_tags: top, ..Mapping::default() }).await.unwrap();
    tags.subscribe("top", "default>local>x").await.unwrap();
}

fn has_all(tags: &Tags, groups: usize) {
    assert_eq!(tags.len(), groups * GROUP + 1);
    let last = groups - 1;
    let mut wanted: Vec<String> = (1..GROUP).filter_map(|index| member(last, index).ip).collect();
    let mut found = tags.addresses(&format!("g{last}"));
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
    assert_eq!(tags.resolve("top").len(), groups * (GROUP - 1));
    assert_eq!(tags.affected(&member(0, 1).name).len(), 1, "who follows the top hears of the least of it");
}

#[tokio::test]
async fn a_group_resolves_to_its_own_members_among_very_many_tags() {
    let (store, groups) = (bed::memory().await, very_many_groups());
    let tags = Tags::open(&store, Sharing::Alone).await.unwrap();
    fill(&tags, groups).await;
    has_all(&tags, groups);
    has_all(&Tags::open(&store, Sharing::Alone).await.unwrap(), groups);
    tarbet_testbed::verified("a tag among very many, each by its name and within its group", tags.len());
}

#[tokio::test]
async fn very_many_tags_are_kept_in_a_file() {
    let (folder, groups) = (tempfile::tempdir().unwrap(), very_many_groups());
    {
        let tags = Tags::open(&bed::redb(&folder).await, Sharing::Alone).await.unwrap();
        fill(&tags, groups).await;
        has_all(&tags, groups);
    }
    let store = bed::redb(&folder).await;
    let tags = Tags::open(&store, Sharing::Alone).await.unwrap();
    has_all(&tags, groups);
    // One more change among all of them, and another life.
    tags.delete("g0").await.unwrap();
    tags.set(&Mapping { ip: Some("192.0.2.1".into()), ..member(0, 1) }).await.unwrap();
    drop((tags, store));
    let tags = Tags::open(&bed::redb(&folder).await, Sharing::Alone).await.unwrap();
    assert_eq!(tags.addresses(&member(0, 1).name), ["192.0.2.1"]);
    assert_eq!(tags.resolve("top").len(), (groups - 1) * (GROUP - 1));
    tarbet_testbed::verified("a tag among very many in a file that is opened again", tags.len());
}

#[tokio::test]
async fn values_by_namespace_cloud_and_key() {
    let values = Values::new(&bed::memory().await).unwrap();
    let listening = bed::serve(Routes::new(values.service())).await;
    let mut client = KvStoreClient::connect(listening.url()).await.unwrap();
    let set = |namespace: &str| tags::SetRequest {
        key: "k".into(),
        value: format!("of {namespace}"),
        cloud: "ibm".into(),
        namespace: namespace.into(),
    };
    let get = |namespace: &str| tags::GetRequest {
        key: "k".into(),
        cloud: "ibm".into(),
        namespace: namespace.into(),
    };
    client.set(set("a")).await.unwrap();
    client.set(set("b")).await.unwrap();
    assert_eq!(client.get(get("a")).await.unwrap().into_inner().value, "of a");
    let delete = tags::DeleteRequest { key: "k".into(), cloud: "ibm".into(), namespace: "a".into() };
    client.delete(delete).await.unwrap();
    let missing = client.get(get("a")).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::NotFound);
    assert!(
        missing.message().contains("redis: nil"),
        "the words that the original's plugins look for: {missing}"
    );
    assert_eq!(client.get(get("b")).await.unwrap().into_inner().value, "of b");
}
