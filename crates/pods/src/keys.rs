//! The keys of interLink's own files.
//!
//! One file may hold the settings of all parts, so each part passes over the keys of the others.
//! What no part here reads is accepted too, since it stands in files of the original, and told.

use std::collections::BTreeSet;

use crate::edge::EdgeConfig;
use crate::node::NodeConfig;

/// Keys of the original that change nothing here.
const UNUSED: &[&str] = &[
    "EnrootPrefix",
    "JobScriptBuildConfig",
    "JobScriptTemplate",
    "KubeletHTTP",
    "Network",
    "Pprof",
    "SingularityPrefix",
    "SkipDownwardAPIResolution",
    "TsocksConfig",
];

/// Variables of the original that change nothing here, or begin with it.
const UNUSED_VARIABLES: &[&str] = &[
    "ENABLE_TRACING",
    "TELEMETRY_",
    "ENABLE_PPROF",
    "PPROF_",
    "AVAILABLEDINDS",
    "GPUENABLED",
    "FPGAENABLED",
];

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// A part reads it.
    Read,
    /// The original has it; nothing here reads it.
    Unused,
    /// Nobody knows it.
    Unknown,
}

/// What becomes of a key of a file.
pub(crate) fn fate(key: &str) -> Fate {
    let same = |known: &str| known.eq_ignore_ascii_case(key);
    if UNUSED.iter().any(|known| same(known)) {
        Fate::Unused
    } else if read().iter().any(|known| same(known)) {
        Fate::Read
    } else {
        Fate::Unknown
    }
}

/// The keys that some part reads.
fn read() -> BTreeSet<String> {
    let parts = [serde_json::to_value(NodeConfig::default()), serde_json::to_value(EdgeConfig::default())];
    let maps = parts.into_iter().flatten().filter_map(|part| part.as_object().cloned());
    maps.flat_map(|map| map.into_iter().map(|(key, _)| key)).collect()
}

/// Tells which keys and variables have no effect.
pub(crate) fn tell<'a>(keys: impl Iterator<Item = &'a String>, variables: impl Iterator<Item = &'a String>) {
    for key in keys {
        match fate(key) {
            Fate::Read => {}
            Fate::Unused => tracing::warn!(key, "A key of interLink has no effect here."),
            Fate::Unknown => tracing::warn!(key, "A key is none of interLink's and has no effect."),
        }
    }
    for variable in variables.filter(|name| is_unused(name)) {
        tracing::warn!(variable, "A variable of interLink has no effect here.");
    }
}

fn is_unused(variable: &str) -> bool {
    UNUSED_VARIABLES.iter().any(|known| match known.strip_suffix('_') {
        Some(_) => variable.starts_with(known),
        None => variable == *known,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of the four files of the original, by part.
    const ORIGINAL: &str = "InterlinkURL InterlinkPort KubernetesApiAddr KubernetesApiPort KubernetesApiCaCrt \
        DisableProjectedVolumes JobScriptBuilderURL VKConfigPath VKTokenFile ServiceAccount Namespace PodIP PodCIDR \
        VerboseLogging ErrorsOnlyLogging HTTP KubeletHTTP KubeletCertFile KubeletKeyFile KubeletCSRSignerName Resources \
        NodeLabels NodeTaints TLS Network SkipDownwardAPIResolution DisableCSR Pprof \
        InterlinkAddress SidecarURL SidecarPort JobScriptBuildConfig JobScriptTemplate DataRootFolder \
        Socket SbatchPath ScancelPath SqueuePath SinfoPath ExportPodData CommandPrefix ImagePrefix Tsocks TsocksPath \
        TsocksLoginNode BashPath SingularityDefaultOptions SingularityPrefix SingularityPath EnableProbes ContainerRuntime \
        EnrootDefaultOptions EnrootPrefix EnrootPath Flavors DefaultFlavor DefaultUID Taints ResourceScriptPath";

    #[test]
    fn no_key_of_the_original_is_unknown() {
        for key in ORIGINAL.split_whitespace() {
            assert_ne!(fate(key), Fate::Unknown, "{key}");
        }
        assert_eq!(fate("Interlnk"), Fate::Unknown);
        assert_eq!((fate("Network"), fate("SbatchPath")), (Fate::Unused, Fate::Read));
    }

    #[test]
    fn variables_that_do_nothing_are_known() {
        for name in ["ENABLE_TRACING", "TELEMETRY_ENDPOINT", "PPROF_PORT"] {
            assert!(is_unused(name), "{name}");
        }
        assert!(!is_unused("SIDECARPORT") && !is_unused("ENABLE_TRACING_X"));
    }
}
