//! The same plan from files: what would be written, without a cluster.

mod check;
mod legacy;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::crd::{FederationServiceRules, GROUP, MeshFederation, VERSION};
use crate::model::Offer;
use crate::observe;
use crate::plan::{About, Finding, Flavour, Object, Owners, Plan, Reason, World, plan};

/// Files that cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// A file or folder cannot be read.
    #[error("{} cannot be read", file.display())]
    Read {
        /// The file or folder.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file is not YAML or JSON.
    #[error("{} is not YAML or JSON: {said}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// What the reader says.
        said: String,
    },
    /// An object does not have the form of its kind.
    #[error("{}: a {kind} cannot be understood: {said}", file.display())]
    Object {
        /// The file.
        file: PathBuf,
        /// Its kind.
        kind: String,
        /// What is wrong with it.
        said: String,
    },
    /// An object that is needed once is missing.
    #[error("no {kind} was found in {}", folder.display())]
    Missing {
        /// The kind.
        kind: &'static str,
        /// Where it was looked for.
        folder: PathBuf,
    },
}

/// A rendered plan.
#[derive(Debug)]
pub struct Rendered {
    /// The objects as they would be written.
    pub manifests: Vec<Value>,
    /// The plan they are of.
    pub plan: Plan,
}

/// Renders a folder with our custom resources, Services and Namespaces in YAML or JSON files, and
/// with `fds/MESH.json` for what each peer offers.
pub fn render_folder(folder: &Path) -> Result<Rendered, RenderError> {
    let mut read = Read { world: World::default(), owners: Owners::default(), notes: Vec::new() };
    for file in files(folder)? {
        for document in documents(&file)? {
            read.object(&file, document)?;
        }
    }
    let offers = folder.join("fds");
    if offers.is_dir() {
        for file in files(&offers)? {
            let mesh = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            read.world.peers.insert(mesh, read_offers(&file)?.into());
        }
    }
    if read.world.federation.is_none() {
        return Err(RenderError::Missing { kind: "MeshFederation", folder: folder.to_owned() });
    }
    if read.world.rules.is_none() {
        return Err(RenderError::Missing { kind: "FederationServiceRules", folder: folder.to_owned() });
    }
    if let Some(federation) = &read.world.federation {
        read.world.discovery = crate::ways::places(federation, &BTreeMap::new(), |_| false);
    }
    // Every cluster gives each namespace this label, whether its file is here or not.
    for (namespace, _) in read.world.services.keys() {
        let labels = read.world.namespaces.entry(namespace.clone()).or_default();
        Arc::make_mut(labels).insert(NAME_LABEL.to_owned(), namespace.clone());
    }
    let mut rendered = render(&read.world, &read.owners);
    rendered.plan.findings.append(&mut read.notes);
    Ok(rendered)
}

/// Renders one file with the original's flags: `meshPeers`, `exportedServiceSet`,
/// `importedServiceSet`, `controllerNamespace`, `services` and `imported`.
pub fn render_legacy(file: &Path) -> Result<Rendered, RenderError> {
    let document = documents(file)?.into_iter().next().unwrap_or_default();
    let legacy: legacy::Legacy = typed(file, "set of the original's flags", document)?;
    let ignored = legacy.limits_imports();
    let mut rendered = render(&legacy.world(), &Owners::default());
    if ignored {
        let message = "importedServiceSet has no effect: the original imports everything from every peer; \
                       here FederationServiceRules.spec.import limits it"
            .to_owned();
        let (about, reason) = (About::Rules, Reason::Ignored);
        rendered.plan.findings.push(Finding { about, reason, message });
    }
    Ok(rendered)
}

fn render(world: &World, owners: &Owners) -> Rendered {
    let plan = plan(world);
    let manifest = |object: &Arc<Object>| {
        let owner = (world.flavour != Flavour::Original).then(|| owners.of(object)).flatten();
        object.manifest(world.flavour, owner.as_ref())
    };
    Rendered { manifests: plan.objects.iter().map(manifest).collect(), plan }
}

/// The label by which a namespace is selected by its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

struct Read {
    world: World,
    owners: Owners,
    notes: Vec<Finding>,
}

