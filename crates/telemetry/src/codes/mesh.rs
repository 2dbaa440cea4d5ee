//! `TB-5xxx`: services across meshes.

codes! {
    RENDER_INPUT = "TB-5001" "the files cannot be rendered" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "tarbet mesh render, reading files",
        cause: "a file is missing, is not YAML or JSON, or an object in it has a field of another form",
        remedy: "correct the file that the cause names; `kubectl apply --dry-run=server` says the same of our kinds",
        page: "`tarbet mesh render -f DIR` reads one MeshFederation, one FederationServiceRules, and the Services and \
               Namespaces of a cluster from the YAML and JSON files of a folder, and from `fds/MESH.json` what each \
               peer offers: a list of services with hostname, ports and labels. With `--legacy FILE` it reads the \
               flags of the original from one JSON file, and as there an unknown field is a mistake."
    }
    NOT_INSTALLED = "TB-5002" "federation is not installed in this cluster" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "tarbet mesh → Kubernetes API",
        cause: "the cluster does not serve the kinds of federation.openshift-service-mesh.io, or there is no such object",
        remedy: "install the files of deploy/crds, and check the context of the kubeconfig",
        page: "The kinds MeshFederation, FederationServiceRules and ImportedService must be installed in each mesh \
               before the controller has anything to do. The Helm chart brings them; without it, apply the three \
               files of deploy/crds that end in federation.openshift-service-mesh.io."
    }
    UNCONFIRMED = "TB-5003" "nothing was removed" {
        whose: Caller, retry: false, http: 400, exit: 2,
        hop: "tarbet mesh cleanup, before anything was done",
        cause: "removing a federation cuts off its callers, so it must be confirmed",
        remedy: "look at `tarbet mesh status`, then run `tarbet mesh cleanup --yes`",
        page: "Cleanup deletes the FederationServiceRules and the MeshFederation of the cluster, and then every object \
               that carries the label app.kubernetes.io/managed-by=tarbet-mesh. Services of this mesh are no longer \
               reachable from others, and imported ones no longer from here. A Helm uninstall runs it by itself."
    }
}
