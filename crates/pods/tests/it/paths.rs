//! Whatever a pod writes into its names and folders, nothing outside its own folder changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use tarbet_pods::folder::{Folder, lay_out, lay_out_volume, messages, mount_source, pod_folder, remove_tree};
use tarbet_pods::plan::{Plan, Policy, plan};
use tarbet_pods::record::Records;
use tarbet_pods::wire::RetrievedPod;

use super::pods::{effort, uid};

/// Everything below a folder, with contents, links not followed.
fn picture(root: &Path) -> BTreeMap<String, String> {
    fn walk(path: &Path, seen: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            let what = if kind.is_dir() {
                walk(&path, seen);
                "folder".to_owned()
            } else if kind.is_file() {
                fs::read_to_string(&path).unwrap()
            } else {
                format!("{kind:?}")
            };
            seen.insert(path.display().to_string(), what);
        }
    }
    let mut seen = BTreeMap::new();
    walk(root, &mut seen);
    seen
}

/// Ways out.
fn trick(outside: &Path) -> impl Strategy<Value = String> + use<> {
    let outside = outside.display().to_string();
    prop_oneof![
        Just("..".to_owned()),
        Just("../outside/file".to_owned()),
        Just(format!("{outside}/file")),
        Just("a/../../../outside/file".to_owned()),
        Just("./a".to_owned()),
        Just("a//b".to_owned()),
        Just("a/".to_owned()),
        Just("..data/x".to_owned()),
        Just("..1".to_owned()),
        Just("a\0b".to_owned()),
        Just("...".to_owned()),
        Just("link/file".to_owned()),
        Just("ok".to_owned()),
        Just("deep/er/ok".to_owned()),
        "[a./]{1,12}",
    ]
}

#[derive(Debug, Clone, Copy)]
enum Swap {
    Nothing,
    DataLink,
    VolumeLink,
    SubPathLink,
    MessageLink,
    MessagePipe,
    VersionLink,
}

fn swaps() -> impl Strategy<Value = Swap> {
    prop_oneof![
        Just(Swap::Nothing),
        Just(Swap::DataLink),
        Just(Swap::VolumeLink),
        Just(Swap::SubPathLink),
        Just(Swap::MessageLink),
        Just(Swap::MessagePipe),
        Just(Swap::VersionLink),
    ]
}

#[derive(Debug)]
struct Case {
    key: String,
    item: String,
    sub_path: String,
    names: [String; 3],
    honest: bool,
    swap: Swap,
}

#[test]
fn nothing_outside_the_folder_of_a_pod_changes() {
    let bed = tempfile::tempdir().unwrap();
    let outside = bed.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "precious").unwrap();
    let root = bed.path().join("data");
    let records = Records::open(&root).unwrap();
    let before = picture(&outside);
    let tricks = || trick(&outside);
    let case =
        (tricks(), tricks(), tricks(), [tricks(), tricks(), tricks()], any::<bool>(), swaps()).prop_map(
            |(key, item, sub_path, names, honest, swap)| Case { key, item, sub_path, names, honest, swap },
        );
    let config = Config { cases: effort(50), failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let run = runner.run(&case, |case| {
        attack(&case, records.root(), &outside);
        prop_assert_eq!(picture(&outside), before.clone());
        for entry in fs::read_dir(bed.path()).unwrap() {
            let name = entry.unwrap().file_name();
            prop_assert!(name == "outside" || name == "data", "{:?}", name);
        }
        Ok(())
    });
    run.unwrap();
    tarbet_testbed::verified(
        "names and links that lead out of a pod's folder: nothing outside changes",
        usize::try_from(effort(50)).unwrap(),
    );
}

fn retrieved(case: &Case, content: &str) -> RetrievedPod {
    let uid = if case.honest { uid() } else { case.names[0].clone() };
    let names: Vec<String> =
        if case.honest { ["ns", "vol", "cm"].map(str::to_owned).to_vec() } else { case.names.to_vec() };
    let items = json!([{"key": "k", "path": case.item}]);
    serde_json::from_value(json!({
        "pod": {
            "metadata": {"name": "pod", "namespace": names[0], "uid": uid},
            "spec": {
                "volumes": [
                    {"name": names[1], "configMap": {"name": names[2]}},
                    {"name": "picked", "configMap": {"name": "picked", "items": items}},
                    {"name": "empty", "emptyDir": {}},
                ],
                "containers": [{"name": "main", "image": "x", "command": ["x"], "volumeMounts": [
                    {"name": names[1], "mountPath": "/a"}, {"name": "picked", "mountPath": "/b"},
                    {"name": "empty", "mountPath": "/c", "subPath": case.sub_path},
                ]}],
            },
        },
        "container": [{"name": "main", "configMaps": [
            {"metadata": {"name": names[2]}, "data": {case.key.clone(): content}},
            {"metadata": {"name": "picked"}, "data": {"k": content}},
        ]}],
    }))
    .unwrap()
}

fn attack(case: &Case, root: &Path, outside: &Path) {
    let pod = retrieved(case, "first");
    let Ok(mut plan) = plan(&pod, &Policy::default()) else { return };
    let folder = pod_folder(root, &plan.id.folder()).unwrap();
    lay_out(&folder, &plan).unwrap();
    swap(case.swap, &folder, &plan, outside);
    // A change of contents, mounts and the last message, all after the swap.
    let mut second = retrieved(case, "second");
    second.pod.metadata.uid = Some(plan.id.uid.clone());
    plan.volumes = self::plan(&second, &Policy::default()).unwrap().volumes;
    for volume in &plan.volumes {
        let _ = lay_out_volume(&folder, volume);
    }
    for mount in &plan.containers[0].mounts {
        if let Ok(source) = mount_source(&folder, &plan, mount) {
            let real = source.canonicalize().unwrap();
            assert!(real.starts_with(folder.path()), "{} leads to {}", source.display(), real.display());
        }
    }
    let message = folder.enter(messages().as_str()).and_then(|folder| folder.read("main", 4096));
    assert_ne!(message.unwrap_or_default(), b"precious");
    remove_tree(folder.path()).unwrap();
}

fn swap(swap: Swap, folder: &Folder, plan: &Plan, outside: &Path) {
    let (map, empty) =
        (folder.path().join(plan.volumes[0].folder.as_str()), folder.path().join("emptyDirs/empty"));
    let replace = |path: &Path, target: &Path| {
        let _ = fs::remove_file(path);
        let _ = fs::remove_dir_all(path);
        symlink(target, path).unwrap();
    };
    let message = folder.path().join("messages/main");
    match swap {
        Swap::Nothing => {}
        Swap::DataLink => replace(&map.join("..data"), outside),
        Swap::VersionLink => replace(&map.join("..2"), outside),
        Swap::VolumeLink => replace(&map, outside),
        Swap::SubPathLink => {
            let first = plan.containers[0].mounts[2].sub_path.as_ref().map(|path| path.first().to_owned());
            replace(&empty.join(first.unwrap_or_default()), outside);
        }
        Swap::MessageLink => replace(&message, &outside.join("file")),
        Swap::MessagePipe => {
            fs::remove_file(&message).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, &message, rustix::fs::FileType::Fifo, 0o666.into(), 0)
                .unwrap();
            assert!(message.symlink_metadata().unwrap().file_type().is_fifo());
        }
    }
}
