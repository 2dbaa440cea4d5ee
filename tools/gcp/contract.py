"""Derives the contracts of the Compute Engine and Kubernetes Engine APIs that the stand-in of Google Cloud holds
requests against.

Google's Python client ships the APIs' discovery documents. What our plugin calls is kept of them: the methods,
their parameters, and the schemas of what they take, without any prose.

    python=$(tools/install gcp; echo ~/.cache/tarbet/gcp/venv/bin/python); cd crates/nets/tests/it/gcp
    $python ../../../../../tools/gcp/contract.py compute > contract.json
    $python ../../../../../tools/gcp/contract.py container > clusters.json
"""

import json
import pathlib
import sys

import googleapiclient

METHODS = {"compute": """
networks.get networks.list networks.insert networks.delete networks.addPeering networks.removePeering
subnetworks.get subnetworks.insert subnetworks.delete subnetworks.aggregatedList
firewalls.get firewalls.list firewalls.insert firewalls.patch firewalls.delete
instances.get instances.insert instances.delete instances.setTags instances.aggregatedList
routers.get routers.insert routers.patch routers.delete
vpnGateways.get vpnGateways.insert vpnGateways.delete
externalVpnGateways.get externalVpnGateways.list externalVpnGateways.insert externalVpnGateways.delete
vpnTunnels.get vpnTunnels.list vpnTunnels.insert vpnTunnels.delete
addresses.get addresses.insert addresses.delete addresses.setLabels addresses.aggregatedList
globalAddresses.get globalAddresses.insert globalAddresses.delete globalAddresses.setLabels
forwardingRules.get forwardingRules.insert forwardingRules.delete forwardingRules.aggregatedList
globalForwardingRules.get globalForwardingRules.insert globalForwardingRules.delete
globalOperations.wait regionOperations.wait zoneOperations.wait
""", "container": """
projects.locations.clusters.get projects.locations.clusters.list projects.locations.clusters.create
projects.locations.clusters.update projects.locations.clusters.delete projects.locations.operations.get
"""}
PLAIN = {"type", "format", "enum", "pattern", "$ref"}


def slim(schema):
    kept = {}
    for key, value in schema.items():
        if key in PLAIN:
            kept[key] = value
        elif key == "properties":
            kept[key] = {name: slim(one) for name, one in value.items()}
        elif key in ("items", "additionalProperties"):
            kept[key] = slim(value)
        elif key == "annotations":
            kept["required"] = value["required"]
        elif key == "readOnly" or (key == "description" and "output only" in value.lower()[:40]):
            kept["readOnly"] = True
    return kept


def references(schema):
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def main(api):
    home = pathlib.Path(googleapiclient.__file__).parent
    whole = json.loads((home / f"discovery_cache/documents/{api}.v1.json").read_text())
    methods, schemas = {}, {}

    def need(name):
        if name not in schemas:
            schemas[name] = slim(whole["schemas"][name])
            for other in list(references(schemas[name])):
                need(other)

    for dotted in METHODS[api].split():
        *resources, name = dotted.split(".")
        place = whole
        for resource in resources:
            place = place["resources"][resource]
        method = place["methods"][name]
        parameters = {}
        for parameter, schema in method["parameters"].items():
            parameters[parameter] = slim(schema) | {"in": schema["location"]}
        kept = {"verb": method["httpMethod"], "path": method.get("flatPath", method["path"]), "parameters": parameters}
        if "request" in method:
            kept["request"] = method["request"]["$ref"]
            need(kept["request"])
        methods[method["id"]] = kept
    contract = {"revision": whole["revision"], "base": whole["basePath"] or "/", "methods": methods, "schemas": schemas}
    print(json.dumps(contract, separators=(",", ":"), sort_keys=True))


main(sys.argv[1])
