"""Turns `cargo metadata` into a CycloneDX list of what the program is made of.

The second argument names a file with the output of `cargo tree --prefix none`: the metadata also lists what a
feature could bring in and does not, the tree only what is linked or run while building it.
"""

import json
import sys

metadata = json.load(sys.stdin)
packages = {package["id"]: package for package in metadata["packages"]}
root = next(id for id, package in packages.items() if package["name"] == "tarbet")
with open(sys.argv[2]) as tree:
    # "name v1.2.3 (where)", with a mark where it was shown before.
    built = {tuple(line.split()[:2]) for line in tree if line.strip()}
reached = {id for id, package in packages.items() if (package["name"], "v" + package["version"]) in built}


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
