use serde_json::json;

use super::*;
use crate::plan::{Content, Policy, plan};

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "p", "namespace": "n", "uid": "cf9e6237-0c5f-47c2-a6d8-912b12f93a20",
            "labels": {"app": "x"}, "annotations": {"note": "hello"},
        },
        "spec": spec,
        "status": {"hostIP": "10.0.0.1"},
    }))
    .unwrap()
}

fn contents(map: &[(&str, &str)], secret: &[(&str, &[u8])]) -> Contents {
    let mut contents = Contents::default();
    let mut config = ConfigMap::default();
    config.metadata.name = Some("cm".into());
    config.data = Some(map.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
    contents.config_maps.insert("cm".into(), config);
    let mut hidden = Secret::default();
    hidden.metadata.name = Some("sec".into());
    hidden.data =
        Some(secret.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.to_vec()))).collect());
    contents.secrets.insert("sec".into(), hidden);
    contents
}

fn ways(origin: Origin) -> Ways<'static> {
    Ways { no_projected: false, origin, host_ip: "", api: None, authority: None, job_script_url: "" }
}

fn env(create: &PodCreate) -> Vec<(String, String)> {
    let container = &create.pod.spec.as_ref().unwrap().containers[0];
    container.env.iter().flatten().map(|v| (v.name.clone(), v.value.clone().unwrap())).collect()
}

#[test]
fn variables_come_from_everywhere_and_become_plain() {
    let pod = pod(json!({"containers": [{"name": "c", "image": "i",
        "command": ["echo", "$(B)"],
        "envFrom": [{"prefix": "CM_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "none", "optional": true}}],
        "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "pw"}}},
            {"name": "B", "value": "$(A)/$(CM_k)/$(NO)"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "GONE", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "nope", "optional": true}}},
        ],
        "resources": {"limits": {"cpu": "1500m"}},
    }]}));
    let contents = contents(&[("k", "v")], &[("pw", b"a$(X)$$b")]);
    let wanted = needs(&pod, false);
    assert!(
        wanted.config_maps.contains("cm")
            && wanted.secrets.contains("sec")
            && wanted.secrets.contains("none")
    );
    let foreign = assemble(&pod, &contents, ways(Origin::Other)).unwrap();
    let text = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let real =
        text(&[("CM_k", "v"), ("A", "a$(X)$$b"), ("B", "a$(X)$$b/v/$(NO)"), ("NAME", "p"), ("CPU", "2")]);
    assert_eq!(env(&foreign), real);
    assert_eq!(
        foreign.pod.spec.as_ref().unwrap().containers[0].command.as_ref().unwrap()[1],
        "a$(X)$$b/v/$(NO)"
    );
    // Our own plugin replaces by itself and comes to the same.
    let ours = assemble(&pod, &contents, ways(Origin::Ours)).unwrap();
    let plan = plan(&retrieved(&ours), &Policy::default()).unwrap();
    assert_eq!(plan.containers[0].env, real);
    assert_eq!(plan.containers[0].command.as_ref().unwrap()[1], "a$(X)$$b/v/$(NO)");
}

