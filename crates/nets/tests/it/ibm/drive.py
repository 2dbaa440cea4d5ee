"""IBM's own SDKs drive the stand-in of its cloud through the scenario that the plugin goes through."""

import hashlib
import sys

from ibm_cloud_networking_services.transit_gateway_apis_v1 import TransitGatewayApisV1
from ibm_cloud_sdk_core import ApiException
from ibm_cloud_sdk_core.authenticators import BearerTokenAuthenticator
from ibm_platform_services import GlobalTaggingV1
from ibm_vpc import VpcV1

GROUP, NAMESPACE, REGION, ZONE = "rg", "default", "us-south", "us-south-1"


def name(kind, *more):
    parts = [GROUP, NAMESPACE, REGION, *more]
    return f"paraglider-{kind}-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def main(url):
    key = BearerTokenAuthenticator("sesame")
    cloud = VpcV1(version="2026-10-06", authenticator=key)
    cloud.set_service_url(f"{url}/{REGION}/v1")
    tags = GlobalTaggingV1(authenticator=key)
    tags.set_service_url(f"{url}/tags")
    transit = TransitGatewayApisV1(version="2023-12-05", authenticator=key)
    transit.set_service_url(f"{url}/transit/v1")
    group = {"id": GROUP}

    def settled(get, field, wanted):
        for _ in range(1000):
            found = get().get_result()
            if found[field] == wanted:
                return found
        raise AssertionError(found)

    def code(call):
        try:
            call()
        except ApiException as error:
            return error.status_code
        raise AssertionError("the request was taken")

    vpc = cloud.create_vpc(name=name("vpc"), address_prefix_management="manual", resource_group=group).get_result()
    assert code(lambda: cloud.create_vpc(name=name("vpc"))) == 400
    vpc = settled(lambda: cloud.get_vpc(vpc["id"]), "status", "available")
    tags.attach_tag(tag_names=["pg", NAMESPACE, "shared"], resources=[{"resource_id": vpc["crn"]}])
    prefix = cloud.create_vpc_address_prefix(vpc["id"], "10.0.0.0/16", {"name": ZONE}, name=name("prefix", ZONE)).get_result()
    subnet = cloud.create_subnet({
        "name": name("subnet", ZONE), "vpc": {"id": vpc["id"]}, "ipv4_cidr_block": prefix["cidr"], "zone": {"name": ZONE},
        "resource_group": group}).get_result()
    subnet = settled(lambda: cloud.get_subnet(subnet["id"]), "status", "available")
    shield = cloud.create_security_group({"id": vpc["id"]}, name=name("sg", ZONE, "vm-1"), resource_group=group).get_result()
    machine = cloud.create_instance({
        "name": name("vm-1", ZONE), "vpc": {"id": vpc["id"]}, "zone": {"name": ZONE}, "profile": {"name": "bx2-2x8"},
        "image": {"id": "image-1"}, "resource_group": group,
        "primary_network_interface": {"subnet": {"id": subnet["id"]}, "security_groups": [{"id": shield["id"]}]}}).get_result()
    machine = settled(lambda: cloud.get_instance(machine["id"]), "status", "running")
    assert machine["primary_network_interface"]["primary_ip"]["address"].startswith("10.0.0.")
    cloud.create_security_group_rule(shield["id"], {
        "direction": "inbound", "protocol": "tcp", "ip_version": "ipv4", "remote": {"cidr_block": "10.0.0.9/32"},
        "port_min": 443, "port_max": 443})
    assert len(cloud.list_security_group_rules(shield["id"]).get_result()["rules"]) == 1
    endpoint = {
        "target": {"resource_type": "provider_cloud_service", "crn": "crn:v1:bluemix:public:cos:::x"},
        "vpc": {"id": vpc["id"]}, "resource_group": group}
    guard = cloud.create_security_group({"id": vpc["id"]}, name=name("sg", ZONE, "endpoint", "e-1"), resource_group=group).get_result()
    address = cloud.create_subnet_reserved_ip(subnet["id"], name=name("ip", ZONE, "e-1")).get_result()
    bound = endpoint | {"ips": [{"id": address["id"]}], "security_groups": [{"id": guard["id"]}]}
    made = cloud.create_endpoint_gateway(**bound, name=name("e-1", ZONE)).get_result()
    made = settled(lambda: cloud.get_endpoint_gateway(made["id"]), "lifecycle_state", "stable")
    assert made["ips"][0]["address"] == address["address"], made
    assert code(lambda: cloud.create_endpoint_gateway(**bound, name="again")) == 400
    assert code(lambda: cloud.delete_subnet_reserved_ip(subnet["id"], address["id"])) == 409
    assert code(lambda: cloud.delete_security_group(guard["id"])) == 409
    found = cloud.list_subnet_reserved_ips(subnet["id"]).get_result()["reserved_ips"]
    assert [one["target"]["id"] for one in found] == [made["id"]], found
    assert len(cloud.list_endpoint_gateways(vpc_id=vpc["id"]).get_result()["endpoint_gateways"]) == 1
    cloud.create_security_group_rule(guard["id"], {
        "direction": "inbound", "protocol": "tcp", "ip_version": "ipv4", "remote": {"cidr_block": "10.0.0.9/32"},
        "port_min": 443, "port_max": 443})
    gateway = cloud.create_vpn_gateway({
        "name": name("vpn"), "mode": "route", "subnet": {"id": subnet["id"]}, "resource_group": group}).get_result()
    gateway = settled(lambda: cloud.get_vpn_gateway(gateway["id"]), "lifecycle_state", "stable")
    ike = cloud.create_ike_policy(
        2, authentication_algorithm="sha384", encryption_algorithm="aes256", dh_group=24, key_lifetime=27000,
        name=name("ike") + "-azure", resource_group=group).get_result()
    ipsec = cloud.create_ipsec_policy(
        authentication_algorithm="sha256", encryption_algorithm="aes256", pfs="disabled",
        name=name("ipsec") + "-azure", resource_group=group).get_result()
    table = cloud.get_vpc_default_routing_table(vpc["id"]).get_result()
    zones = [zone["name"] for zone in cloud.list_region_zones(REGION).get_result()["zones"]]
    made = []
    for index in (0, 1):
        made.append(cloud.create_vpn_gateway_connection(gateway["id"], {
            "name": f"{name('conn')}-azure-{index}", "peer": {"address": f"198.51.100.{index + 1}"}, "psk": "secret",
            "ike_policy": {"id": ike["id"]}, "ipsec_policy": {"id": ipsec["id"]}}).get_result())
    for zone in zones:
        for priority, connection in enumerate(made):
            route = "\n".join(["10.9.0.0/16", zone, connection["id"]]).encode()
            cloud.create_vpc_routing_table_route(
                vpc["id"], table["id"], "10.9.0.0/16", {"name": zone}, action="deliver",
                name="paraglider-route-" + hashlib.sha256(route).hexdigest()[:8], next_hop={"id": connection["id"]},
                priority=priority)
    assert code(lambda: cloud.delete_vpc(vpc["id"])) == 409
    # What the scenario above leaves no trace of.
    hub = transit.create_transit_gateway(REGION, "hub", global_=True, resource_group=group).get_result()
    settled(lambda: transit.get_transit_gateway(hub["id"]), "status", "available")
    link = transit.create_transit_gateway_connection(hub["id"], "vpc", name="link", network_id=vpc["crn"]).get_result()
    settled(lambda: transit.get_transit_gateway_connection(hub["id"], link["id"]), "status", "attached")
    transit.delete_transit_gateway_connection(hub["id"], link["id"])
    while transit.list_transit_gateway_connections(hub["id"]).get_result()["connections"]:
        pass
    transit.delete_transit_gateway(hub["id"])
    while transit.list_transit_gateways().get_result()["transit_gateways"]:
        pass


main(sys.argv[1])
