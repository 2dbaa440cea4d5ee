//! A plugin's whole life, step by step: cut off at every request, and against a cloud in trouble.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tarbet_nets::Error;
use tarbet_nets::cloud::{Cloud, NewResource};
use tarbet_nets::wire::invisinets as seed;
use tarbet_nets::wire::invisinets::cloud_plugin_client::CloudPluginClient;

use super::bed;
use super::sim::{Faults, Sim, Vendor};

/// A stand-in of a cloud, and the steps of a life in it.
pub(crate) trait Life {
    type Cloud: Vendor;
    /// How many steps a life has.
    const STEPS: usize;

    fn sim(&self) -> &Sim<Self::Cloud>;
    /// A plugin that knows nothing of those before it.
    fn plugin(&self) -> impl Cloud;
    /// One step; asked again, it must end the same.
    async fn step(number: usize, plugin: &dyn Cloud) -> Result<(), Error>;
    /// Everything the cloud holds.
    fn state(&self) -> BTreeMap<String, Value>;
}

/// Every state of the cloud between the steps, when nothing goes wrong; and the requests of each step.
async fn undisturbed<L: Life>(world: &L) -> Vec<(BTreeMap<String, Value>, usize)> {
    let plugin = world.plugin();
    let mut states = Vec::new();
    for number in 0..L::STEPS {
        world.sim().faults(Faults::default());
        L::step(number, &plugin).await.unwrap();
        states.push((world.state(), world.sim().seen().len()));
    }
    states
}

/// One life for each number of the cut: each step is cut there, and asked again of another plugin.
pub(crate) async fn is_cut_at_every_request<L: Life>(world: &L) {
    let wanted = undisturbed(world).await;
    assert!(wanted.last().unwrap().0.is_empty(), "nothing is left");
    let mut cuts = 0;
    for at in 0.. {
        let before = cuts;
        for (number, (expected, _)) in wanted.iter().enumerate() {
            world.sim().faults(Faults { cut_at: Some(at), ..Faults::default() });
            let plugin = world.plugin();
            let cut = tokio::select! {
                biased;
                () = world.sim().cut() => true,
                done = L::step(number, &plugin) => { done.unwrap(); false }
            };
            drop(plugin);
            world.sim().faults(Faults::default());
            if cut {
                cuts += 1;
                L::step(number, &world.plugin()).await.unwrap();
            }
            assert_eq!(&world.state(), expected, "step {number} was cut at request {at}");
        }
        if cuts == before {
            break;
        }
    }
    assert!(cuts > 100, "only {cuts} cut points were met");
    world.sim().assert_sound();
    tarbet_testbed::verified(
        "requests to GCP and IBM Cloud at which a plugin is cut off: it ends as wanted",
        cuts,
    );
}

/// Throttling and failures: the same states, with at most three times the requests.
pub(crate) async fn converges_in_trouble<L: Life>(world: &L) {
    let minimal = undisturbed(world).await;
    let mut total = 0;
    for (number, (state, _)) in minimal.iter().enumerate() {
        world.sim().faults(Faults { throttle_every: 3, fail_every: 5, ..Faults::default() });
        L::step(number, &world.plugin()).await.unwrap();
        assert_eq!(&world.state(), state, "step {number}");
        total += world.sim().seen().len();
    }
    let least: usize = minimal.iter().map(|(_, requests)| requests).sum();
    assert!(total <= 3 * least, "{total} requests where {least} suffice");
    world.sim().assert_sound();
}

