//! How containers of jobs reach the outside through a login node: a SOCKS connection of the job, and
//! a library that uses it.

use std::path::PathBuf;

use super::runtime::DIR;
use super::script::Share;
use super::word::Word;

/// Where a container with a file system of its own finds the library's settings.
pub(super) const CONF_INSIDE: &str = "/run/tarbet-tsocks.conf";

/// The library and the login node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tsocks {
    /// The library.
    pub library: PathBuf,
    /// The node to ssh to.
    pub login_node: String,
}

/// What a container needs of it.
#[derive(Debug, Clone)]
pub(super) struct Proxy {
    /// The library, at the same place inside and outside.
    pub(super) library: String,
    /// Its settings, on the machine of the job.
    pub(super) conf: Word,
}

impl Tsocks {
    pub(super) fn proxy(&self, share: Share) -> Proxy {
        Proxy {
            library: self.library.display().to_string(),
            // Each job has a port of its own.
            conf: Word::variable(DIR).then(format!("/{}.tsocks.conf", share.stem())),
        }
    }

    /// Lines that make the connection and let the job itself use it, as for pulling images.
    pub(super) fn lines(&self, share: Share) -> String {
        let Proxy { library, conf } = self.proxy(share);
        let (node, library) = (Word::text(&self.login_node), Word::text(library));
        format!(
            r#"t_port=$((10000 + ${{SLURM_JOB_ID:-$$}} % 50000)) t_try=0
while [ "$t_try" -lt 20 ] && [ -z "$T_STOP" ]; do
  ssh -4 -N -o BatchMode=yes -o ExitOnForwardFailure=yes -D "127.0.0.1:$t_port" -- {node} </dev/null & T_SSH=$!
  sleep 1
  kill -0 "$T_SSH" 2>/dev/null && break
  T_SSH= t_port=$((t_port + 1)) t_try=$((t_try + 1))
done
[ -n "$T_SSH" ] || t_fail 'no connection to the login node for tsocks'
printf 'local = 10.0.0.0/255.0.0.0\nserver = 127.0.0.1\nserver_port = %s\n' "$t_port" >{conf}
export TSOCKS_CONF_FILE={conf} LD_PRELOAD={library}
"#
        )
    }
}
