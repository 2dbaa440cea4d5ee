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
    NOT_IMPORTED = "TB-5004" "no such service is imported" {
        whose: Caller, retry: false, http: 404, exit: 3,
        hop: "tarbet mesh test, looking for the ImportedService",
        cause: "no mesh exports it, the rules here do not import it, or it has no such port",
        remedy: "look at `kubectl get importedservices -A` and `tarbet mesh status`; in the other mesh a rule must name it",
        page: "A service can be called across meshes once the other mesh's FederationServiceRules export it, the rules \
               of this mesh import from that mesh, and both controllers hear each other. `tarbet mesh status` shows \
               how many services each remote offers, how many are imported, and why others were refused."
    }
    TRIAL_FAILED = "TB-5005" "an imported service does not answer" {
        whose: Upstream, retry: true, http: 502, exit: 1,
        hop: "tarbet mesh test, the step that is named",
        cause: "the name does not resolve, the gateway cannot be reached or does not know the service, the identities do \
                not match, or the service itself fails",
        remedy: "dns: set ISTIO_META_DNS_CAPTURE; mtls: check the gateway's address and the common root; http: look at the service",
        page: "The steps are those of a caller's proxy. `dns` resolves the name here. `mtls` goes to a gateway of the other \
               mesh, names the service by its server name, shows the workload's certificate and accepts only the \
               identities that the other mesh told. `http` asks for a page over that connection; an answer below 500 is \
               good. Where the gateway closes the connection at once, it does not know the server name: not exported."
    }
}
