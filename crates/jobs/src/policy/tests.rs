use super::*;
use crate::crd::{OfferedParam, OfferedResolver, PipelineForm, ResolverParam};
use proptest::prelude::*;

fn config() -> InternalServicesConfigSpec {
    InternalServicesConfigSpec { allow_list: vec!["team-a".into(), "team-b".into()], ..Default::default() }
}

fn request(name: &str) -> InternalRequestSpec {
    InternalRequestSpec { request: Some(name.into()), ..Default::default() }
}

fn resolver(name: &str, params: &[(&str, &str)]) -> InternalRequestSpec {
    let params =
        params.iter().map(|&(name, value)| NamedValue { name: name.into(), value: value.into() }).collect();
    let pipeline_ref = PipelineRef { resolver: name.into(), params };
    InternalRequestSpec {
        pipeline: Some(PipelineForm { pipeline_ref, ..Default::default() }),
        ..Default::default()
    }
}

fn refused(spec: &InternalRequestSpec, config: &InternalServicesConfigSpec) -> String {
    judge("public", "team-a", spec, config).unwrap_err()
}

#[test]
fn a_namespace_that_is_not_listed_is_told_so_in_the_words_callers_know() {
    let message = judge("public", "stranger", &request("build"), &config()).unwrap_err();
    assert_eq!(message, "the internal request namespace (stranger) is not in the allow list");
    let nobody = InternalServicesConfigSpec::default();
    assert!(judge("public", "team-a", &request("build"), &nobody).is_err(), "an empty list allows nobody");
}

#[test]
fn an_entry_may_mean_the_namespace_of_one_remote_only() {
    let offer = |namespaces: &[&str]| Offer {
        pipeline: "build".into(),
        namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
        ..Offer::default()
    };
    let mut config = InternalServicesConfigSpec {
        allow_list: vec!["east/team-a".into(), "team-b".into()],
        ..InternalServicesConfigSpec::default()
    };
    let asks = |config: &InternalServicesConfigSpec, remote: &str, namespace: &str| {
        judge(remote, namespace, &request("build"), config)
    };
    assert!(asks(&config, "east", "team-a").is_ok());
    let refused = asks(&config, "west", "team-a").unwrap_err();
    assert_eq!(refused, "the internal request namespace (team-a) is not in the allow list");
    assert!(asks(&config, "west", "team-b").is_ok() && asks(&config, "east", "east/team-a").is_err());
    config.offers = vec![offer(&["east/team-b"])];
    assert!(asks(&config, "east", "team-b").is_ok());
    let refused = asks(&config, "west", "team-b").unwrap_err();
    assert_eq!(refused, "the pipeline (build) is not offered to the namespace (team-b)");
}

#[test]
fn without_offers_pipelines_of_our_namespace_run_and_nothing_else() {
    let order = judge("public", "team-a", &request("build"), &config()).unwrap();
    assert_eq!(order.source, PipelineSource::Local { name: "build".into(), resolver: false });
    let escape = [("name", "build"), ("namespace", "kube-system"), ("kind", "task")];
    let order = judge("public", "team-a", &resolver("cluster", &escape), &config()).unwrap();
    assert_eq!(order.source, PipelineSource::Local { name: "build".into(), resolver: true });
    for other in ["git", "bundles", "http", "hub", "Cluster", "", "git "] {
        let message = refused(&resolver(other, &[("url", "x")]), &config());
        assert!(message.contains("not allowed") && message.contains("offer"), "{other}: {message}");
    }
}

#[test]
fn git_runs_from_the_listed_repositories_only() {
    let mut config = config();
    config.allowed_git_resolver_urls = vec!["https://a/x.git".into(), "https://b/y".into()];
    let good = [("url", "https://b/y"), ("revision", "main"), ("pathInRepo", "p/sign-image.yaml")];
    assert_eq!(judge("public", "team-a", &resolver("git", &good), &config).unwrap().offer, "sign-image");
    let message = refused(&resolver("git", &[("url", "https://c/z")]), &config);
    assert_eq!(
        message,
        "the pipeline git resolver URL (https://c/z) is not in the allowed list: [https://a/x.git https://b/y]"
    );
    let message = refused(&resolver("git", &[]), &config);
    assert!(message.contains("URL () is not in the allowed list"), "{message}");
    for more in [("org", "evil"), ("repo", "evil"), ("token", "secret"), ("serverURL", "https://evil")] {
        assert!(refused(&resolver("git", &[("url", "https://b/y"), more]), &config).contains("not allowed"));
    }
    let twice = [("url", "https://b/y"), ("url", "https://evil")];
    assert!(refused(&resolver("git", &twice), &config).contains("given twice"));
}

