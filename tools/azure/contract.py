#!/usr/bin/env python3
"""Derives the contract of the Azure calls that Tarbet makes from Azure's own Python SDK.

    tools/install azure
    ~/.cache/tarbet/azure/venv/bin/python tools/azure/contract.py > crates/nets/tests/it/azure/contract.json

For each operation: verb, path, api-version, other parameters and the schema of its body, with every type, required
and read-only field, enumeration, pattern and bound that the SDK knows.
"""

import importlib
import inspect
import json
import re
import sys

NETWORK = "azure.mgmt.network", "azure.mgmt.network.operations._operations"
COMPUTE = "azure.mgmt.compute.v2022_11_01", "azure.mgmt.compute.v2022_11_01.operations._virtual_machines_operations"
CLUSTERS = (
    "azure.mgmt.containerservice.v2024_01_01",
    "azure.mgmt.containerservice.v2024_01_01.operations._managed_clusters_operations",
)

# The builder of each request, and the model of its body.
WANTED = [
    (NETWORK, "virtual_networks", {"list": None, "get": None, "delete": None, "create_or_update": "VirtualNetwork", "update_tags": "TagsObject"}),
    (NETWORK, "subnets", {"get": None, "delete": None, "create_or_update": "Subnet"}),
    (NETWORK, "virtual_network_peerings",
     {"list": None, "get": None, "delete": None, "create_or_update": "VirtualNetworkPeering"}),
    (NETWORK, "network_security_groups",
     {"list": None, "get": None, "delete": None, "create_or_update": "NetworkSecurityGroup", "update_tags": "TagsObject"}),
    (NETWORK, "security_rules", {"get": None, "delete": None, "create_or_update": "SecurityRule"}),
    (NETWORK, "network_interfaces", {"list": None, "get": None, "delete": None, "create_or_update": "NetworkInterface", "update_tags": "TagsObject"}),
    (NETWORK, "public_ip_addresses", {"get": None, "delete": None, "create_or_update": "PublicIPAddress"}),
    (NETWORK, "nat_gateways", {"get": None, "delete": None, "create_or_update": "NatGateway"}),
    (NETWORK, "virtual_network_gateways",
     {"list": None, "get": None, "delete": None, "create_or_update": "VirtualNetworkGateway"}),
    (NETWORK, "local_network_gateways",
     {"list": None, "get": None, "delete": None, "create_or_update": "LocalNetworkGateway"}),
    (NETWORK, "virtual_network_gateway_connections",
     {"list": None, "get": None, "delete": None, "create_or_update": "VirtualNetworkGatewayConnection",
      "get_shared_key": None, "set_shared_key": "ConnectionSharedKey"}),
    (COMPUTE, "", {"get": None, "delete": None, "create_or_update": "VirtualMachine"}),
    (CLUSTERS, "", {"list_by_resource_group": None, "get": None, "delete": None, "create_or_update": "ManagedCluster"}),
]

SCALARS = {
    "str": {"type": "string"}, "int": {"type": "integer"}, "long": {"type": "integer"},
    "float": {"type": "number"}, "bool": {"type": "boolean"}, "object": {}, "bytearray": {"type": "string"},
    "iso-8601": {"type": "string"}, "duration": {"type": "string"}, "date": {"type": "string"},
}
BOUNDS = {"pattern": "pattern", "maximum": "maximum", "minimum": "minimum", "max_length": "maxLength",
          "min_length": "minLength", "max_items": "maxItems", "min_items": "minItems", "unique": "uniqueItems"}


def enumeration(models, annotation):
    """The values of the enumeration that a parameter's annotation names, if it names one."""
    found = re.search(r"_models\.(\w+)", str(annotation))
    kind = getattr(models, found.group(1), None) if found else None
    if kind is None or not hasattr(kind, "__members__"):
        return None
    return sorted({member.value for member in kind})


class Schemas:
    """Schemas of models, each once."""

    def __init__(self):
        self.found = {}

    def of(self, models, prefix, text):
        if text in SCALARS:
            return dict(SCALARS[text])
        if text.startswith("["):
            return {"type": "array", "items": self.of(models, prefix, text[1:-1])}
        if text.startswith("{"):
            return {"type": "object", "additionalProperties": self.of(models, prefix, text[1:-1])}
        name = prefix + text
        if name not in self.found:
            self.found[name] = {}
            self.found[name] = self.model(models, prefix, getattr(models, text))
        return {"$ref": name}

    def model(self, models, prefix, kind):
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        parameters = inspect.signature(kind.__init__).parameters
        rules = getattr(kind, "_validation", {})
        for attribute, entry in sorted(kind._attribute_map.items()):
            rule = rules.get(attribute, {})
            if rule.get("constant"):
                continue
            if rule.get("readonly"):
                value = {"readOnly": True}
            else:
                value = self.of(models, prefix, entry["type"])
                target = value.get("items", value) if value.get("type") == "array" else value
                values = enumeration(models, parameters[attribute].annotation) if attribute in parameters else None
                if values and target.get("type") == "string":
                    target["enum"] = values
                for ours, theirs in BOUNDS.items():
                    if ours in rule:
                        value[theirs] = rule[ours]
            place = schema
            *path, last = [part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", entry["key"])]
            for part in path:
                place = place["properties"].setdefault(
                    part, {"type": "object", "properties": {}, "additionalProperties": False})
            place["properties"][last] = value
            if rule.get("required"):
                place.setdefault("required", []).append(last)
        return schema


def main():
    schemas, operations = Schemas(), []
    for (package, module), group, methods in WANTED:
        models = importlib.import_module(package + ".models")
        builders = importlib.import_module(module)
        prefix = package.split(".")[2] + "."
        for method, body in methods.items():
            name = "_".join(part for part in ("build", group, method, "request") if part)
            source = inspect.getsource(getattr(builders, name))
            operation = {
                "verb": re.search(r'method="(\w+)"', source).group(1),
                "path": re.search(r'"(/subscriptions/[^"]+)"', source).group(1),
                "apiVersion": re.search(r'"api-version", "([\d-]+)"', source).group(1),
            }
            query = sorted(set(re.findall(r'_params\["([^"]+)"\]', source)) - {"api-version"})
            if query:
                operation["query"] = query
            if body:
                operation["body"] = schemas.of(models, prefix, body)["$ref"]
            operations.append(operation)
    operations.sort(key=lambda operation: (operation["path"], operation["verb"]))
    contract = {"operations": operations, "schemas": dict(sorted(schemas.found.items()))}
    # A line for each operation and schema: small, and a change of the SDK shows as few lines.
    lines = ['{"operations":[']
    lines.append(",\n".join(json.dumps(operation, separators=(",", ":")) for operation in operations))
    lines.append('],"schemas":{')
    lines.append(",\n".join(
        json.dumps(name) + ":" + json.dumps(schema, separators=(",", ":"))
        for name, schema in contract["schemas"].items()))
    lines.append("}}")
    sys.stdout.write("\n".join(lines) + "\n")


main()
