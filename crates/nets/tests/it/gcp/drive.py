"""Google's own client drives the stand-in of its cloud through the scenario that the plugin goes through."""

import json
import sys

from google.auth.credentials import Credentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

BASE = "https://www.googleapis.com/compute/v1/"
PROJECT, REGION, ZONE = "p", "us-west1", "us-west1-a"


class Sesame(Credentials):
    def refresh(self, request):
        self.token = "sesame"


def main(endpoint):
    compute = build("compute", "v1", credentials=Sesame(), client_options={"api_endpoint": endpoint + "/compute/v1/"})

    def wait(operation, scope, **where):
        service = {"global": compute.globalOperations, "region": compute.regionOperations, "zone": compute.zoneOperations}
        while operation["status"] != "DONE":
            operation = service[scope]().wait(project=PROJECT, operation=operation["name"], **where).execute()
        assert "error" not in operation, operation

    def world(request):
        wait(request.execute(), "global")

    def region(request):
        wait(request.execute(), "region", region=REGION)

    def zone(request):
        wait(request.execute(), "zone", zone=ZONE)

    def status(request):
        try:
            request.execute()
        except HttpError as error:
            return error.resp.status
        raise AssertionError("the request was taken")

    network = f"{BASE}projects/{PROJECT}/global/networks/para-default-vpc"
    at = f"{BASE}projects/{PROJECT}/regions/{REGION}"
    assert status(compute.networks().get(project=PROJECT, network="para-default-vpc")) == 404
    body = {"name": "para-default-vpc", "autoCreateSubnetworks": False, "routingConfig": {"routingMode": "GLOBAL"}}
    world(compute.networks().insert(project=PROJECT, body=body))
    assert status(compute.networks().insert(project=PROJECT, body=body)) == 409
    world(compute.firewalls().insert(project=PROJECT, body={
        "name": "para-default-deny-all-egress", "network": network, "direction": "EGRESS", "priority": 65534,
        "denied": [{"IPProtocol": "all"}], "destinationRanges": ["0.0.0.0/0"]}))
    region(compute.subnetworks().insert(project=PROJECT, region=REGION, body={
        "name": "para-default-us-west1-subnet", "network": network, "ipCidrRange": "10.0.0.0/16"}))
    found = compute.networks().list(project=PROJECT, filter='name eq ".*"').execute()
    assert [one["name"] for one in found["items"]] == ["para-default-vpc"], found
    found = compute.subnetworks().aggregatedList(project=PROJECT).execute()
    assert [one["ipCidrRange"] for one in found["items"][f"regions/{REGION}"]["subnetworks"]] == ["10.0.0.0/16"], found
    zone(compute.instances().insert(project=PROJECT, zone=ZONE, body={
        "name": "vm-1", "machineType": f"zones/{ZONE}/machineTypes/e2-small",
        "networkInterfaces": [{"network": network, "subnetwork": f"{at}/subnetworks/para-default-us-west1-subnet"}]}))
    made = compute.instances().get(project=PROJECT, zone=ZONE, instance="vm-1").execute()
    short = f"{int(made['id']):x}"[:8]
    tag = f"para-default-instance-{short}"
    zone(compute.instances().setTags(project=PROJECT, zone=ZONE, instance="vm-1", body={
        "items": [tag], "fingerprint": made["tags"]["fingerprint"]}))
    stale = {"items": [], "fingerprint": made["tags"]["fingerprint"]}
    assert status(compute.instances().setTags(project=PROJECT, zone=ZONE, instance="vm-1", body=stale)) == 412

    wall = {
        "name": f"para-default-fw-{short}-web", "network": network, "direction": "INGRESS",
        "allowed": [{"IPProtocol": "6", "ports": ["443"]}], "sourceRanges": ["10.0.0.9/32"], "targetTags": [tag],
        "description": "paraglider rule:[clients]"}
    world(compute.firewalls().insert(project=PROJECT, body=wall))
    world(compute.firewalls().patch(project=PROJECT, firewall=wall["name"], body=wall | {"sourceRanges": ["10.0.0.10/32"]}))
    found, request = [], compute.firewalls().list(project=PROJECT, filter=f'name eq "para-default-fw-{short}-.*"')
    while request is not None:
        page = request.execute()
        found += page.get("items", [])
        request = compute.firewalls().list_next(request, page)
    assert [one["allowed"] for one in found] == [[{"IPProtocol": "tcp", "ports": ["443"]}]], found

    region(compute.vpnGateways().insert(project=PROJECT, region=REGION, body={"name": "para-default-vpn-gw", "network": network}))
    region(compute.routers().insert(project=PROJECT, region=REGION, body={
        "name": "para-default-router", "network": network, "bgp": {"asn": 64512}}))
    region(compute.routers().patch(project=PROJECT, region=REGION, router="para-default-router", body={"interfaces": [
        {"name": f"para-default-east-tunnel-{i}-int-{i}", "ipRange": f"169.254.{21 + i}.2/30",
         "linkedVpnTunnel": f"{at}/vpnTunnels/para-default-east-tunnel-{i}"} for i in (0, 1)]}))
    gateway = compute.vpnGateways().get(project=PROJECT, region=REGION, vpnGateway="para-default-vpn-gw").execute()
    assert len(gateway["vpnInterfaces"]) == 2
    peer = f"{BASE}projects/{PROJECT}/global/externalVpnGateways/para-default-east-peer-gw"
    world(compute.externalVpnGateways().insert(project=PROJECT, body={
        "name": "para-default-east-peer-gw", "redundancyType": "TWO_IPS_REDUNDANCY",
        "interfaces": [{"id": i, "ipAddress": f"198.51.100.{i + 1}"} for i in (0, 1)]}))
    for i in (0, 1):
        region(compute.vpnTunnels().insert(project=PROJECT, region=REGION, body={
            "name": f"para-default-east-tunnel-{i}", "vpnGateway": f"{at}/vpnGateways/para-default-vpn-gw",
            "vpnGatewayInterface": i, "peerExternalGateway": peer, "peerExternalGatewayInterface": i, "ikeVersion": 2,
            "sharedSecret": "secret", "router": f"{at}/routers/para-default-router"}))
    region(compute.routers().patch(project=PROJECT, region=REGION, router="para-default-router", body={"bgpPeers": [
        {"name": f"east-bgp-peer-{i}", "interfaceName": f"para-default-east-tunnel-{i}-int-{i}",
         "peerIpAddress": f"169.254.{21 + i}.1", "peerAsn": 65515} for i in (0, 1)]}))
    assert status(compute.networks().delete(project=PROJECT, network="para-default-vpc")) == 400
    zones = compute.instances().aggregatedList(project=PROJECT).execute()["items"]
    assert [one["name"] for one in zones[f"zones/{ZONE}"]["instances"]] == ["vm-1"]
    cluster(endpoint, status, world, compute, network)
    endpoints(status, world, region, compute, network, at)
    print(json.dumps({"firewall": wall["name"]}))


