//! What was measured, and beside what: versions are told by the programs themselves, or by the folder that
//! `tools/install` put them into.

use std::path::Path;
use std::process::Command;

use crate::peers::built;

/// The programs that have a share in a part's figures, ours first.
pub(crate) fn of(part: &str, binary: &Path) -> Vec<String> {
    let others: &[Told] = match part {
        "up" => &[],
        "reach" => &[FRP, RATHOLE, SSH, HAPROXY, ENVOY, REDIS],
        "jobs" => &[KUBERNETES, TEKTON, ETCD],
        "pods" => &[KUBERNETES, DOCKER, SLURM],
        "nets" => &[REDIS, NFT, BIRD, STRONGSWAN],
        "mesh" => &[KUBERNETES, ETCD],
        _ => &[REDIS],
    };
    let ours = Told("tarbet", Source::Program(&binary.display().to_string(), "version")).version();
    let commit =
        first_line("git", &["describe", "--always", "--dirty"]).map(|commit| format!("commit {commit}"));
    ours.into_iter().chain(commit).chain(others.iter().filter_map(Told::version)).collect()
}

/// A program, and who tells its version.
struct Told<'a>(&'a str, Source<'a>);

enum Source<'a> {
    /// The first line that it prints when it is asked so.
    Program(&'a str, &'a str),
    /// The name of the folder it was built into.
    Folder,
}

const FRP: Told = Told("frp", Source::Folder);
const RATHOLE: Told = Told("rathole", Source::Folder);
const ENVOY: Told = Told("envoy", Source::Folder);
const KUBERNETES: Told = Told("kube", Source::Folder);
const TEKTON: Told = Told("tekton", Source::Folder);
const SSH: Told = Told("ssh", Source::Program("ssh", "-V"));
const HAPROXY: Told = Told("haproxy", Source::Program("haproxy", "-v"));
const REDIS: Told = Told("redis", Source::Program("redis-server", "--version"));
const ETCD: Told = Told("etcd", Source::Program("etcd", "--version"));
const DOCKER: Told = Told("docker", Source::Program("dockerd", "--version"));
const SLURM: Told = Told("slurm", Source::Program("slurmctld", "-V"));
const NFT: Told = Told("nft", Source::Program("nft", "--version"));
const BIRD: Told = Told("bird", Source::Program("bird", "--version"));
const STRONGSWAN: Told = Told("strongswan", Source::Program("swanctl", "--version"));

impl Told<'_> {
    /// Nothing if it is not here: then it was not measured either.
    fn version(&self) -> Option<String> {
        let Self(name, source) = self;
        let said = match source {
            Source::Program(program, ask) => first_line(program, &[ask])?,
            Source::Folder => built(name).ok()?.read_link().ok()?.file_name()?.to_string_lossy().into_owned(),
        };
        Some(format!("{name} {}", number_in(&said)?))
    }
}

fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    // ssh tells its version on the other stream.
    let said = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&said).lines().next().map(|line| line.trim().to_owned())
}

/// The first thing in a line that looks like a version: digits and dots, with what hangs on them.
fn number_in(said: &str) -> Option<&str> {
    let words = said.split(|c: char| c.is_whitespace() || matches!(c, ',' | '_' | '-' | '=' | '/'));
    let mut bare = words.map(|word| word.trim_start_matches('v'));
    bare.find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::number_in;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, version) in [
            ("Tarbet: version 0.1.0, target x86_64", "0.1.0"),
            ("OpenSSH_9.2p1 Debian-2+deb12u3, OpenSSL 3.0.14 4 Jun 2024", "9.2p1"),
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "7.0.15"),
            ("slurm-wlm 22.05.8", "22.05.8"),
            ("nftables v1.0.6 (Lester Gooch #5)", "1.0.6"),
            ("strongSwan swanctl 5.9.8", "5.9.8"),
            ("kube-v1.33.4-331a4d2db895", "1.33.4"),
        ] {
            assert_eq!(number_in(said), Some(version), "{said}");
        }
        assert_eq!(number_in("nothing of the kind"), None);
    }
}
