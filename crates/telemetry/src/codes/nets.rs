//! `TB-4xxx`: tags, permit lists, address spaces, VPNs and the clouds they are in.

codes! {
    INVALID = "TB-4101" "the request names something impossible" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "orchestrator, before any cloud was called",
        cause: "a field of the request is missing, malformed or out of range",
        remedy: "correct the fields that the message names",
        page: "Rules, tags and descriptions are checked as a whole before anything is sent to a cloud, and every \
               mistake is told at once with its field. Ports are -1 (any) to 65535 and only for protocols that \
               have ports, protocols are IANA numbers or -1, and each rule names at least one tag, address or \
               prefix. A description must not say anything about the network: that is chosen for you."
    }
    RESOURCE_UNKNOWN = "TB-4102" "no such resource" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "orchestrator",
        cause: "no resource of this name was created or attached in this namespace and cloud",
        remedy: "`tarbet glide resource list` shows what there is; mind the active namespace",
        page: "A resource is known by the tag NAMESPACE.CLOUD.NAME, which is made when the resource is created or \
               attached. A resource of another namespace answers like one that does not exist."
    }
    TAG_UNKNOWN = "TB-4103" "no such tag" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "tag service",
        cause: "the tag was never set, or was deleted",
        remedy: "`tarbet glide tag list` shows all tags",
        page: "Rules may only name tags that exist, so that a misspelt name does not quietly permit nothing. Set the \
               tag first, even if it has a single member."
    }
    TAG_CONFLICT = "TB-4104" "the tag cannot be changed so" {
        whose: Caller, retry: false, http: 409, exit: 4,
        hop: "tag service",
        cause: "the change would make a circle, or turn the tag of a resource into a group or the other way round",
        remedy: "look at both tags with `tarbet glide tag get`; delete the one that is in the way",
        page: "A tag is either a leaf, which stands for one resource or address, or a group of other tags. A group \
               can never contain itself, however far down."
    }
    PLACE_UNKNOWN = "TB-4105" "no such cloud or namespace" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "orchestrator",
        cause: "no plugin of this name is configured, or the namespace has no deployment in that cloud",
        remedy: "`tarbet glide namespace list` shows namespaces and their deployments",
        page: "Clouds come from `cloudPlugins` and deployments from `namespaces` in the orchestrator's configuration. \
               A namespace can use a cloud only if it has a deployment there."
    }
    FOREIGN_NAMESPACE = "TB-4106" "the resource belongs to another namespace" {
        whose: Caller, retry: false, http: 403, exit: 4,
        hop: "cloud plugin, before the cloud was called",
        cause: "the resource is not in the namespace that the request names",
        remedy: "switch with `tarbet glide namespace set`, or ask the owner of the resource",
        page: "A permit list belongs to the namespace of its resource, and only requests in that namespace may read \
               or change it. Resources of other namespaces may still be targets of rules, by tag or address."
    }
    SPACE_EXHAUSTED = "TB-4107" "no address space is left" {
        whose: Caller, retry: false, http: 409, exit: 1,
        hop: "orchestrator, choosing an address space",
        cause: "every block of the wanted size is used by some cloud or set aside for one that is being made",
        remedy: "add a range to `addressSpace`, delete networks that are no longer needed, or wait until what was \
                 set aside comes back (`spaceReserve`)",
        page: "Spaces are given out from the configured pools so that no two networks of any cloud or namespace \
               overlap. Every question for a free space sets one aside for `spaceReserve` (ten minutes), so that two \
               askers never get the same; one that was not used by then comes back. A plugin or client that asks \
               often without making networks can use up a pool for that long: set `spaceReserve` to a little more \
               than your slowest cloud needs to make a network."
    }
    PLAN_CHANGED = "TB-4108" "the plan is no longer what was shown" {
        whose: Caller, retry: true, http: 409, exit: 4,
        hop: "orchestrator, before any cloud was called",
        cause: "something changed between showing the plan and carrying it out",
        remedy: "ask for the plan again, look at the difference, and confirm the new one",
        page: "A plan has a digest over the exact calls it consists of. Given with the request, it makes sure that \
               those calls are made and no others; if the plan would now differ, nothing is done."
    }
    OPERATION_UNKNOWN = "TB-4109" "no such operation" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "orchestrator",
        cause: "the id is misspelt, or the operation ended long ago and was forgotten",
        remedy: "`tarbet glide operation list` shows what is running and what ended lately",
        page: "Operations are kept in the store while they run and for some days after they ended. What they did \
               stays in the audit record and in the clouds."
    }
    OPERATION_CANCELLED = "TB-4110" "the operation was cancelled" {
        whose: Caller, retry: true, http: 409, exit: 1,
        hop: "orchestrator, between two calls",
        cause: "somebody cancelled it",
        remedy: "repeat the request to finish what was begun: what is done already is not done again",
        page: "Cancelling takes effect between two calls to clouds, never inside one. What was made until then stays \
               and is used when the request is made again."
    }
    PAIR_REFUSED = "TB-4111" "these clouds cannot be connected" {
        whose: Caller, retry: false, http: 400, exit: 4,
        hop: "orchestrator, before any cloud was called",
        cause: "the two plugins have no common way to make a VPN",
        remedy: "see the table of pairs in the guide; route through a cloud that both can be connected to",
        page: "Clouds are connected by IPsec with a shared key. Routes go by BGP where both have it; IBM has none and \
               is connected to Azure by static routes. A cloud is never connected to itself: its networks are peered."
    }
    EXPECTATION = "TB-4112" "an expectation does not hold" {
        whose: Caller, retry: false, http: 409, exit: 1,
        hop: "judging of permit lists",
        cause: "a flow that must pass is denied, or one that must not pass is permitted",
        remedy: "look at the rules of both ends with `tarbet glide rule get` and `tarbet glide can`",
        page: "A file of expectations says which flows must pass and which must not. It is judged by the same reading \
               of permit lists that the clouds' rules are made from: both ends must permit a flow."
    }
    OPERATION_ENDED = "TB-4113" "the operation has ended" {
        whose: Caller, retry: false, http: 409, exit: 4,
        hop: "orchestrator",
        cause: "it was done, failed or was cancelled before this was asked",
        remedy: "`tarbet glide operation show ID` tells how it ended",
        page: "Only what still runs can be cancelled. What an operation that ended has made stays; remove it by a \
               request of its own, such as `tarbet glide rule delete` or `tarbet glide resource delete`."
    }
    IMPORT_UNKNOWN = "TB-4114" "no such imported network" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "orchestrator, looking at its record of networks that others made",
        cause: "it was never imported, it is gone from its cloud since, or somebody took it out of the record",
        remedy: "`tarbet glide topology` shows what is recorded; `tarbet glide import CLOUD` looks at the cloud anew",
        page: "`tarbet glide import` records the networks of a cloud that others made, so that their addresses are given \
               to nobody. The record is all that can be changed of them: `--forget` takes a network out of it, and \
               the next import of the cloud finds it again if it is still there."
    }
    NOT_PERMITTED = "TB-4115" "no rule permits it" {
        whose: Caller, retry: false, http: 403, exit: 4,
        hop: "permit lists as the orchestrator remembers them",
        cause: "at least one end has no rule that permits it",
        remedy: "add the missing rule with `tarbet glide rule add`; `tarbet glide drift` tells whether the clouds have \
                 what is remembered",
        page: "A flow passes only if the one end permits it out and the other permits it in. The answer comes from the \
               rules that the orchestrator remembers, without asking any cloud."
    }
    PLUGIN_UNREACHABLE = "TB-4201" "a cloud plugin does not answer" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "orchestrator → cloud plugin",
        cause: "the plugin is not running, or its host and port in `cloudPlugins` are wrong",
        remedy: "start it with `tarbet cloud NAME`, and compare its address with `cloudPlugins`",
        page: "Operations wait in the store while a plugin is away and go on from the step they had reached when they \
               are resumed."
    }
    PLUGIN_REFUSED = "TB-4202" "the cloud plugin's own policy does not allow it" {
        whose: Caller, retry: false, http: 403, exit: 4,
        hop: "cloud plugin, before the cloud was called",
        cause: "the deployment, namespace, address range or public target is not in the plugin's policy",
        remedy: "ask whoever runs the plugin; the rule belongs into the policy beside it",
        page: "Each plugin checks every call against its own policy, whoever the orchestrator is. An orchestrator that \
               was taken over can do no more with a cloud than this policy allows."
    }
    CLOUD_FAILED = "TB-4203" "the cloud refused or failed" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "cloud plugin → cloud",
        cause: "the cloud's own API answered with an error",
        remedy: "read what the cloud said; repeat the request once that is mended",
        page: "Plugins repeat calls that were throttled or failed on the cloud's side. What remains is told as the \
               cloud said it. Repeating a request finishes it: what exists already is not made again."
    }
    ORCHESTRATOR_UNREACHABLE = "TB-4204" "the orchestrator does not answer" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "caller → orchestrator",
        cause: "the orchestrator is not running, or its address is wrong",
        remedy: "start it with `tarbet nets`; `tarbet glide server get` shows the address in use",
        page: "Plugins need the orchestrator for address spaces and for connections to other clouds; the command line \
               needs it for everything but offline policy tests."
    }
    UNSUPPORTED = "TB-4205" "the cloud cannot do this" {
        whose: Caller, retry: false, http: 501, exit: 1,
        hop: "cloud plugin",
        cause: "the plugin does not have this call, or the kind of resource is switched off",
        remedy: "see the guide for what each cloud offers; kinds are switched on under `featureFlags`",
        page: "Clouds differ. Attaching resources, Kubernetes clusters and private endpoints are off until they are \
               switched on for a cloud."
    }
    STANDBY = "TB-4206" "another orchestrator leads" {
        whose: Upstream, retry: true, http: 503, exit: 1,
        hop: "orchestrator, before any cloud was called",
        cause: "several orchestrators share one store, and this one waits while another one acts",
        remedy: "ask the one that the message names, or repeat the request: if that one has ended, this one takes over",
        page: "Orchestrators that share a Redis store agree on one that acts, by a lease whose fence guards everything \
               that is written down. When it ends or is cut off, another one goes on with its operations from the call \
               they had reached. Requests that only look are answered by all of them."
    }
    CALLER_UNKNOWN = "TB-4207" "the caller is not known here" {
        whose: Caller, retry: false, http: 401, exit: 4,
        hop: "caller → listener of the networks",
        cause: "the listener asks for a token, and the call brought none or another",
        remedy: "give `--token-file`, or `tokenFile` beside the address of the plugin or orchestrator",
        page: "Listeners of the networks ask nothing on loopback unless they are told to. Where `security` names a file \
               of tokens, every call over REST and gRPC brings one of them; where it names an authority of clients, \
               every connection shows a certificate of it."
    }
    TAGS_UNREACHABLE = "TB-4208" "the tag service does not answer" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "orchestrator → tag service",
        cause: "the tag service that `remoteTags` names is not running, or its host and port are wrong",
        remedy: "start it with `tarbet tags`, and compare its address, and its wire, with `remoteTags`",
        page: "Tags are kept by the orchestrator itself, or by a service elsewhere. In the second case they are looked up \
               there before each decision, and changed there first: while it is away nothing is decided by what was \
               true before."
    }
    NEEDS_ROOT = "TB-4301" "the local cloud needs root" {
        whose: Caller, retry: false, http: 403, exit: 4,
        hop: "local cloud, before anything was touched",
        cause: "network namespaces, bridges and packet filters can only be made by root",
        remedy: "run it with sudo; without root it can only show the commands it would run (`--plan`)",
        page: "The local cloud is made of the kernel's own network namespaces. It makes nothing outside of namespaces \
               that carry its prefix, and `tarbet cloud local --remove` takes all of them away again."
    }
    TOOL_FAILED = "TB-4302" "a network tool failed" {
        whose: Ours, retry: true, http: 500, exit: 1,
        hop: "local cloud → kernel",
        cause: "ip, nft, swanctl or birdc ended with an error, or is not installed",
        remedy: "read what the tool said; on Debian install iproute2 nftables bird2 strongswan-charon \
                 strongswan-swanctl libcharon-extra-plugins",
        page: "The local cloud drives the ordinary tools, so that what it did can be looked at with the same tools: \
               `ip netns`, `nft list ruleset`, `swanctl --list-sas`, `birdc show protocols`."
    }
}
