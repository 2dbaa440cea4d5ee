//! Parameters arrive as the same bytes or not at all, and no wording gets past the allow lists.

use std::collections::BTreeMap;

use super::rig::Rig;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tarbet_jobs::crd::{InternalRequestSpec, InternalServicesConfigSpec};
use tarbet_jobs::machine::Phase;
use tarbet_jobs::params::refusal;
use tarbet_jobs::policy::{PipelineSource, judge};
use tarbet_testbed::verified;

/// Values that would do harm if anybody between requester and step took them for more than bytes.
pub fn injections() -> Vec<String> {
    let commands =
        ["id", "touch /tmp/pwned", "curl http://127.0.0.1/x|sh", "cat /etc/passwd", "exit 1", "kill -9 1"];
    let shells = [
        "; {}",
        "&& {}",
        "|| {}",
        "| {}",
        "`{}`",
        "\n{}\n",
        "$({})",
        "$(({}))",
        "\"; {}; \"",
        "'; {}; '",
        "${IFS}{}",
        "> /dev/null; {}",
        "<({})",
        "\\\n{}",
        "#\n{}",
        "{}\r\n",
        "&{}&",
        "!{}",
        "(({}))",
        "{{}}",
        "%0a{}",
        "\u{2028}{}",
        "eval {}",
        "$'{}'",
        "x$'\\n'{}",
        "-- {}",
        "--config={}",
        "@{}",
        "~/{}",
        "*?[{}]",
    ];
    let mut values: Vec<String> = shells
        .iter()
        .flat_map(|shell| commands.iter().map(move |command| shell.replace("{}", command)))
        .collect();
    let references = [
        "params.x",
        "params[\"x\"]",
        "params['x']",
        "params.x[*]",
        "tasks.t.results.r",
        "results.r.path",
        "context.pipelineRun.name",
        "context.taskRun.namespace",
        "workspaces.shared.path",
        "steps.s.results.r",
        "inputs.params.x",
        "HOME",
        "PATH",
        "KUBERNETES_SERVICE_HOST",
        "credentials.path",
        "finally.t.status",
        "tasks.status",
        "workspaces.shared.claim",
    ];
    for reference in references {
        values.extend([
            format!("$({reference})"),
            format!("$$({reference})"),
            format!("a$({reference}"),
            format!("$ ({reference})"),
            format!("\\$({reference})"),
            format!("${{{reference}}}"),
        ]);
    }
    let plain = [
        "",
        " ",
        "\t",
        "\n",
        "\r",
        "\r\n",
        "null",
        "true",
        "~",
        "[]",
        "{}",
        "[\"a\",\"b\"]",
        "{\"a\":1}",
        "- a\n- b",
        "a: b",
        "*alias",
        "&anchor x",
        "!!binary x",
        "<<: *x",
        "%YAML 1.1",
        "---\n...",
        "\"",
        "'",
        "\\",
        "\\n",
        "\\u0000",
        "\u{7f}",
        "\u{1b}[31mred",
        "\u{202e}abc",
        "é",
        "日本語",
        "🦀",
        "\u{feff}bom",
        "a\u{300}",
        "0x10",
        "1e309",
        "-0",
        "NaN",
        "\"quoted\"",
        "<script>alert(1)</script>",
        "' OR 1=1 --",
        "../../../etc/passwd",
        "{{ .Values.x }}",
        "{% raw %}",
        "#{7*7}",
        "${7*7}",
        "$",
        "$$",
        "$x",
        "a$",
        "$(",
        "$)",
        "a$$b",
        "%s%n",
        "%00",
        "\0",
        "a\0b",
        "\u{1}\u{2}\u{3}",
        "-n",
        "-e \\x41",
        "--help",
        "=",
        "a=b",
        "key=value\nother=value",
        "\u{85}",
        "\u{a0}",
        "\u{200b}",
        "sha256:00ff",
        "quay.io/a/b:c@sha256:00",
        "$(cat",
        "`",
        "``",
        "$[1+1]",
        "$((1))",
        "\\$(x)",
        "^a$b",
        "price: $5",
    ];
    values.extend(plain.map(str::to_owned));
    values.push("x".repeat(1024));
    values.push("x".repeat(60_000));
    values.push("é".repeat(30_000));
    values.push("x".repeat(1 << 20));
    values.push("\n".repeat(5000));
    values
}

