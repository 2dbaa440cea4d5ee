//! `TB-1xxx`: agents, gateways, links and routing.

codes! {
    SITE_UNKNOWN = "TB-1101" "no such site" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "entry gateway",
        cause: "no site with this name is registered, or the caller has no role on it",
        remedy: "`tarbet site list` shows the sites you may use; `tarbet site add NAME` makes one",
        page: "A site that does not exist and a site the caller may not see answer alike, so that names cannot be \
               probed. Ask the operator for a role on the site if it should be there."
    }
    SITE_NOT_CONNECTED = "TB-1102" "the site is not connected" {
        whose: Upstream, retry: true, http: 504, exit: 5,
        hop: "entry gateway → site",
        cause: "no agent of the site was connected to any gateway before the deadline",
        remedy: "check that the agent runs and can dial out: its log and readiness say why it cannot",
        page: "A request for a site without an agent waits, and goes through the moment an agent connects to any \
               gateway. It ends when the caller leaves, at its deadline, or after max_wait.\n\n\
               At the site look at the agent's readiness (`/readyz`): it names the gateway it cannot reach and \
               the reason, such as DNS, TLS, a proxy or a refused token."
    }
    GATEWAY_UNREACHABLE = "TB-1103" "another gateway does not answer" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "entry gateway → holding gateway",
        cause: "the gateway that holds the agent's connection cannot be reached on its private listener",
        remedy: "check private.advertise of that gateway and the network policy between gateways",
        page: "Gateways reach each other by the URL each of them advertises in the registry. A URL that only \
               works inside one pod or zone gives this error from everywhere else. Entries of a gateway that \
               died expire by themselves."
    }
    LINK_LOST = "TB-1104" "the connection to the agent broke" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "gateway → agent",
        cause: "the agent's connection ended while the request was on it",
        remedy: "repeat the request if it is safe to repeat; the agent reconnects by itself",
        page: "A request that had not reached the agent is retried on another link without the caller noticing. \
               One that had reached it is not, because it may already have had its effect."
    }
    REGISTRY_UNAVAILABLE = "TB-1105" "the registry of links does not answer" {
        whose: Upstream, retry: true, http: 503, exit: 1,
        hop: "entry gateway → store",
        cause: "the store behind the registry is down, and the site is not connected to this gateway itself",
        remedy: "bring the store back; sites connected to this gateway keep working meanwhile",
        page: "Each gateway knows its own agents without the store. Only requests that must cross to another \
               gateway need the registry."
    }
    REQUEST_UNKNOWN = "TB-1106" "nobody remembers this request" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "gateway",
        cause: "no request with this id passed lately, or it was for a site that is not yours to see",
        remedy: "check the id; the audit log keeps requests longer: `tarbet audit tail FILE`",
        page: "Gateways remember the steps of recent requests in memory, as many as remembered_requests says and \
               not across a restart. Each answer carries its id in the header tarbet-request-id."
    }
    REQUEST_LOOP = "TB-1107" "the request goes round in a circle" {
        whose: Upstream, retry: false, http: 508, exit: 1,
        hop: "entry gateway",
        cause: "the API server of a site is this gateway itself, so that the request came back to where it began",
        remedy: "look at the kubeconfig of the site's agent: its server must be the cluster, not the gateway",
        page: "Each gateway notes in the header CDN-Loop (RFC 8586) that a request of a Kubernetes client passed it. \
               A site may stand behind another one, so a few times are taken; a request that comes more often would \
               come for ever, and take up a connection and a stream each time."
    }
    AGENT_REFUSED_POLICY = "TB-1201" "the site's policy does not allow it" {
        whose: Caller, retry: false, http: 403, exit: 4,
        hop: "agent, before anything at the site was touched",
        cause: "no rule of the site's policy permits this service, target, verb, namespace or caller",
        remedy: "ask the site's operator; the rule belongs into the policy file beside the agent",
        page: "The site decides alone. A gateway cannot widen what the agent's policy permits, whoever calls. \
               Without a policy file an agent offers the kubernetes service only, within the RBAC of its own \
               service account."
    }
    TARGET_UNREACHABLE = "TB-1202" "the agent cannot reach the target" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "agent → target at the site",
        cause: "the Kubernetes API server or the TCP host does not answer the agent",
        remedy: "check from the agent's machine that the address is right and the port open",
        page: "The link is fine: the request reached the agent, and the last hop inside the site failed. For the \
               kubernetes service check the agent's kubeconfig or service account; for tcp check name and port."
    }
    SERVICE_NOT_OFFERED = "TB-1203" "the agent does not offer this service" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "agent",
        cause: "the service name in the request is not among those the agent registered",
        remedy: "`tarbet site list -o json` shows what each agent offers",
        page: "An agent announces its services when it connects. A service that is configured at the site but not \
               listed usually means an older agent, or one started without the setting."
    }
    SITE_KEY_UNKNOWN = "TB-1204" "the agent's key is not a known one" {
        whose: Upstream, retry: false, http: 502, exit: 4,
        hop: "this machine → agent, end to end",
        cause: "the agent was given a new key, or somebody between here and the agent pretends to be it",
        remedy: "compare the key in the agent's log with the one remembered here before you trust it",
        page: "Connections of our own clients are sealed from this machine to the agent; the gateways between carry \
               them and cannot read them. The key of a site is remembered when it is first used. An agent that \
               moved to another machine without its key file has a new key: `tarbet forward --trust-new-key` \
               remembers it, after you have made sure that it is the agent's."
    }
    CALLER_REFUSED = "TB-1301" "the caller may not do this" {
        whose: Caller, retry: false, http: 403, exit: 4,
        hop: "entry gateway",
        cause: "the caller is known but has no role that allows this on this site",
        remedy: "ask for a role with `tarbet user add NAME --role ROLE --site SITE`",
        page: "Roles are per site: viewer may read state, user may send requests to the site, operator may also \
               change the site's entry and revoke its tokens."
    }
    AGENT_TOKEN_REFUSED = "TB-1302" "the agent's token was refused" {
        whose: Caller, retry: false, http: 401, exit: 4,
        hop: "agent → gateway, when the link was opened",
        cause: "the token is unknown, expired, used up or revoked",
        remedy: "make a new one with `tarbet site token NAME` and give it to the agent",
        page: "Agents keep trying with growing pauses, so that a token that becomes valid later is picked up. \
               Revocation ends live links within sixty seconds."
    }
    CREDENTIALS_MISSING = "TB-1303" "credentials are missing or not accepted here" {
        whose: Caller, retry: false, http: 401, exit: 4,
        hop: "entry gateway",
        cause: "no credential was sent, or one that belongs to another listener",
        remedy: "`tarbet kube login SITE` writes a kubeconfig with the right credential",
        page: "Each listener takes its own kind: the agent listener agent tokens, the API listener JWTs of the \
               shared secret or user tokens, the Kubernetes listener user tokens, the private listener JWTs of \
               the gateways' own secret. One kind is never accepted in place of another."
    }
    GITLAB_UNAVAILABLE = "TB-1304" "GitLab cannot be asked" {
        whose: Upstream, retry: true, http: 503, exit: 1,
        hop: "entry gateway → GitLab",
        cause: "GitLab, which checks these credentials, did not answer or answered something else",
        remedy: "check gateway.kas.gitlab: its address, its secret and the network to it",
        page: "Where `gitlab.address` is set, GitLab says who may use which agent. Its answers are used again for at \
               most a minute, so that a revoked token is soon refused; when GitLab is away for longer, nobody can \
               be let in by its word. Users with tokens of this gateway are not affected."
    }
    QUOTA_EXCEEDED = "TB-1401" "a quota is used up" {
        whose: Caller, retry: true, http: 429, exit: 4,
        hop: "gateway",
        cause: "the site or the caller has reached its limit of links, streams, bytes in flight or requests a second",
        remedy: "wait and repeat, or raise the limit in the gateway's quotas",
        page: "Limits are per site and per caller, so that one of them cannot starve the others. The message \
               names the limit that was met and its value."
    }
    DRAINING = "TB-1402" "the gateway is shutting down" {
        whose: Upstream, retry: true, http: 503, exit: 1,
        hop: "entry gateway",
        cause: "the gateway received SIGTERM and takes no new requests",
        remedy: "repeat the request: another replica, or the restarted one, takes it",
        page: "A draining gateway fails its readiness first, tells its agents to open a link elsewhere, lets \
               running requests finish, and removes its entries from the registry."
    }
    AUDIT_UNWRITABLE = "TB-1403" "the record of requests cannot be written" {
        whose: Ours, retry: true, http: 503, exit: 1,
        hop: "gateway or agent → its audit log",
        cause: "the disk of the audit log is full or gone",
        remedy: "make room on the disk that holds the audit log; nothing needs to be restarted",
        page: "Every request leaves one record, which is in the file before the request goes on. When the disk does \
               not take records, readiness says so and requests are refused; they are taken again as soon as there \
               is room."
    }
    AUDIT_BROKEN = "TB-1404" "the record of requests was tampered with" {
        whose: Caller, retry: false, http: 409, exit: 1,
        hop: "the audit log",
        cause: "a record was changed, added or removed after it was written, or the file was cut off",
        remedy: "keep the file as it is and find out who could write it; records before the break are genuine",
        page: "Each record holds a hash over itself and the record before it, and the number and hash of the last \
               one lie in a file beside the log. Whoever may write both can shorten the log unnoticed, unless a \
               head was kept elsewhere: give it with --head. A machine that lost power may leave the last line \
               unfinished; that is not a break."
    }
    VERSION_MISMATCH = "TB-1501" "agent and gateway have no version in common" {
        whose: Caller, retry: false, http: 426, exit: 1,
        hop: "agent → gateway, when the link was opened",
        cause: "one side is more than two releases older than the other",
        remedy: "upgrade the older side",
        page: "The native link negotiates its version when it connects. Each release speaks its own version and \
               those of the two releases before it."
    }
    PROTOCOL_VIOLATION = "TB-1502" "the other side broke the protocol" {
        whose: Upstream, retry: false, http: 502, exit: 1,
        hop: "the link or the listener that received it",
        cause: "a frame was malformed, out of order or too large",
        remedy: "check that both ends are what they should be and that no proxy rewrites the traffic",
        page: "Only the connection that misbehaved is ended. The log names the peer, the frame and the limit."
    }
}
