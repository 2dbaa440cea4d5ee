//! `TB-095x`: clusters, whichever capability asked.

codes! {
    CLUSTER_CONFIG = "TB-0951" "a cluster cannot be used as configured" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "start of the role, reading the way to a cluster",
        cause: "the kubeconfig is missing, cannot be read, or names a context, user or file that is not there",
        remedy: "try the same file with `kubectl --kubeconfig FILE get ns`",
        page: "A cluster is reached by a kubeconfig file, or from inside a pod by its service account. The order is \
               the flag, the variable KUBECONFIG, the service account, and then .kube/config in the home folder. \
               The file is read again when it changes, so a rotated secret needs no restart; a broken new file is \
               reported in the log and the old one stays in use."
    }
    CLUSTER_UNREACHABLE = "TB-0952" "a cluster does not answer" {
        whose: Upstream, retry: true, http: 503, exit: 1,
        hop: "role → Kubernetes API",
        cause: "the API server is down, not reachable from here, or refused the credentials",
        remedy: "try `kubectl --kubeconfig FILE get --raw /readyz` from the same machine",
        page: "Roles that watch a cluster go on trying, with pauses of up to half a minute, and take up where they \
               left when it answers again. Readiness says which cluster is missing and since when."
    }
    CLUSTER_REFUSED = "TB-0953" "the cluster refused" {
        whose: Caller, retry: false, http: 403, exit: 4,
        hop: "role → Kubernetes API",
        cause: "the account may not do that, or the object is not valid",
        remedy: "compare the account's rights with the role in deploy/, using `kubectl auth can-i --list`",
        page: "The API server answered and said no. Its own words are in the cause. Repeating the request does not \
               help until the rights or the object change."
    }
    OBJECT_MISSING = "TB-0954" "there is no such object" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "role → Kubernetes API",
        cause: "the name or the namespace is misspelt, or the object was deleted",
        remedy: "list what is there, and check the namespace and the context of the kubeconfig",
        page: "The cluster answered that it has no object of that name in that namespace. The kubeconfig's current \
               context decides which cluster was asked."
    }
}