#[tokio::test]
async fn every_value_arrives_byte_for_byte_or_is_refused() {
    let values = injections();
    assert!(values.len() >= 300, "{}", values.len());
    let (refused, passed): (Vec<&String>, Vec<&String>) =
        values.iter().partition(|value| refusal(value).is_some());
    assert!(refused.len() >= 50 && passed.len() >= 200, "{} {}", refused.len(), passed.len());

    let rig = Rig::new("inject").await;
    let controller = rig.start();
    for (index, chunk) in passed.chunks(20).enumerate() {
        let name = format!("passed-{index}");
        let params: BTreeMap<String, &String> =
            chunk.iter().enumerate().map(|(n, value)| (format!("p{n}"), *value)).collect();
        rig.submit(&name, json!({ "request": "build", "params": params })).await;
        let total: usize = chunk.iter().map(|value| value.len()).sum();
        assert!(total < 200_000, "{total}");
        let run = rig.run_of(&name).await;
        let arrived: BTreeMap<String, String> = run.data["spec"]["params"]
            .as_array()
            .unwrap()
            .iter()
            .map(|param| {
                (param["name"].as_str().unwrap().to_owned(), param["value"].as_str().unwrap().to_owned())
            })
            .collect();
        assert!(
            arrived.iter().eq(params.iter().map(|(name, value)| (name, *value)).collect::<Vec<_>>()),
            "{name}"
        );
    }
    let runs = rig.run_count().await;
    let submissions = stream::iter(refused.iter().enumerate()).for_each_concurrent(8, |(index, value)| {
        let rig = &rig;
        async move {
            let name = format!("refused-{index}");
            // What the API server itself does not take is refused as well.
            if rig
                .submit_in(&rig.tenant, &name, json!({ "request": "build", "params": { "p": value } }))
                .await
                .is_ok()
            {
                let message =
                    rig.until(&name, Phase::Rejected).await.status.unwrap().conditions[0].message.clone();
                assert!(message.contains("the value of the parameter \"p\""), "{message}");
            }
        }
    });
    submissions.await;
    assert_eq!(rig.run_count().await, runs, "nothing was started for what was refused");
    verified("parameters that look like code: the same bytes, or refused", values.len());
    controller.stop().await;
}

fn strict() -> InternalServicesConfigSpec {
    serde_json::from_value(json!({
        "allowList": ["team-a", "team-b"],
        "allowedGitResolverURLs": ["https://git.example.com/org/repo.git"],
        "allowedServiceAccounts": ["builder"],
        "offers": [
            { "pipeline": "build", "namespaces": ["team-a"], "params": [{ "name": "tag", "pattern": "v[0-9]+" }], "serviceAccount": "builder" },
            { "pipeline": "bundle", "resolver": { "name": "bundles", "params": [
                { "name": "bundle", "pattern": "quay\\.io/ours/[a-z]+" }, { "name": "name", "value": "sign" }, { "name": "kind", "value": "pipeline" },
            ] } },
        ],
    }))
    .unwrap()
}

fn by_resolver(name: &str, params: &[(&str, &str)]) -> Value {
    let params: Vec<Value> =
        params.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    json!({ "pipeline": { "pipelineRef": { "resolver": name, "params": params } } })
}