#[test]
fn volumes_become_files() {
    let pod = pod(json!({
        "containers": [{"name": "c", "image": "i", "volumeMounts": [
            {"name": "cfg", "mountPath": "/cfg"}, {"name": "sec", "mountPath": "/sec"},
            {"name": "all", "mountPath": "/all"}, {"name": "down", "mountPath": "/down"},
        ]}],
        "volumes": [
            {"name": "cfg", "configMap": {"name": "cm"}},
            {"name": "sec", "secret": {"secretName": "sec"}},
            {"name": "down", "downwardAPI": {"items": [{"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}}]}},
            {"name": "all", "projected": {"sources": [
                {"configMap": {"name": "cm", "items": [{"key": "k", "path": "deep/k"}]}},
                {"secret": {"name": "sec"}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]}},
        ],
    }));
    let mut contents = contents(&[("k", "v")], &[("pw", &[0xff, 0])]);
    let wanted = needs(&pod, false);
    assert_eq!(
        wanted.tokens,
        [TokenNeed { volume: "all".into(), path: "token".into(), audience: None, seconds: 3607 }]
    );
    let without = assemble(&pod, &contents, ways(Origin::Ours)).unwrap_err();
    assert!(without.what.contains("token") && !without.variable);
    contents.tokens.insert(("all".into(), "token".into()), "t0ken".into());
    let create = assemble(&pod, &contents, ways(Origin::Ours)).unwrap();
    let plan = plan(&retrieved(&create), &Policy::default()).unwrap();
    let files = |name: &str| -> Vec<(String, Vec<u8>)> {
        let volume = plan.volumes.iter().find(|volume| volume.name == name).unwrap();
        let Content::Files(files) = &volume.content else { panic!("{name}") };
        files.iter().map(|(path, file)| (path.as_str().to_owned(), file.content.clone())).collect()
    };
    let file = |path: &str, content: &[u8]| (path.to_owned(), content.to_vec());
    assert_eq!(files("cfg"), [file("k", b"v")]);
    assert_eq!(files("sec"), [file("pw", &[0xff, 0])]);
    assert_eq!(files("down"), [file("note", b"hello")]);
    assert_eq!(
        files("all"),
        [file("deep/k", b"v"), file("ns", b"n"), file("pw", &[0xff, 0]), file("token", b"t0ken")]
    );
}

#[test]
fn what_is_missing_is_named_and_where() {
    let volume = pod(
        json!({"containers": [{"name": "c"}], "volumes": [{"name": "v", "configMap": {"name": "gone"}}]}),
    );
    let missing = assemble(&volume, &Contents::default(), ways(Origin::Ours)).unwrap_err();
    assert_eq!(
        (missing.to_string().as_str(), missing.variable),
        ("the ConfigMap `gone` is not there", false)
    );
    let variable = pod(
        json!({"containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "no"}}}]}]}),
    );
    let missing = assemble(&variable, &contents(&[], &[]), ways(Origin::Ours)).unwrap_err();
    assert_eq!((missing.what.as_str(), missing.variable), ("the key `no` of the Secret `sec`", true));
}

#[test]
fn claims_become_folders_of_the_host() {
    let pod = pod(
        json!({"containers": [{"name": "c"}], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}),
    );
    assert!(needs(&pod, false).claims.contains("data"));
    let mut contents = Contents::default();
    contents.claims.insert("data".into(), "/srv/data".into());
    let create = assemble(&pod, &contents, ways(Origin::Ours)).unwrap();
    let volume = &create.pod.spec.unwrap().volumes.unwrap()[0];
    let folder = volume.host_path.as_ref().unwrap();
    // Without a type the original's plugin for Slurm panics.
    assert_eq!((folder.path.as_str(), folder.type_.as_deref()), ("/srv/data", Some("DirectoryOrCreate")));
    assert!(volume.persistent_volume_claim.is_none());
    // Without a folder ours wait for one; others get the claim, as the original leaves it.
    assert!(assemble(&pod, &Contents::default(), ways(Origin::Ours)).is_err());
    let create = assemble(&pod, &Contents::default(), ways(Origin::Other)).unwrap();
    assert_eq!(create.pod.spec.unwrap().volumes, pod.spec.unwrap().volumes);
}

#[test]
fn others_get_an_empty_object_for_one_that_may_be_missing() {
    let pod = pod(json!({"containers": [{"name": "c"}], "volumes": [
        {"name": "m", "configMap": {"name": "gone", "optional": true}},
        {"name": "s", "secret": {"secretName": "gone too", "optional": true}},
    ]}));
    let ours = assemble(&pod, &Contents::default(), ways(Origin::Ours)).unwrap();
    assert!(ours.config_maps.is_empty() && ours.secrets.is_empty());
    let others = assemble(&pod, &Contents::default(), ways(Origin::Other)).unwrap();
    let written = serde_json::to_value(&others).unwrap();
    let meta = |name: &str| json!([{"apiVersion": "v1", "metadata": {"name": name, "namespace": "n"}}]);
    let mut wanted = [meta("gone"), meta("gone too")];
    wanted[0][0]["kind"] = "ConfigMap".into();
    wanted[1][0]["kind"] = "Secret".into();
    assert_eq!([written["configmaps"].clone(), written["secrets"].clone()], wanted);
}

#[test]
fn addresses_are_there_before_the_pod_is() {
    let spec = json!({"containers": [{"name": "c", "env": [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ]}]});
    let told = |pod: &Pod, host_ip| {
        let create = assemble(pod, &Contents::default(), Ways { host_ip, ..ways(Origin::Other) }).unwrap();
        let status = create.pod.status.clone().unwrap();
        let env = env(&create).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!(env, [status.pod_ip.unwrap(), status.host_ip.unwrap()]);
        env
    };
    let mut pod = pod(spec);
    assert_eq!(told(&pod, "10.9.9.9"), ["127.0.0.1", "10.0.0.1"], "what it has stays");
    pod.status = None;
    assert_eq!(told(&pod, ""), ["127.0.0.1", "127.0.0.1"]);
    assert_eq!(told(&pod, "10.9.9.9"), ["127.0.0.1", "10.9.9.9"]);
    pod.metadata.annotations.as_mut().unwrap().insert(POD_IP.into(), "10.1.2.3".into());
    assert_eq!(told(&pod, ""), ["10.1.2.3", "10.1.2.3"]);
}
