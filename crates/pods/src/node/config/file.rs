//! Where the settings come from: interLink's YAML, then its variables, then flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::NodeConfig;
use crate::node::error::NodeError;

/// Variables by name, as the process was given them.
pub type Environment = BTreeMap<String, String>;

/// Where the file is looked for when nobody says.
const PLACES: &[&str] = &["./kustomizations/InterLinkConfig.yaml", "/etc/interlink/InterLinkConfig.yaml"];

/// Puts a file and variables over `base`. `named` is a file that must be there.
pub fn load(
    base: NodeConfig,
    named: Option<&Path>,
    environment: &Environment,
) -> Result<NodeConfig, NodeError> {
    let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    let mut resources = variable("VK_CONFIG_PATH").map(PathBuf::from);
    let mut config = base;
    let mut file = named.map(Path::to_owned).or_else(|| variable("INTERLINKCONFIGPATH").map(PathBuf::from));
    if let Some(path) = variable("CONFIGPATH").map(PathBuf::from) {
        // The same variable once named the file of resources and names this one since.
        if is_resources(&path)? {
            resources = resources.or(Some(path));
        } else {
            file = file.or(Some(path));
        }
    }
    let file = file.or_else(|| PLACES.iter().map(PathBuf::from).find(|path| path.is_file()));
    if let Some(path) = file {
        config = merge(&config, &path)?;
    }
    crate::keys::tell(config.others.keys(), environment.keys());
    if let Some(name) = variable("NODENAME") {
        config.node_name.clone_from(name);
    }
    overwrite(&mut config, &variable)?;
    if let Some(path) = resources.or_else(|| config.vk_config_path.clone()) {
        take_resources(&mut config, &path)?;
    }
    Ok(config)
}

