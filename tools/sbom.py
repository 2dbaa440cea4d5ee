"""Turns `cargo metadata` into a CycloneDX list of what the program is made of."""

import json
import sys

metadata = json.load(sys.stdin)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
root = next(id for id, package in packages.items() if package["name"] == "tarbet")

# Only what is linked or run while building it: libraries of tests stay out.
reached, waiting = set(), [root]
while waiting:
    id = waiting.pop()
    if id in reached:
        continue
    reached.add(id)
    for edge in nodes[id]["deps"]:
        if any(kind["kind"] in (None, "build") for kind in edge["dep_kinds"]):
            waiting.append(edge["pkg"])


def component(id):
    package = packages[id]
    name = f"pkg:cargo/{package['name']}@{package['version']}"
    found = {"type": "library", "bom-ref": name, "name": package["name"], "version": package["version"], "purl": name}
    if package["license"]:
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return found


listed = sorted((component(id) for id in reached if id != root), key=lambda one: one["bom-ref"])
json.dump(
    {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "tarbet", "version": sys.argv[1]}},
        "components": listed,
    },
    sys.stdout,
    indent=1,
)