/// Requests of `team-a` that try to get what is not offered.
fn escapes() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    let mut add = |namespace: &str, spec: Value| all.push((namespace.to_owned(), spec));
    for namespace in [
        "",
        "team",
        "team-",
        "team-a-x",
        "xteam-a",
        "TEAM-A",
        "Team-a",
        "team_a",
        "team-a ",
        " team-a",
        "team-a\n",
        "team-a\0",
        "team-a/team-b",
        "team-a,team-b",
        "team-b,team-a",
        "*",
        "team-*",
        ".*",
        "team-а",
        "team\u{2010}a",
        "../team-a",
        "team-a.",
        "team-a/../x",
        "default",
        "kube-system",
        "team-c",
        "team-a\u{200b}",
    ] {
        add(namespace, json!({ "request": "build" }));
    }
    for url in [
        "",
        "https://git.example.com/org/repo",
        "https://git.example.com/org/repo.git/",
        "https://git.example.com/org/repo.git ",
        " https://git.example.com/org/repo.git",
        "HTTPS://git.example.com/org/repo.git",
        "https://GIT.example.com/org/repo.git",
        "https://git.example.com/org/REPO.git",
        "http://git.example.com/org/repo.git",
        "git://git.example.com/org/repo.git",
        "ssh://git.example.com/org/repo.git",
        "https://git.example.com:443/org/repo.git",
        "https://user@git.example.com/org/repo.git",
        "https://git.example.com@evil.example/org/repo.git",
        "https://evil.example/https://git.example.com/org/repo.git",
        "https://git.example.com/org/repo.git?x=1",
        "https://git.example.com/org/repo.git#x",
        "https://git.example.com/org/../evil/repo.git",
        "https://git.example.com//org/repo.git",
        "https://git.example.com/org/repo.git\n",
        "https://git.example.com/org/repo.git\0",
        "https://git.example.com.evil.example/org/repo.git",
        "https://git.example.com\\@evil.example/org/repo.git",
        "https://git.example.com/org%2frepo.git",
        "file:///etc",
        "https://git.examp1e.com/org/repo.git",
        "https://gіt.example.com/org/repo.git",
        "https://git.example.com/org/repo.git,https://evil",
        "https://git.example.com/org/repo.git https://evil",
    ] {
        add("team-a", by_resolver("git", &[("url", url), ("revision", "main"), ("pathInRepo", "p.yaml")]));
    }
    let good = ("url", "https://git.example.com/org/repo.git");
    for more in [
        ("url", "https://evil"),
        ("org", "evil"),
        ("repo", "evil"),
        ("scmType", "gitea"),
        ("serverURL", "https://evil"),
        ("token", "secret"),
        ("tokenKey", "key"),
        ("gitToken", "secret"),
        ("gitTokenKey", "key"),
        ("configKey", "other"),
        ("URL", "https://evil"),
        ("", "x"),
        ("cache", "always"),
    ] {
        add("team-a", by_resolver("git", &[good, more]));
        add("team-a", by_resolver("git", &[more, good]));
    }
    for resolver in [
        "http",
        "hub",
        "Git",
        "GIT",
        "git ",
        "bundle",
        "cluster ",
        "Cluster",
        "",
        "custom",
        "git\0",
        "git\n",
        "tekton.dev/git",
    ] {
        add("team-a", by_resolver(resolver, &[good]));
        add("team-a", by_resolver(resolver, &[("name", "build")]));
    }
    for bundle in [
        "quay.io/theirs/x",
        "quay.io/ours/",
        "quay.io/ours/x:tag",
        "quay.io/ours/x@sha256:0",
        "quayXio/ours/x",
        "quay.io/ours/x\n",
        "evil/quay.io/ours/x",
        "quay.io/ours/x/../../theirs/y",
        "quay.io/ours/X",
        "docker://quay.io/ours/x",
    ] {
        add("team-a", by_resolver("bundles", &[("bundle", bundle)]));
    }
    for more in [
        ("name", "other"),
        ("kind", "task"),
        ("serviceAccount", "root"),
        ("secret", "pull"),
        ("Name", "other"),
    ] {
        add("team-a", by_resolver("bundles", &[("bundle", "quay.io/ours/x"), more]));
    }
    for name in [
        "other",
        "Build",
        "build ",
        "build\n",
        "build/../other",
        "kube-system/build",
        "build;other",
        "../build",
        "",
        "build\0",
        "*",
        "bundle",
        "sign",
    ] {
        add("team-a", json!({ "request": name }));
        add("team-a", by_resolver("cluster", &[("name", name)]));
    }
    for account in [
        "root",
        "default",
        "Builder",
        "builder ",
        "builder\n",
        "kube-system/builder",
        "system:serviceaccount:x:builder",
    ] {
        add("team-a", json!({ "request": "build", "serviceAccount": account }));
        let mut inner = by_resolver("cluster", &[("name", "build")]);
        inner["pipeline"]["serviceAccountName"] = json!(account);
        add("team-a", inner);
    }
    for tag in ["", "v", "v1 ", " v1", "v1\n", "\nv1", "v1v", "1", "v1;id", "V1", "v１", "v1\0", "latest"] {
        add("team-a", json!({ "request": "build", "params": { "tag": tag } }));
    }
    add("team-a", json!({ "request": "build", "params": { "other": "v1" } }));
    add("team-b", json!({ "request": "build" }));
    add("team-b", by_resolver("cluster", &[("name", "build")]));
    add(
        "team-a",
        json!({ "request": "build", "pipeline": { "pipelineRef": { "resolver": "git", "params": [] } } }),
    );
    add("team-a", json!({}));
    all
}