fn offer() -> Offer {
    Offer {
        pipeline: "sign".into(),
        namespaces: vec!["team-a".into()],
        params: Some(vec![
            OfferedParam {
                name: "image".into(),
                pattern: Some("[a-z./]+@sha256:[0-9a-f]{4}".into()),
                required: true,
            },
            OfferedParam { name: "note".into(), ..Default::default() },
        ]),
        service_account: Some("signer".into()),
        concurrency: Some(2),
        deadline: Some("1h".into()),
        ..Default::default()
    }
}

fn sign(params: &[(&str, &str)]) -> InternalRequestSpec {
    let params = params.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    InternalRequestSpec { params: Some(params), ..request("sign") }
}

#[test]
fn an_offer_pins_who_what_and_as_whom() {
    let config = InternalServicesConfigSpec { offers: vec![offer()], ..config() };
    let image = ("image", "quay.io/a@sha256:00ff");
    let order = judge("public", "team-a", &sign(&[image]), &config).unwrap();
    assert_eq!((order.limit, order.service_account.as_deref()), (Some(2), Some("signer")));
    assert_eq!(order.timeouts.pipeline.as_deref(), Some("1h0m0s"));

    assert!(
        judge("public", "team-b", &sign(&[image]), &config)
            .unwrap_err()
            .contains("not offered to the namespace (team-b)")
    );
    assert!(refused(&sign(&[]), &config).contains("needs the parameter \"image\""));
    assert!(refused(&sign(&[image, ("other", "")]), &config).contains("takes no parameter \"other\""));
    for value in ["x", "a@sha256:00ff\n", "\na@sha256:00ff", "a@sha256:00ff0", "A@sha256:00ff"] {
        assert!(refused(&sign(&[("image", value)]), &config).contains("not one the offer"), "{value:?}");
    }
    assert_eq!(refused(&request("build"), &config), "No endpoint to handle 'build' requests");
    let mut spec = sign(&[image]);
    spec.service_account = Some("root".into());
    assert!(refused(&spec, &config).contains("service account (root)"));
    spec.service_account = Some("signer".into());
    assert!(judge("public", "team-a", &spec, &config).is_ok());
}

#[test]
fn a_resolver_is_offered_with_its_parameters_pinned() {
    let pin = |name: &str, value: Option<&str>, pattern: Option<&str>| ResolverParam {
        name: name.into(),
        value: value.map(Into::into),
        pattern: pattern.map(Into::into),
    };
    let resolver_offer = OfferedResolver {
        name: "bundles".into(),
        params: vec![
            pin("bundle", None, Some("quay\\.io/ours/[a-z]+")),
            pin("name", Some("sign"), None),
            pin("kind", Some("pipeline"), None),
        ],
    };
    let offers =
        vec![Offer { pipeline: "bundled".into(), resolver: Some(resolver_offer), ..Default::default() }];
    let config = InternalServicesConfigSpec { offers, ..config() };
    let order =
        judge("public", "team-a", &resolver("bundles", &[("bundle", "quay.io/ours/x")]), &config).unwrap();
    let PipelineSource::Resolver { params, .. } = order.source else { panic!("{order:?}") };
    let params: Vec<_> = params.iter().map(|param| (param.name.as_str(), param.value.as_str())).collect();
    assert_eq!(params, [("bundle", "quay.io/ours/x"), ("name", "sign"), ("kind", "pipeline")]);
    for escape in [
        &[("bundle", "quay.io/theirs/x")][..],
        &[("bundle", "quay.io/ours/x"), ("name", "other")],
        &[("bundle", "quay.io/ours/x"), ("serviceAccount", "root")],
        &[("bundle", "quay.io/ours/x@evil")],
        &[("bundle", "quayXio/ours/x")],
    ] {
        assert!(refused(&resolver("bundles", escape), &config).contains("not offered"), "{escape:?}");
    }
}

