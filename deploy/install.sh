#!/bin/sh
# Installs the program `tarbet`, and with --role a systemd unit for it and a configuration to begin with.
#
#   install.sh --from PATH|URL [--sha256 SUM] [--to /usr/local/bin] [--role gateway|agent|nets] [--plan]
#
# --from names the program: a file, or an https:// URL. From a URL a checksum must be given: what is
# fetched runs as root. Nothing is started; the last line says what to do next.
set -eu

from= sum= to=/usr/local/bin role= plan= units=/etc/systemd/system
die() { printf 'install: %s\n' "$1" >&2; exit "${2:-1}"; }
usage() { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit "$1"; }
while [ $# -gt 0 ]; do
  case $1 in
    --from) from=${2:?}; shift ;;
    --sha256) sum=${2:?}; shift ;;
    --to) to=${2:?}; shift ;;
    --units) units=${2:?}; shift ;;
    --role) role=${2:?}; shift ;;
    --plan) plan=1 ;;
    --help|-h) usage 0 ;;
    *) printf 'install: unknown argument %s\n' "$1" >&2; usage 2 >&2 ;;
  esac
  shift
done
[ -n "$from" ] || die "--from is missing; see --help" 2
case $role in ''|gateway|agent|nets) ;; *) die "--role takes gateway, agent or nets" 2 ;; esac

run() { if [ -n "$plan" ]; then printf 'would run: %s\n' "$*"; else "$@"; fi; }

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT INT TERM
case $from in
  https://*)
    [ -n "$sum" ] || die "--sha256 is missing: what comes from a URL is installed only if it is what you expect" 2
    run curl --fail --silent --show-error --location --proto '=https' --output "$temporary/tarbet" "$from" ;;
  http://*) die "plain http is refused; use https" 2 ;;
  *) [ -f "$from" ] || die "there is no file $from"; cp "$from" "$temporary/tarbet" ;;
esac
if [ -n "$sum" ] && [ -f "$temporary/tarbet" ]; then
  found=$(sha256sum "$temporary/tarbet" | cut -d' ' -f1)
  [ "$found" = "$sum" ] || die "the checksum is $found, not $sum; nothing was installed"
fi
if [ -f "$temporary/tarbet" ]; then
  chmod 755 "$temporary/tarbet"
  "$temporary/tarbet" version >/dev/null || die "it is not a program that runs here ($(uname -sm)); nothing was installed"
fi
run mkdir -p "$to"
# Renamed into place: a running program is never written over.
run cp "$temporary/tarbet" "$to/.tarbet.new"
run mv "$to/.tarbet.new" "$to/tarbet"
# Under this name kubectl finds it: `kubectl tarbet status`.
run ln -sf tarbet "$to/kubectl-tarbet"

if [ -n "$role" ]; then
  here=$(cd "$(dirname "$0")" && pwd)
  [ -f "$here/systemd/tarbet-$role.service" ] || die "systemd/tarbet-$role.service is not beside this script"
  # Units run as a user who exists only meanwhile: what they may read belongs to this group, also what is
  # put into the folder later.
  getent group tarbet >/dev/null || run groupadd --system tarbet
  run mkdir -p "$units" /etc/tarbet
  run chgrp tarbet /etc/tarbet
  run chmod 2750 /etc/tarbet
  [ -e "/etc/tarbet/$role.yaml" ] || run install -m 640 -g tarbet "$here/systemd/$role.yaml" /etc/tarbet/
  sed "s#/usr/local/bin/tarbet#$to/tarbet#" "$here/systemd/tarbet-$role.service" > "$temporary/unit"
  next="look at /etc/tarbet/$role.yaml, then systemctl enable --now tarbet-$role"
  # It was here before: what runs is still the old program.
  [ ! -e "$units/tarbet-$role.service" ] || next="systemctl daemon-reload && systemctl restart tarbet-$role"
  run cp "$temporary/unit" "$units/tarbet-$role.service"
  printf 'Next: %s\n' "$next"
else
  printf 'Next: %s/tarbet check --pre\n' "$to"
fi