def cluster(endpoint, status, world, compute, network):
    clusters = build("container", "v1", credentials=Sesame(), client_options={"api_endpoint": endpoint + "/"})
    clusters = clusters.projects().locations()
    parent = f"projects/{PROJECT}/locations/{ZONE}"
    name = f"{parent}/clusters/c-1"

    def done(operation):
        while operation["status"] != "DONE":
            operation = clusters.operations().get(name=f"{parent}/operations/{operation['name']}").execute()
        assert "error" not in operation, operation

    tag, block = "para-default-gke-c-1-node", "10.1.0.0/28"
    body = {"cluster": {
        "name": "c-1", "initialNodeCount": 1, "network": "para-default-vpc", "subnetwork": "para-default-us-west1-subnet",
        "ipAllocationPolicy": {"useIpAliases": True, "clusterIpv4CidrBlock": "10.2.0.0/16", "servicesIpv4CidrBlock": "10.3.0.0/16"},
        "privateClusterConfig": {"masterIpv4CidrBlock": block, "enablePrivateNodes": True}, "nodeConfig": {"tags": [tag]}}}
    assert status(clusters.clusters().get(name=name)) == 404
    operation = clusters.clusters().create(parent=parent, body=body).execute()
    assert status(clusters.clusters().create(parent=parent, body=body)) == 409
    made = clusters.clusters().get(name=name).execute()
    assert made["status"] == "PROVISIONING", made
    own = f"para-default-cluster-{made['id'][:8]}"
    for direction, ranges in (("INGRESS", "sourceRanges"), ("EGRESS", "destinationRanges")):
        world(compute.firewalls().insert(project=PROJECT, body={
            "name": f"paraglider-allow-control-plane-{direction.lower()}-c-1", "network": network, "direction": direction,
            "priority": 65500, "allowed": [{"IPProtocol": "all"}], ranges: [block], "targetTags": [own, tag],
            "description": "Paraglider allow cluster egress traffic"}))
    done(operation)
    update = {"update": {"desiredNodePoolAutoConfigNetworkTags": {"tags": [own]}}}
    done(clusters.clusters().update(name=name, body=update).execute())
    found = clusters.clusters().list(parent=f"projects/{PROJECT}/locations/-").execute()["clusters"]
    assert [(one["name"], one["status"]) for one in found] == [("c-1", "RUNNING")], found


