//! `TB-0xxx`: configuration, store, identity, start and stop of any role.

codes! {
    CONFIG_INVALID = "TB-0101" "the configuration has mistakes" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "start of the role, before any port is bound",
        cause: "a key is unknown, missing or has a value of the wrong kind",
        remedy: "correct each listed place, then run `tarbet config check`",
        page: "A role reads its whole configuration (file, then environment, then flags) and checks all of it \
               before it opens a port or touches the store. Each mistake is listed with the place it came from: \
               file and line, the name of the environment variable, or the flag.\n\n\
               `tarbet config check` runs the same check without starting anything, `tarbet config schema` \
               prints every key with its meaning, and `tarbet config show` prints what would be used."
    }
    CONFIG_UNREADABLE = "TB-0102" "the configuration file cannot be read" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "start of the role, before any port is bound",
        cause: "the file named by --config or TARBET_CONFIG does not exist, is not readable, or is not YAML",
        remedy: "check the path and its permissions; `tarbet config show` prints a complete example",
        page: "The file is read once at start, as the user the role runs as. Inside a container check that the \
               volume is mounted and that the user may read it. A YAML syntax mistake is reported with the line \
               at which reading stopped."
    }
    SECRET_UNREADABLE = "TB-0103" "a secret cannot be read" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "start of the role, before any port is bound",
        cause: "a key ending in _file names a file that is missing, empty or not readable",
        remedy: "create the file with mode 0600 for the user the role runs as",
        page: "Secrets are never written into a configuration file: a key that needs one takes the path of a file \
               that holds it, and nothing else. One trailing newline is removed. The content is never printed, \
               logged or put into an error."
    }
    ADDRESS_IN_USE = "TB-0201" "a listener cannot be bound" {
        whose: Ours, retry: true, http: 503, exit: 1,
        hop: "start of the role, binding a listener",
        cause: "another process holds the address, or the address does not belong to this machine",
        remedy: "stop the other process or choose another address; `ss -ltnp` shows who listens",
        page: "Each listener has its own address. All but the Kubernetes listener, the virtual node and mesh \
               discovery bind loopback unless told otherwise. Binding a port below 1024 needs a capability that \
               an ordinary user does not have."
    }
    TASK_FAILED = "TB-0202" "a part of the process stopped" {
        whose: Ours, retry: true, http: 500, exit: 1,
        hop: "inside the role",
        cause: "one of the role's tasks ended with an error or a panic while it should have gone on",
        remedy: "read the log line above it; the role stops in order so that a restart begins clean",
        page: "A role is a small set of named tasks. When one of them ends although nobody asked it to, the role \
               stops all others in order rather than go on half alive, and exits with code 1 so that systemd or \
               Kubernetes starts it again."
    }
    SHUTDOWN_DEADLINE = "TB-0203" "work was cut off at the shutdown deadline" {
        whose: Ours, retry: true, http: 503, exit: 5,
        hop: "shutdown of the role",
        cause: "requests were still running when the deadline passed",
        remedy: "raise shutdown.deadline, and terminationGracePeriodSeconds in Kubernetes above it",
        page: "On SIGTERM or SIGINT a role stops accepting, lets running work finish, cleans what it registered \
               elsewhere, and only then ends. The deadline bounds all of that. A second signal ends it at once."
    }
    STORE_UNAVAILABLE = "TB-0301" "the store does not answer" {
        whose: Upstream, retry: true, http: 503, exit: 1,
        hop: "role → store",
        cause: "Redis is down, unreachable, still loading, or refused the credentials; or the disk refused a write",
        remedy: "check that the store is up and reachable from this machine; Tarbet reconnects by itself",
        page: "Roles keep serving what they can without the store: a gateway goes on with the agents connected to \
               it. Readiness turns to failing and says why, and recovers without a restart, but for one case: \
               where the disk did not keep what was written to it (a failed flush), the embedded store takes \
               nothing more until the process is started again.\n\n\
               With Redis check address, TLS, user and password file. With the embedded store check free space \
               and that the file system is writable."
    }
    STORE_LOCKED = "TB-0302" "the embedded store is in use" {
        whose: Caller, retry: false, http: 409, exit: 1,
        hop: "role → store",
        cause: "another Tarbet process has the same store file open",
        remedy: "stop the other process, or give this one its own store.path; replicas share Redis instead",
        page: "The embedded store belongs to one process at a time. Several gateways that must know of each other \
               use Redis: set store.kind to redis in all of them."
    }
    STORE_CONFLICT = "TB-0303" "somebody else changed it first" {
        whose: Caller, retry: true, http: 409, exit: 1,
        hop: "role → store",
        cause: "the record changed between reading and writing it",
        remedy: "read it again and repeat the change",
        page: "Writes name the revision they were based on. When another writer came first the store refuses \
               rather than overwrite; repeating the command reads the new state first."
    }
    STORE_SCHEMA = "TB-0304" "the store was written by another version" {
        whose: Caller, retry: false, http: 409, exit: 1,
        hop: "role → store",
        cause: "the store's schema is newer than this binary, or the file is not a Tarbet store",
        remedy: "run the version that wrote it, or restore a backup made by this version",
        page: "Older schemas are brought up to date when they are opened. A newer one is refused and left \
               untouched, so that going back a version cannot damage it. `tarbet store backup` before an upgrade \
               gives you a file this version can restore."
    }
    CERTIFICATE_UNUSABLE = "TB-0401" "a certificate or key cannot be used" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "start of the role, or reload of certificates",
        cause: "the PEM file is missing or broken, or the key does not belong to the certificate",
        remedy: "check the pair with `openssl x509` and `openssl pkey`; on reload the old pair stays in use",
        page: "At start a broken pair stops the role. Later, when the files change, a broken new pair is reported \
               and the old one stays in use until a good one appears, so a half-finished rotation drops nobody."
    }
    TOKEN_REFUSED = "TB-0402" "a token was refused" {
        whose: Caller, retry: false, http: 401, exit: 4,
        hop: "the listener the token was presented to",
        cause: "the token is unknown, expired, revoked, used up, or meant for another audience",
        remedy: "ask for a new one (`tarbet site token`, `tarbet user add`) and check both clocks",
        page: "All reasons look alike to the caller, so that a token cannot be probed. The log of the listener \
               names the true reason beside the token's id, never the token."
    }
    BAD_REQUEST = "TB-0501" "the request cannot be understood" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "the listener that received it",
        cause: "the body, a header or a parameter is not of the expected form",
        remedy: "compare it with the reference of that API",
        page: "The message names the field and what was expected. Nothing was changed."
    }
    UNHEALTHY = "TB-0601" "something here does not work" {
        whose: Ours, retry: true, http: 503, exit: 1,
        hop: "this machine",
        cause: "at least one part or check failed; the table above names each",
        remedy: "run `tarbet check`, which says for each what to do about it",
        page: "`tarbet status` and `tarbet check` end with this code when something that should work does not, so \
               that scripts can rely on the exit code. Warnings alone do not count. `tarbet check --pre` looks only \
               at what a start needs, before anything runs."
    }
    INTERNAL = "TB-0901" "something failed inside Tarbet" {
        whose: Ours, retry: true, http: 500, exit: 1,
        hop: "inside the role",
        cause: "a condition that should not occur",
        remedy: "look for the request id in the log and report what it says",
        page: "This code means that Tarbet met a state it has no better name for. The log line with the same \
               request id holds the chain of causes. Please report it: a recurring cause deserves a code of its own."
    }
}
