//! The image that is shipped, by its own Dockerfile around a static program: what is in it, and that its roles
//! work there, where there is no C library, no shell and no user.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tarbet_testbed::{Dockerd, Folder, Lease, eventually};
use tokio::task::spawn_blocking;

/// The image that [`build`] makes.
pub(crate) const NAME: &str = "tarbet:test";
const SOON: Duration = Duration::from_mins(1);
/// The user of the image.
const USER: u32 = 65532;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// The program as it is shipped but for its profile, of the crates that this test is made of.
fn program() -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_tarbet")).parent().and_then(Path::parent);
    let mut command = Command::new(root().join("tools/static"));
    command.arg("dev").env("CARGO_NET_OFFLINE", "true");
    command.env("CARGO_TARGET_DIR", target.context("the program lies in no target folder")?);
    Ok(run(&mut command)?.into())
}

/// Makes the image [`NAME`], as `tools/package image` does.
pub(crate) async fn build(docker: &Dockerd, folder: &Folder) -> Result<()> {
    let context = folder.path().join("context");
    fs::create_dir_all(&context)?;
    fs::copy(spawn_blocking(program).await??, context.join("tarbet"))?;
    fs::copy(root().join("deploy/image/Dockerfile"), context.join("Dockerfile"))?;
    fs::copy("/etc/ssl/certs/ca-certificates.crt", context.join("ca-certificates.crt"))?;
    docker.docker(&["build", "--tag", NAME, &context.display().to_string()]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_image_holds_one_static_program_that_nobody_in_particular_runs() -> Result<()> {
    let (docker, folder) = (Dockerd::start().await?, Folder::new("image")?);
    build(&docker, &folder).await?;
    let image: Value = serde_json::from_str(&docker.docker(&["inspect", NAME]).await?)?;
    let config = &image[0]["Config"];
    ensure!(config["User"] == "65532:65532" && config["Entrypoint"][0] == "/tarbet", "{config}");

    // Files with something in them; Docker itself lays out empty ones for what it mounts.
    let archive = folder.path().join("image.tar").display().to_string();
    docker.docker(&["create", "--name", "whole", NAME]).await?;
    docker.docker(&["export", "--output", &archive, "whole"]).await?;
    let listed = run(Command::new("tar").args(["--list", "--verbose", "--file", &archive]))?;
    let words = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut files: Vec<_> = words.filter(|words| words[0].starts_with('-') && words[2] != "0").collect();
    files.sort_by_key(|words| words[5]);
    let names: Vec<&str> = files.iter().map(|words| words[5]).collect();
    ensure!(names == ["etc/ssl/certs/ca-certificates.crt", "tarbet"], "{listed}");
    let program = folder.path().join("context/tarbet");
    let parts = run(Command::new("readelf").args(["--program-headers", "--dynamic", "--wide"]).arg(program))?;
    ensure!(!parts.contains("INTERP") && !parts.contains("NEEDED"), "it is not static:\n{parts}");

    let alone = ["run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL", NAME];
    let say = async |words: &[&str]| docker.docker(&[&alone[..], words].concat()).await;
    let version = say(&["version"]).await?;
    ensure!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    ensure!(say(&["explain", "TB-1102"]).await?.contains("TB-1102"), "no page");
    Ok(())
}

/// Answers for one name by DNS, at an address of loopback that nobody else has: in resolv.conf there is no port.
fn name_server(name: &'static str) -> Result<Ipv4Addr> {
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 53, high, low.clamp(1, 254));
    let socket = UdpSocket::bind((address, 53))?;
    let mut wanted: Vec<u8> =
        name.split('.').flat_map(|part| [&[part.len() as u8], part.as_bytes()].concat()).collect();
    wanted.push(0);
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, caller)) = socket.recv_from(&mut query) {
            let Some(question) = query[..length].get(12..) else { continue };
            let Some(end) = question.iter().position(|byte| *byte == 0).map(|end| end + 5) else { continue };
            let Some(question) = question.get(..end) else { continue };
            let (known, is_ipv4) = (question.starts_with(&wanted), question[end - 4..] == [0, 1, 0, 1]);
            // Recursion is there; no error, or no such name. One question, and one answer if it is for IPv4.
            let code = if known { 0x80 } else { 0x83 };
            let mut answer =
                [&query[..2], &[0x81, code, 0, 1, 0, u8::from(known && is_ipv4), 0, 0, 0, 0], question]
                    .concat();
            if known && is_ipv4 {
                // The name that was asked for, an address, for a minute.
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
            }
            let _ = socket.send_to(&answer, caller);
        }
    });
    Ok(address)
}