/// A resource, under the id its users write, and its permit list as the first generation's orchestrator asks
/// for them.
pub(crate) async fn speaks_the_first_generation(
    plugin: impl Cloud,
    name: &str,
    id: &str,
    new: NewResource,
    target: &str,
) {
    let listening = bed::serve(tarbet_nets::cloud::serve(Arc::new(plugin), name)).await;
    let mut client = CloudPluginClient::connect(listening.url()).await.unwrap();
    let NewResource { deployment, name, description } = new;
    let namespace = deployment.namespace.clone();
    let made = client
        .create_resource(seed::ResourceDescription {
            id: id.into(),
            description: description.into_bytes(),
            namespace: namespace.clone(),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(made.name, name);
    let place = seed::InvisinetsDeployment { id: deployment.id, namespace: namespace.clone() };
    let used = client.get_used_address_spaces(place).await.unwrap().into_inner().address_spaces;
    let ip: std::net::IpAddr = made.ip.parse().unwrap();
    let holds = |space: &String| space.parse::<ipnet::IpNet>().unwrap().contains(&ip);
    assert!(used.iter().any(holds), "{ip} is in none of {used:?}");

    let rule = seed::PermitListRule {
        id: "web".into(),
        targets: vec![target.into()],
        direction: seed::Direction::Inbound.into(),
        src_port: -1,
        dst_port: 443,
        protocol: 6,
        tags: vec!["clients".into()],
    };
    let list = |rules: Vec<seed::PermitListRule>, namespace: &str| seed::PermitList {
        associated_resource: made.uri.clone(),
        rules,
        namespace: namespace.into(),
    };
    let ask = || seed::ResourceId { id: made.uri.clone(), namespace: namespace.clone() };
    let added =
        client.add_permit_list_rules(list(vec![rule.clone()], &namespace)).await.unwrap().into_inner();
    assert!(added.success, "{added:?}");
    assert_eq!(added.updated_resource.unwrap().id, made.uri);
    let found = client.get_permit_list(ask()).await.unwrap().into_inner().rules;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0].id, &found[0].tags, found[0].dst_port), (&rule.id, &rule.tags, 443));
    let foreign = client.add_permit_list_rules(list(vec![rule.clone()], "nobody")).await.unwrap_err();
    assert!(
        matches!(foreign.code(), tonic::Code::PermissionDenied | tonic::Code::NotFound),
        "another namespace is refused: {foreign}"
    );
    // Rules need neither an id nor tags; the same again is the same, and is found without an id.
    let bare = seed::PermitListRule { id: String::new(), tags: vec![], dst_port: 80, ..rule.clone() };
    for twice in [vec![bare.clone()], vec![bare.clone(), bare.clone()]] {
        client.add_permit_list_rules(list(twice, &namespace)).await.unwrap();
        let found = client.get_permit_list(ask()).await.unwrap().into_inner().rules;
        let of: Vec<_> = found.iter().filter(|rule| rule.dst_port == 80).collect();
        assert!(of.len() == 1 && !of[0].id.is_empty() && of[0].tags.is_empty(), "{found:?}");
    }
    client.delete_permit_list_rules(list(vec![bare.clone()], &namespace)).await.unwrap();
    let nonsense = seed::PermitListRule { targets: vec!["nowhere".into()], ..bare };
    let refused = client.add_permit_list_rules(list(vec![nonsense], &namespace)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");

    // The two halves of `--ssh`.
    let ssh_in = seed::PermitListRule { id: "ssh-in-x".into(), dst_port: 22, ..rule.clone() };
    let ssh_out = seed::PermitListRule {
        id: "ssh-out-x".into(),
        direction: seed::Direction::Outbound.into(),
        src_port: 22,
        dst_port: -1,
        ..rule.clone()
    };
    client.add_permit_list_rules(list(vec![ssh_in, ssh_out], &namespace)).await.unwrap();
    let mut found: Vec<_> = client.get_permit_list(ask()).await.unwrap().into_inner().rules;
    found.sort_by(|a, b| a.id.cmp(&b.id));
    let ports: Vec<_> = found.iter().map(|rule| (rule.id.as_str(), rule.src_port, rule.dst_port)).collect();
    assert_eq!(ports, [("ssh-in-x", -1, 22), ("ssh-out-x", 22, -1), ("web", -1, 443)]);

    let deleted = client.delete_permit_list_rules(list(found, &namespace)).await.unwrap().into_inner();
    assert!(deleted.success, "{deleted:?}");
    assert!(client.get_permit_list(ask()).await.unwrap().into_inner().rules.is_empty());
}
