# Peers that `make bench` measures beside the product; read by tools/install. Pinned, from registries only.

# frp: from the Go module proxy. Its module is read-only there, so a copy is built.
frp() {
  local version=v0.61.0 home
  home=$cache/frp-$version
  if [ ! -x "$home/frpc" ]; then
    go_toolchain
    say "frp: building $version once"
    rm -rf "$home.part" && mkdir -p "$home.part"
    local source
    source=$(cd "$home.part" && go mod download -json "github.com/fatedier/frp@$version" |
      sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    cp -r "$source" "$home.part/source" && chmod -R u+w "$home.part/source"
    (cd "$home.part/source" && CGO_ENABLED=0 go build -ldflags "-s -w" -tags frps -o ../frps ./cmd/frps &&
      CGO_ENABLED=0 go build -ldflags "-s -w" -tags frpc -o ../frpc ./cmd/frpc)
    rm -rf "$home.part/source" "$home" && mv "$home.part" "$home"
  else
    say "frp: present"
  fi
  ln -sfn "$home" "$cache/frp"
}

# rathole: from crates.io, with the OpenSSL of Debian.
rathole() {
  local version=0.5.0 home
  home=$cache/rathole-$version
  if [ ! -x "$home/bin/rathole" ]; then
    [ -e /usr/include/openssl/ssl.h ] || debian no-such-program libssl-dev pkg-config
    say "rathole: building $version once"
    # Not --locked: a crate in its lock file is refused by newer compilers.
    env -u CARGO_RESOLVER_FEATURE_UNIFICATION CARGO_TARGET_DIR="$home.target" \
      cargo install --quiet --root "$home.part" --version "$version" \
      --no-default-features --features server,client,tls rathole
    rm -rf "$home.target" "$home" && mv "$home.part" "$home"
  else
    say "rathole: present"
  fi
  ln -sfn "$home" "$cache/rathole"
}

openssh() { debian sshd openssh-server; debian ssh openssh-client; }
