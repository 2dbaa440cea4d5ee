//! `TB-3xxx`: virtual nodes, interLink, plugins and the pods they run.

codes! {
    POD_INVALID = "TB-3101" "the pod cannot be run as it is written" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "plugin, before anything is made",
        cause: "a name, path, value or volume of the pod is not of a form that can be carried",
        remedy: "correct the named place of the pod; nothing was made of it",
        page: "A plugin first decides what the whole pod means and only then touches anything. It refuses names \
               that are not Kubernetes', paths that could leave the pod's own folder, values that no program can \
               be given, and volumes whose contents did not come along.\n\n\
               Contents come with the pod from the node or the API server. If a ConfigMap or Secret is said to be \
               missing, check that it exists in the pod's namespace and that ExportPodData is true."
    }
    POD_REFUSED = "TB-3102" "the host does not allow this pod" {
        whose: Caller, retry: false, http: 403, exit: 4,
        hop: "plugin, before anything is made",
        cause: "the pod asks for something that the host's own policy does not name",
        remedy: "remove it from the pod, or ask the host's administrator to name it under Policy",
        page: "Privileged containers, folders and the network of the host, added capabilities, options of sbatch \
               and annotations that are run as shell are refused unless the plugin's own configuration names \
               them. Nothing that a cluster or a gateway says can widen that."
    }
    POD_UNKNOWN = "TB-3103" "no such pod here" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "plugin",
        cause: "no pod with this UID was made here, or it was deleted",
        remedy: "`tarbet pods list` shows the pods of an endpoint",
        page: "Pods are known by their UID. A pod that was deleted and made again under the same name has \
               another one."
    }
    POD_GONE = "TB-3104" "the pod was deleted already" {
        whose: Caller, retry: false, http: 410, exit: 3,
        hop: "plugin",
        cause: "a create arrived for a UID that was deleted here before",
        remedy: "make a new pod; a UID is never used twice",
        page: "A call that was delayed on its way must not bring a deleted pod back. Plugins remember the UIDs \
               they deleted for a day."
    }
    CONTAINER_UNKNOWN = "TB-3105" "no such container in the pod" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "plugin",
        cause: "the pod has no container of this name, or it has not been made yet",
        remedy: "check the name against the pod, and the pod's state",
        page: "A container exists from the moment its turn comes: init containers one after another, then all \
               others together. Before that there is no log and nothing to run a command in."
    }
    NOT_SUPPORTED = "TB-3106" "this is not possible here" {
        whose: Caller, retry: false, http: 501, exit: 1,
        hop: "node → interLink → plugin",
        cause: "interLink has no such call, or what runs the pod cannot do it",
        remedy: "use Tarbet's own parts on both ends, or another plugin",
        page: "Exec, changed pods and pushed states exist only between Tarbet's own parts; the original API \
               server and plugins have no call for them."
    }
    RUNTIME_AWAY = "TB-3201" "what runs the pods does not answer" {
        whose: Upstream, retry: true, http: 503, exit: 1,
        hop: "plugin → Docker or Slurm",
        cause: "the Docker daemon or the Slurm controller is down, unreachable or too slow",
        remedy: "check it on the plugin's host: `docker info`, or `sinfo` and `squeue`",
        page: "The plugin goes on answering pings, says there what is wrong, and reports the last known state of \
               its pods with its age. No pod is called failed because of it. It recovers by itself."
    }
    RUNTIME_REFUSED = "TB-3202" "what runs the pods refused" {
        whose: Upstream, retry: false, http: 502, exit: 1,
        hop: "plugin → Docker or Slurm",
        cause: "the Docker daemon or Slurm answered with an error",
        remedy: "read the cause; for Slurm check partition, account and limits of the job",
        page: "The words of Docker or sbatch are passed on as the cause. Typical for Slurm: an unknown partition, \
               an account that is missing, a limit that is exceeded; for Docker: a conflict, a full disk."
    }
    POD_FOLDER = "TB-3203" "the pod's folder cannot be used" {
        whose: Ours, retry: true, http: 500, exit: 1,
        hop: "plugin → its DataRootFolder",
        cause: "the disk is full or not writable, or something in the folder is not what it should be",
        remedy: "check space and permissions of DataRootFolder on the plugin's host",
        page: "Each pod has one folder below DataRootFolder for its files, messages and record. The plugin never \
               follows links in it: if something was swapped for a link the call fails instead."
    }
    PLUGIN_AWAY = "TB-3301" "the plugin does not answer" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "interLink API server → plugin",
        cause: "the plugin is not running, or SidecarURL and SidecarPort do not lead to it",
        remedy: "start the plugin and check SidecarURL and SidecarPort of the API server",
        page: "The API server keeps running and answers again as soon as the plugin does. Pods that run are not \
               touched by it."
    }
    PLUGIN_ANSWER = "TB-3302" "the plugin's answer cannot be used" {
        whose: Upstream, retry: false, http: 502, exit: 1,
        hop: "interLink API server → plugin",
        cause: "the plugin refused the call, or answered something that is not interLink",
        remedy: "read the cause, which holds the plugin's own words, and the plugin's log",
        page: "Plugins differ in what they accept: those before 0.5 want lists. The API server tries both forms \
               once and remembers which one worked."
    }
    KUBECONFIG_REFUSED = "TB-3303" "the kubeconfig cannot be used" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "node → interLink API server, /setKubeCFG",
        cause: "it is not a kubeconfig, or it names programs, providers or files",
        remedy: "send one with inline certificates and a token for a read-only service account",
        page: "A kubeconfig can name programs to run and files to read. One that arrives over the network may do \
               neither, so only inline data is accepted. It is stored at DataRootFolder/.kube/config, readable by \
               the server alone."
    }
    CLUSTER_AWAY = "TB-3304" "the cluster cannot be asked for the pod's contents" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "interLink API server → Kubernetes",
        cause: "no kubeconfig was sent yet, the cluster is unreachable, or the object does not exist",
        remedy: "check that the node called /setKubeCFG and that the account may read ConfigMaps and Secrets",
        page: "Nodes of 2023 send only the pod; the API server then reads ConfigMaps and Secrets itself, with the \
               account it was given by /setKubeCFG. Nodes since 2024 send the contents along."
    }
    INTERLINK_AWAY = "TB-3401" "the interLink endpoint does not answer" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "caller → interLink API server",
        cause: "nothing listens at the address, or the connection broke",
        remedy: "check InterlinkURL and InterlinkPort, and that `tarbet interlink` or a plugin runs there",
        page: "The same commands work against an API server and directly against a plugin: both speak \
               interLink."
    }
}