/// What a machine may have that looks names up in its own way: a library that no program survives.
fn strange_machine(folder: &Folder) -> Result<[String; 2]> {
    let source =
        folder.write("strange.c", "__attribute__((constructor)) void die(void) { __builtin_trap(); }\n")?;
    let libraries = folder.path().join("libraries");
    fs::create_dir_all(&libraries)?;
    let library = libraries.join("libnss_strange.so.2");
    run(Command::new("cc").args(["-shared", "-fPIC", "-nostdlib", "-o"]).arg(library).arg(source))?;
    let switch = folder
        .write("nsswitch.conf", "passwd: strange\ngroup: strange\nhosts: strange [NOTFOUND=return]\n")?;
    fs::set_permissions(&switch, Permissions::from_mode(0o644))?;
    Ok([
        format!("{}:/etc/nsswitch.conf:ro", switch.display()),
        format!("{}:/usr/lib:ro", libraries.display()),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_work_in_the_image_and_find_gateways_by_name() -> Result<()> {
    let (docker, folder, ports) = (Dockerd::start().await?, Folder::new("names")?, Lease::block(5)?);
    build(&docker, &folder).await?;
    let [agents, api, kubernetes, probes, private] = [0, 1, 2, 3, 4].map(|index| ports.port(index));
    let own = |name: &str| -> Result<PathBuf> {
        let path = folder.path().join(name);
        fs::create_dir_all(&path)?;
        chown(&path, Some(USER), Some(USER))?;
        Ok(path)
    };
    let (state, site) = (own("state")?, own("site")?);
    let tls =
        "tls: {authority_folder: /var/lib/tarbet/authority, names: [localhost, by-file.test, by-dns.test]}";
    let settings = format!(
        "store: {{kind: redb, path: /var/lib/tarbet/gateway.redb}}\n\
         observability: {{listen: '127.0.0.1:{probes}'}}\n\
         gateway:\n  name: one\n  admin_token_file: /var/lib/tarbet/admin.token\n  \
         agents: {{listen: '127.0.0.1:{agents}', {tls}}}\n  api: {{listen: '127.0.0.1:{api}', {tls}}}\n  kubernetes: {{listen: '127.0.0.1:{kubernetes}', {tls}}}\n  \
         private: {{listen: '127.0.0.1:{private}'}}\n"
    );
    fs::write(state.join("gateway.yaml"), settings)?;
    // On this machine's network, which the daemon of the test gives as it is; all else as the charts have it.
    let role = async |name: &str, place: &Path, more: &[&str], words: &[&str]| {
        let volume = format!("{}:/var/lib/tarbet", place.display());
        let fixed =
            ["run", "--detach", "--network=host", "--read-only", "--cap-drop=ALL", "--volume", &volume];
        docker.docker(&[&fixed[..], &["--name", name], more, &[NAME], words].concat()).await
    };
    role("gateway", &state, &[], &["gateway", "--config", "/var/lib/tarbet/gateway.yaml"]).await?;
    let say = |words: &[&str]| {
        run(Command::new(env!("CARGO_BIN_EXE_tarbet"))
            .args(words)
            .env("TARBET_SERVER", format!("https://localhost:{api}"))
            .env("TARBET_TOKEN_FILE", state.join("admin.token"))
            .env("TARBET_CA_FILE", state.join("authority/ca.crt")))
    };
    let eventually = async |container: &str, words: &[&str], is: &dyn Fn(&Value) -> bool| {
        let look = async || {
            let told: Value = serde_json::from_str(&say(words)?)?;
            ensure!(is(&told), "{told:#}");
            Ok(told)
        };
        match eventually(SOON, container, look).await {
            Ok(told) => Ok(told),
            Err(error) => {
                let state = docker.docker(&["inspect", "--format={{.State}}", container]).await?;
                let told =
                    Command::new("docker").args(["--host", &docker.url(), "logs", container]).output()?;
                let told = String::from_utf8_lossy(&told.stderr).into_owned();
                Err(error.context(format!("{state}{told}")))
            }
        }
    };
    eventually("gateway", &["site", "list", "--output", "json"], &|_| true).await?;
    fs::copy(state.join("authority/ca.crt"), site.join("ca.crt"))?;

    // From the file that Docker writes, and from a server of names; whatever else the machine may have.
    let server = name_server("by-dns.test")?.to_string();
    let [switch, libraries] = strange_machine(&folder)?;
    let more =
        ["--add-host=by-file.test:127.0.0.1", "--dns", &server, "--volume", &switch, "--volume", &libraries];
    for name in ["by-file", "by-dns"] {
        let added: Value = serde_json::from_str(&say(&["site", "add", name, "--output", "json"])?)?;
        fs::write(site.join(name), added["token"]["token"].as_str().with_context(|| added.to_string())?)?;
        fs::set_permissions(site.join(name), Permissions::from_mode(0o600))?;
        chown(site.join(name), Some(USER), Some(USER))?;
        let (gateway, token) = (format!("grpcs://{name}.test:{agents}"), format!("/var/lib/tarbet/{name}"));
        let words =
            ["agent", "--gateway", &gateway, "--token-file", &token, "--ca-file", "/var/lib/tarbet/ca.crt"];
        let key = format!("{token}.key");
        let own = ["--key-file", &key, "--observability-listen", "127.0.0.1:0"];
        role(name, &site, &more, &[&words[..], &own].concat()).await?;
        let linked = |sites: &Value| {
            sites
                .as_array()
                .into_iter()
                .flatten()
                .any(|site| site["name"] == name && site["connected"] == true)
        };
        eventually(name, &["site", "list", "--output", "json"], &linked).await?;
    }
    Ok(())
}