def endpoints(status, world, region, compute, network, at):
    """One for a service of others, one for Google's own."""
    near, far = {"project": PROJECT, "region": REGION}, {"project": PROJECT}
    label = {"labels": {"paraglider_ns": "default"}}
    body = {"name": "para-e-1-address", "addressType": "INTERNAL", "subnetwork": f"{at}/subnetworks/para-default-us-west1-subnet"}
    region(compute.addresses().insert(**near, body=body | label))
    made = compute.addresses().get(**near, address="para-e-1-address").execute()
    if "labels" not in made:
        stale = label | {"labelFingerprint": "AAAA"}
        assert status(compute.addresses().setLabels(**near, resource="para-e-1-address", body=stale)) == 412
        fresh = label | {"labelFingerprint": made["labelFingerprint"]}
        region(compute.addresses().setLabels(**near, resource="para-e-1-address", body=fresh))
    rule = {
        "name": "e-1", "IPAddress": f"{at}/addresses/para-e-1-address", "network": network, "allowPscGlobalAccess": True,
        "target": f"{BASE}projects/elsewhere/regions/{REGION}/serviceAttachments/db"}
    away = rule | {"target": rule["target"].replace(REGION, "europe-west4")}
    assert status(compute.forwardingRules().insert(**near, body=away)) == 400
    region(compute.forwardingRules().insert(**near, body=rule))
    assert status(compute.addresses().delete(**near, address="para-e-1-address")) == 400
    found = compute.forwardingRules().get(**near, forwardingRule="e-1").execute()
    assert found["IPAddress"] == made["address"] and found["pscConnectionStatus"] == "ACCEPTED", found

    body = {
        "name": "para-apis-address", "addressType": "INTERNAL", "network": network, "purpose": "PRIVATE_SERVICE_CONNECT",
        "address": "10.0.0.1"}
    assert status(compute.globalAddresses().insert(**far, body=body)) == 400, "it is in a subnet"
    world(compute.globalAddresses().insert(**far, body=body | {"address": "10.200.0.0"} | label))
    made = compute.globalAddresses().get(**far, address="para-apis-address").execute()
    if "labels" not in made:
        fresh = label | {"labelFingerprint": made["labelFingerprint"]}
        world(compute.globalAddresses().setLabels(**far, resource="para-apis-address", body=fresh))
    rule = {"name": "apis", "IPAddress": f"{BASE}projects/{PROJECT}/global/addresses/para-apis-address", "network": network, "target": "all-apis"}
    assert status(compute.globalForwardingRules().insert(**far, body=rule | {"name": "a-pis"})) == 400
    world(compute.globalForwardingRules().insert(**far, body=rule))

    for kind, names in (("addresses", {"global": "para-apis-address", f"regions/{REGION}": "para-e-1-address"}),
                        ("forwardingRules", {"global": "apis", f"regions/{REGION}": "e-1"})):
        items = getattr(compute, kind)().aggregatedList(project=PROJECT).execute()["items"]
        assert {place: one[kind][0]["name"] for place, one in items.items()} == names, items
    short = f"{int(found['id']):x}"[:8]
    world(compute.firewalls().insert(project=PROJECT, body={
        "name": f"para-default-fw-{short}-web", "network": network, "direction": "INGRESS",
        "allowed": [{"IPProtocol": "6", "ports": ["443"]}], "sourceRanges": ["10.0.0.9/32"],
        "destinationRanges": [found["IPAddress"] + "/32"], "description": "paraglider rule:[clients]"}))


main(sys.argv[1])