#[test]
fn no_wording_gets_past_the_allow_lists() {
    let (config, escapes) = (strict(), escapes());
    assert!(escapes.len() >= 100, "{}", escapes.len());
    let tried = escapes.len();
    for (namespace, spec) in escapes {
        let parsed: InternalRequestSpec = serde_json::from_value(spec.clone()).unwrap();
        let verdict = judge("public", &namespace, &parsed, &config);
        assert!(verdict.is_err(), "{namespace:?} {spec} became {verdict:?}");
    }
    verified("requests that try to get past the allow-list", tried);
    // What is offered is still had.
    let ask = |spec: Value| judge("public", "team-a", &serde_json::from_value(spec).unwrap(), &config);
    assert!(
        ask(json!({ "request": "build", "params": { "tag": "v1" }, "serviceAccount": "builder" })).is_ok()
    );
    assert!(ask(by_resolver("git", &[("url", "https://git.example.com/org/repo.git")])).is_ok());
    assert!(ask(by_resolver("bundles", &[("bundle", "quay.io/ours/x")])).is_ok());
    let forced =
        ask(by_resolver("cluster", &[("name", "build"), ("namespace", "kube-system"), ("kind", "task")]))
            .unwrap();
    assert_eq!(forced.source, PipelineSource::Local { name: "build".into(), resolver: true });
}

#[tokio::test]
async fn escapes_are_refused_by_the_running_controller_too() {
    let rig = Rig::new("escape").await;
    let mut config = serde_json::to_value(strict()).unwrap();
    config["allowList"] = json!([rig.tenant]);
    config["watchScope"] = json!("allowed");
    config["offers"][0]["namespaces"] = json!([rig.tenant]);
    rig.configure(config).await;
    let controller = rig.start();
    let all: Vec<Value> =
        escapes().into_iter().filter(|(namespace, _)| namespace == "team-a").map(|(_, spec)| spec).collect();
    let submissions = stream::iter(all.iter().enumerate()).map(|(index, spec)| {
        let rig = &rig;
        async move {
            let name = format!("e{index}");
            let taken = rig.submit_in(&rig.tenant, &name, spec.clone()).await.is_ok();
            if taken {
                rig.until(&name, Phase::Rejected).await;
            }
            usize::from(taken)
        }
    });
    let judged: usize = submissions.buffer_unordered(8).collect::<Vec<_>>().await.into_iter().sum();
    assert!(judged >= 100, "the API server let only {judged} through to us");
    assert_eq!(rig.run_count().await, 0);
    controller.stop().await;
}