#[test]
fn the_second_place_for_parameters_account_and_times_counts_too() {
    let mut spec = resolver("cluster", &[("name", "build")]);
    let form = spec.pipeline.as_mut().unwrap();
    form.params = Some(vec![NamedValue { name: "b".into(), value: "2".into() }]);
    form.timeouts = Some(Timeouts { pipeline: Some("5m".into()), ..Default::default() });
    form.service_account_name = Some("builder".into());
    spec.params = Some([("a".to_owned(), "1".to_owned())].into());
    let config = InternalServicesConfigSpec { allowed_service_accounts: vec!["builder".into()], ..config() };
    let order = judge("public", "team-a", &spec, &config).unwrap();
    assert_eq!(order.params.len(), 2);
    assert_eq!(order.service_account.as_deref(), Some("builder"));
    assert_eq!(order.timeouts.pipeline.as_deref(), Some("5m"));
    spec.params = Some([("b".to_owned(), "3".to_owned())].into());
    assert!(refused(&spec, &config).contains("given twice with different values"));
    spec.params = None;
    spec.service_account = Some("other".into());
    assert!(refused(&spec, &config).contains("differ"));
}

#[test]
fn times_that_are_none_are_refused_and_deadlines_hold() {
    let with = |pipeline: &str, tasks: Option<&str>| InternalRequestSpec {
        timeouts: Some(Timeouts {
            pipeline: Some(pipeline.into()),
            tasks: tasks.map(Into::into),
            finally: None,
        }),
        ..sign(&[("image", "a@sha256:00ff")])
    };
    assert!(
        refused(&InternalRequestSpec { timeouts: with("abc", None).timeouts, ..request("build") }, &config())
            .contains("spec.timeouts.pipeline \"abc\" is not a duration")
    );
    let config = InternalServicesConfigSpec { offers: vec![offer()], ..config() };
    for (pipeline, tasks, expected) in [
        ("30m", None, ("30m", None)),
        ("0", None, ("1h0m0s", None)),
        ("2h", Some("90m"), ("1h0m0s", Some("1h0m0s"))),
        ("30m", Some("0"), ("30m0s", Some("30m0s"))),
    ] {
        let times = judge("public", "team-a", &with(pipeline, tasks), &config).unwrap().timeouts;
        assert_eq!(
            (times.pipeline.as_deref().unwrap(), times.tasks.as_deref()),
            expected,
            "{pipeline} {tasks:?}"
        );
    }
}

#[test]
fn a_request_that_says_nothing_or_too_much_is_refused() {
    assert!(refused(&InternalRequestSpec::default(), &config()).contains("neither"));
    assert!(
        refused(&InternalRequestSpec { request: Some(String::new()), ..Default::default() }, &config())
            .contains("neither")
    );
    let mut both = resolver("cluster", &[("name", "x")]);
    both.request = Some("x".into());
    assert!(refused(&both, &config()).contains("both"));
    for name in ["../secrets", "a/b", "A", "a b", "$(x)", "", &"x".repeat(300)] {
        assert!(
            judge("public", "team-a", &resolver("cluster", &[("name", name)]), &config()).is_err(),
            "{name}"
        );
    }
}

proptest! {
    #[test]
    fn whatever_is_asked_only_allowed_namespaces_get_an_order_and_only_of_what_is_offered(
        namespace in "(team-a|team-b|team-c|team-a )",
        name in "(sign|build|[a-z$/. ]{0,8})",
        form in 0..4,
        account in proptest::option::of("(signer|root)"),
    ) {
        let mut spec = match form {
            0 => request(&name),
            1 => resolver("cluster", &[("name", &name)]),
            2 => resolver("git", &[("url", &name)]),
            _ => resolver(&name, &[]),
        };
        spec.service_account = account;
        spec.params = Some([("image".to_owned(), "a@sha256:00ff".to_owned())].into());
        let config = InternalServicesConfigSpec { offers: vec![offer()], ..config() };
        if let Ok(order) = judge("public", &namespace, &spec, &config) {
            prop_assert_eq!(&namespace, "team-a");
            prop_assert_eq!(order.source.local(), Some("sign"));
            prop_assert_eq!(order.service_account.as_deref(), Some("signer"));
        }
    }
}
