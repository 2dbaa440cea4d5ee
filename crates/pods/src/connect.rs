//! Connections to a pod's ports from inside one of its containers, by whatever program it has.

/// Connects to a port of the pod; the port is the first argument.
const CONNECT: &str = r#"has() { command -v "$1" >/dev/null 2>&1; }
if has socat; then exec socat - "TCP:127.0.0.1:$1"; fi
if has nc; then exec nc 127.0.0.1 "$1"; fi
if has busybox; then exec busybox nc 127.0.0.1 "$1"; fi
if has bash; then exec bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1; cat <&3 & cat >&3; wait $!' connect "$1"; fi
echo 'the container has none of socat, nc, busybox and bash' >&2; exit 127"#;

/// A command whose streams are those of a connection to this port.
pub(crate) fn command(port: u16) -> Vec<String> {
    ["/bin/sh", "-c", CONNECT, "connect", &port.to_string()].map(str::to_owned).to_vec()
}
