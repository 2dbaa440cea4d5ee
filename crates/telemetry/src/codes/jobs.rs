//! `TB-2xxx`: requests of a public cluster that run on a private one.

codes! {
    REQUEST_REJECTED = "TB-2101" "the private side rejected the request" {
        whose: Caller, retry: false, http: 403, exit: 4,
        hop: "jobs controller, before anything was started",
        cause: "the namespace, the pipeline, a parameter or the service account is not allowed there",
        remedy: "read the message of the request; the administrator of the private side can allow it in InternalServicesConfig",
        page: "The private side alone decides what may run. It looks at the namespace of the request, the pipeline it \
               asks for, each parameter and the service account, and says no to whatever its InternalServicesConfig \
               does not name. Nothing was started. A rejected request stays rejected: once the configuration \
               allows it, submit a new one."
    }
    REQUEST_FAILED = "TB-2102" "the job failed" {
        whose: Upstream, retry: false, http: 502, exit: 1,
        hop: "private cluster, PipelineRun",
        cause: "a step of the pipeline failed, timed out or was cancelled",
        remedy: "read the end of the log with `tarbet request logs NAME`",
        page: "The request was accepted and its pipeline ran, but did not succeed. The message of the request is the \
               message of the PipelineRun, and the end of each step's log is in its status."
    }
    REQUEST_UNFINISHED = "TB-2103" "the job did not finish in time" {
        whose: Upstream, retry: true, http: 504, exit: 5,
        hop: "jobs controller → PipelineRun",
        cause: "the job is still waiting or running, or no controller watches this cluster",
        remedy: "`tarbet request show NAME` tells its state; without any status, check that `tarbet jobs` runs",
        page: "`--wait` gave up, the request did not: it goes on and can be waited for again, or cancelled with \
               `tarbet request cancel NAME`. A request without any condition after a minute was not seen by a \
               controller: it watches another cluster, or it is down."
    }
    NO_REMOTE = "TB-2201" "no remote cluster is named" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "start of the jobs controller",
        cause: "neither a flag nor the configuration says which cluster's requests to serve",
        remedy: "give --remote-kubeconfig FILE, or list the clusters under jobs.remotes",
        page: "The controller runs in the private cluster and watches requests on one or more remote ones. Each \
               remote has a name, which is part of what makes a job unique: keep it when you move the controller."
    }
}