fn read(path: &Path) -> Result<serde_json::Value, NodeError> {
    let wrong = |reason: String| NodeError::File { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    // The lines around a mistake are not quoted: a credential may stand there.
    serde_saphyr::from_str(&text).map_err(|error| wrong(error.without_snippet().to_string()))
}

fn merge(base: &NodeConfig, path: &Path) -> Result<NodeConfig, NodeError> {
    let wrong = |reason: String| NodeError::File { path: path.to_owned(), reason };
    let over = read(path)?;
    let mut whole = serde_json::to_value(base).map_err(|error| wrong(error.to_string()))?;
    match (whole.as_object_mut(), over) {
        (Some(whole), serde_json::Value::Object(over)) => {
            whole.extend(over.into_iter().filter(|(_, value)| !value.is_null()));
        }
        (_, serde_json::Value::Null) => {}
        _ => return Err(wrong("it is not a map of keys to values".into())),
    }
    serde_path_to_error::deserialize(whole).map_err(|error| wrong(error.to_string()))
}

/// Whether the file holds `{"node": {"cpu": …}}` rather than settings.
fn is_resources(path: &Path) -> Result<bool, NodeError> {
    let content = read(path)?;
    let looks = |value: &serde_json::Value| {
        value.as_object().is_some_and(|map| map.contains_key("cpu") || map.contains_key("memory"))
    };
    Ok(content.as_object().is_some_and(|map| !map.is_empty() && map.values().all(looks)))
}

fn take_resources(config: &mut NodeConfig, path: &Path) -> Result<(), NodeError> {
    let content = read(path)?;
    let Some(own) = content.get(&config.node_name) else {
        let known: Vec<&String> = content.as_object().map(|map| map.keys().collect()).unwrap_or_default();
        let reason = format!("it says nothing of the node `{}`, only of {known:?}", config.node_name);
        return Err(NodeError::File { path: path.to_owned(), reason });
    };
    let text = |key: &str| match own.get(key) {
        Some(serde_json::Value::String(text)) => Some(text.clone()),
        Some(serde_json::Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let resources = &mut config.resources;
    for (key, place) in
        [("cpu", &mut resources.cpu), ("memory", &mut resources.memory), ("pods", &mut resources.pods)]
    {
        if let Some(value) = text(key) {
            *place = value;
        }
    }
    Ok(())
}

fn overwrite<'a>(
    config: &mut NodeConfig,
    variable: &impl Fn(&str) -> Option<&'a String>,
) -> Result<(), NodeError> {
    let text = |name: &str, place: &mut String| {
        if let Some(value) = variable(name) {
            place.clone_from(value);
        }
    };
    text("INTERLINKURL", &mut config.interlink_url);
    text("INTERLINKPORT", &mut config.interlink_port);
    text("POD_IP", &mut config.pod_ip);
    if let Some(path) = variable("VKTOKENFILE") {
        config.vk_token_file = Some(path.into());
    }
    if let Some(path) = variable("CUSTOMKUBECONF") {
        config.custom_kubeconf = Some(path.into());
    }
    let wrong = |name: &'static str, value: &str| NodeError::Variable { name, value: value.to_owned() };
    if let Some(address) = variable("KUBELET_URL") {
        config.kubelet_listen.set_ip(address.parse().map_err(|_| wrong("KUBELET_URL", address))?);
    }
    if let Some(port) = variable("KUBELET_PORT") {
        config.kubelet_listen.set_port(port.parse().map_err(|_| wrong("KUBELET_PORT", port))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_file_that_is_no_yaml_is_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("InterLinkConfig.yaml");
        std::fs::write(&path, "Token: hunter2\nbroken: [\n").unwrap();
        let error = read(&path).unwrap_err();
        let said = format!("{error} {error:?}");
        assert!(said.contains("line ") && !said.contains("hunter2"), "{said}");
    }

    #[test]
    fn variables_win_over_the_file_and_the_file_over_what_was() {
        let folder = tempfile::tempdir().unwrap();
        let yaml = folder.path().join("InterLinkConfig.yaml");
        let text = "InterlinkURL: \"http://edge\"\nInterlinkPort: 3001\nSidecarURL: \"http://localhost\"\n\
                    VKTokenFile: /tmp/token\nResources:\n  CPU: 16\n  Accelerators:\n  - ResourceType: nvidia.com/gpu\n    \
                    Model: a100\n    Available: 2\nNodeLabels: [site=here]\n";
        std::fs::write(&yaml, text).unwrap();
        let resources = folder.path().join("vk-cfg.json");
        std::fs::write(&resources, r#"{"edge-1": {"cpu": "8", "memory": "32Gi", "pods": 7}}"#).unwrap();
        let path = |path: &Path| path.display().to_string();
        let environment = variables(&[
            ("INTERLINKPORT", "3002"),
            ("NODENAME", "edge-1"),
            ("CONFIGPATH", &path(&resources)),
            ("KUBELET_PORT", "1234"),
            ("INTERLINKURL", ""),
        ]);
        let config = load(NodeConfig::default(), Some(&yaml), &environment).unwrap();
        assert_eq!(config.mistakes(), []);
        assert_eq!((config.interlink_url.as_str(), config.interlink_port.as_str()), ("http://edge", "3002"));
        let resources = &config.resources;
        assert_eq!([&resources.cpu[..], &resources.memory, &resources.pods], ["8", "32Gi", "7"]);
        assert_eq!(config.accelerators(), BTreeMap::from([("nvidia.com/gpu".to_owned(), 2)]));
        assert_eq!(config.kubelet_listen.port(), 1234);
        let modern = variables(&[("CONFIGPATH", &path(&yaml))]);
        assert_eq!(load(NodeConfig::default(), None, &modern).unwrap().interlink_port, "3001");
    }

    #[test]
    fn every_variable_of_the_original_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (yaml, resources) = (folder.path().join("x.yaml"), folder.path().join("vk-cfg.json"));
        let text = "InterlinkURL: http://file\nInterlinkPort: 1\nVKTokenFile: /file\nServiceAccount: reader\nNamespace: vk\n";
        std::fs::write(&yaml, text).unwrap();
        std::fs::write(&resources, r#"{"edge-1": {"cpu": "8"}}"#).unwrap();
        let path = |path: &Path| path.display().to_string();
        let read = |more: &[(&str, &str)]| {
            let named = [("INTERLINKCONFIGPATH", path(&yaml)), ("NODENAME", "edge-1".to_owned())];
            let mut environment = variables(more);
            environment.extend(named.map(|(name, value)| (name.to_owned(), value)));
            load(NodeConfig::default(), None, &environment).unwrap()
        };
        let file = read(&[]);
        assert_eq!((file.interlink_url.as_str(), file.interlink_port.as_str()), ("http://file", "1"));
        assert_eq!(file.vk_token_file.as_deref(), Some(Path::new("/file")));
        assert_eq!((file.service_account.as_str(), file.namespace.as_str()), ("reader", "vk"));
        let over = read(&[
            ("INTERLINKURL", "http://variable"),
            ("INTERLINKPORT", "2"),
            ("VKTOKENFILE", "/variable"),
            ("CUSTOMKUBECONF", "/account"),
            ("VK_CONFIG_PATH", &path(&resources)),
            ("POD_IP", "192.0.2.1"),
        ]);
        assert_eq!((over.interlink_url.as_str(), over.interlink_port.as_str()), ("http://variable", "2"));
        assert_eq!(over.vk_token_file.as_deref(), Some(Path::new("/variable")));
        assert_eq!(over.custom_kubeconf.as_deref(), Some(Path::new("/account")));
        assert_eq!((over.resources.cpu.as_str(), over.pod_ip.as_str()), ("8", "192.0.2.1"));
    }

    #[test]
    fn one_file_serves_all_parts() {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../deploy/examples/interlink/InterLinkConfig.yaml");
        let folder = tempfile::tempdir().unwrap();
        let original = folder.path().join("InterLinkConfig.yaml");
        let text = "InterlinkURL: http://edge\nInterlinkPort: \"3000\"\nSidecarURL: http://edge\nContainerRuntime: singularity\n\
                    Flavors: {default: {CPUDefault: 1}}\nDefaultFlavor: default\nImagePrefix: docker://\nEnableProbes: true\n\
                    SingularityPath: apptainer\nEnrootPath: enroot\nDefaultUID: 1000\nTaints: [{Key: a, Effect: NoSchedule}]\n\
                    ResourceScriptPath: /x\nJobScriptTemplate: /t\nJobScriptBuildConfig: {singularity_hub: {server: x}}\n\
                    Network: {EnableTunnel: false}\nPodCIDR: {Subnet: 10.0.0.0/24}\n";
        std::fs::write(&original, text).unwrap();
        for path in [&shipped, &original] {
            let config = load(NodeConfig::default(), Some(path), &Environment::new()).unwrap();
            assert_eq!(config.mistakes(), [], "{}", path.display());
            let inside = ["10.0.0.7", "10.0.1.7", "nonsense"].map(|address| config.reaches(address));
            assert_eq!(inside, [*path == original, false, false]);
            let edge = crate::edge::load(
                crate::edge::EdgeConfig::default(),
                crate::edge::Part::Slurm,
                Some(path),
                &Environment::new(),
            );
            assert_eq!(edge.unwrap().default_flavor, "default");
        }
    }

    #[test]
    fn mistakes_are_named_by_their_keys() {
        let mut config = NodeConfig { node_name: "Not A Name".into(), ..Default::default() };
        config.resources.cpu = "many".into();
        config.pod_cidr.subnet = "10.0.0.0".into();
        config.others.insert("Interlnk".into(), 1.into());
        let keys: Vec<String> = config.mistakes().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["NodeName", "Resources.CPU", "PodCIDR.Subnet", "Interlnk"]);
        let error = load(NodeConfig::default(), Some(Path::new("/nowhere/x.yaml")), &Environment::new());
        assert!(matches!(error, Err(NodeError::File { .. })));
    }
}