impl Read {
    fn object(&mut self, file: &Path, document: Value) -> Result<(), RenderError> {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        if let Some(items) = document["items"].as_array().filter(|_| kind.ends_with("List")) {
            return items.clone().into_iter().try_for_each(|item| self.object(file, item));
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &document["metadata"];
        let (namespace, name, uid) =
            (text(&metadata["namespace"]), text(&metadata["name"]), text(&metadata["uid"]));
        let refused = |said: String| RenderError::Object { file: file.to_owned(), kind: kind.clone(), said };
        if ["MeshFederation", "FederationServiceRules"].contains(&kind.as_str()) {
            check::fields(&kind, &document).map_err(refused)?;
            if document["apiVersion"].as_str() != Some(&format!("{GROUP}/{VERSION}")) {
                let message =
                    format!("{kind} {name}: a cluster takes it only as apiVersion: {GROUP}/{VERSION}");
                self.notes.push(Finding { about: About::Rules, reason: Reason::Ignored, message });
            }
        }
        match kind.as_str() {
            "MeshFederation" => {
                let object: MeshFederation = typed(file, &kind, with_version(document))?;
                check::federation(&object.spec).map_err(refused)?;
                if self.world.federation.is_some() {
                    return Err(refused("there is another one, and a mesh has one".to_owned()));
                }
                self.world.federation = Some(Arc::new(object.spec));
                self.owners.federation = Some((name, uid));
            }
            "FederationServiceRules" => {
                let object: FederationServiceRules = typed(file, &kind, with_version(document))?;
                if name != "default" {
                    return Err(refused("there is one set of rules and its name is `default`".to_owned()));
                }
                if self.world.rules.is_some() {
                    return Err(refused("there is another one, and a mesh has one".to_owned()));
                }
                let namespace = if namespace.is_empty() { "istio-system".to_owned() } else { namespace };
                self.world.controller_namespace.clone_from(&namespace);
                self.world.rules = Some(Arc::new(object.spec));
                self.owners.rules = Some((namespace, name, uid));
            }
            "Service" => {
                let object = typed(file, &kind, document)?;
                let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
                self.world.services.insert((namespace, name), Arc::new(observe::service(&object)));
            }
            "ServiceExport" => {
                let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
                self.world.service_exports.insert((namespace, name));
            }
            "Namespace" => {
                let mut labels: BTreeMap<String, String> =
                    serde_json::from_value(metadata["labels"].clone()).unwrap_or_default();
                // Every cluster adds this one.
                labels.insert(NAME_LABEL.to_owned(), name.clone());
                self.world.namespaces.insert(name, Arc::new(labels));
            }
            // Other objects of the folder, such as Deployments, say nothing here.
            _ => {}
        }
        Ok(())
    }
}

/// An object as a cluster would have it: the kind alone says which it is.
fn with_version(mut document: Value) -> Value {
    document["apiVersion"] = Value::from(format!("{GROUP}/{VERSION}"));
    document
}

fn read_offers(file: &Path) -> Result<Vec<Arc<Offer>>, RenderError> {
    let document = documents(file)?.into_iter().next().unwrap_or_default();
    let list = if document.is_array() { document } else { document["services"].clone() };
    let offers: Vec<Offer> = typed(file, "list of offered services", list)?;
    Ok(offers.into_iter().map(|offer| Arc::new(offer.tidy())).collect())
}

/// The YAML and JSON files of a folder, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, RenderError> {
    let failed = |source| RenderError::Read { file: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file()
            && path.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known))
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn documents(file: &Path) -> Result<Vec<Value>, RenderError> {
    let text = std::fs::read_to_string(file)
        .map_err(|source| RenderError::Read { file: file.to_owned(), source })?;
    let wrong = |said: String| RenderError::Syntax { file: file.to_owned(), said };
    if file.extension().is_some_and(|end| end == "json") {
        return serde_json::from_str(&text)
            .map(|value| vec![value])
            .map_err(|error| wrong(error.to_string()));
    }
    let all: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| wrong(error.to_string()))?;
    Ok(all.into_iter().filter(|document| !document.is_null()).collect())
}

fn typed<T: DeserializeOwned>(file: &Path, kind: &str, document: Value) -> Result<T, RenderError> {
    serde_json::from_value(document).map_err(|error| RenderError::Object {
        file: file.to_owned(),
        kind: kind.to_owned(),
        said: error.to_string(),
    })
}
