"""Leads a stand-in for Azure through the life that the plugin lives, with Azure's own SDK."""

import sys

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.containerservice import ContainerServiceClient
from azure.mgmt.network import NetworkManagementClient

URL, GROUP = sys.argv[1], "rg"
TAGS = {"paraglider-namespace": "default"}


class Nobody:
    """No credentials: the stand-in is open."""

    def get_token(self, *_scopes, **_options):
        raise AssertionError("no token is asked for")


options = dict(base_url=URL, authentication_policy=SansIOHTTPPolicy(), polling_interval=0)
network = NetworkManagementClient(Nobody(), "s1", **options)
compute = ComputeManagementClient(Nobody(), "s1", api_version="2022-11-01", **options)
clusters = ContainerServiceClient(Nobody(), "s1", api_version="2024-01-01", **options).managed_clusters


def refused(code, call):
    try:
        call()
    except HttpResponseError as error:
        assert error.error.code == code, (error.error.code, code)
        return
    raise AssertionError(f"{code} was expected")


def vnet(name, place, space, subnet):
    made = network.virtual_networks.begin_create_or_update(GROUP, name, {
        "location": place, "tags": TAGS,
        "properties": {"addressSpace": {"addressPrefixes": [space]},
                       "subnets": [{"name": subnet, "properties": {"addressPrefix": space}}]},
    }).result()
    assert made.provisioning_state == "Succeeded" and made.subnets[0].address_prefix == space, made
    return made


a = vnet("a", "westus2", "10.0.0.0/16", "default")
b = vnet("b", "eastus", "10.1.0.0/16", "default")
hub = vnet("hub", "westus2", "192.168.255.0/27", "GatewaySubnet")
assert {found.name for found in network.virtual_networks.list(GROUP)} == {"a", "b", "hub"}, "pages are followed"
try:
    network.virtual_networks.get(GROUP, "nothing")
    raise AssertionError("nothing was found")
except ResourceNotFoundError:
    pass

deny = {"access": "Deny", "direction": "Inbound", "priority": 4096, "protocol": "*", "sourceAddressPrefix": "*",
        "sourcePortRange": "*", "destinationAddressPrefix": "*", "destinationPortRange": "*"}
nsg = network.network_security_groups.begin_create_or_update(GROUP, "nsg", {
    "location": "westus2", "tags": TAGS,
    "properties": {"securityRules": [{"name": "paraglider-deny-all-inbound", "properties": deny}]},
}).result()
nic = network.network_interfaces.begin_create_or_update(GROUP, "nic", {
    "location": "westus2", "tags": TAGS,
    "properties": {"networkSecurityGroup": {"id": nsg.id}, "ipConfigurations": [
        {"name": "ipconfig1", "properties": {"subnet": {"id": a.subnets[0].id}, "privateIPAllocationMethod": "Dynamic"}}]},
}).result()
assert nic.ip_configurations[0].private_ip_address == "10.0.0.4", nic
vm = compute.virtual_machines.begin_create_or_update(GROUP, "vm", {
    "location": "westus2", "tags": TAGS,
    "properties": {"hardwareProfile": {"vmSize": "Standard_B1s"},
                   "networkProfile": {"networkInterfaces": [{"id": nic.id, "properties": {"primary": True}}]}},
}).result()
assert network.network_interfaces.get(GROUP, "nic").virtual_machine.id == vm.id
refused("InUse", lambda: network.network_interfaces.begin_delete(GROUP, "nic").result())

rule = {"access": "Allow", "direction": "Inbound", "priority": 100, "protocol": "Tcp", "sourcePortRange": "*",
        "destinationPortRange": "443", "sourceAddressPrefixes": ["10.1.0.4"], "destinationAddressPrefix": "10.0.0.4",
        "description": "paraglider rule:[default.azure.other]"}
made = network.security_rules.begin_create_or_update(GROUP, "nsg", "paraglider-web", {"properties": rule}).result()
assert made.priority == 100 and made.source_address_prefixes == ["10.1.0.4"], made
refused("SecurityRuleConflict", lambda: network.security_rules.begin_create_or_update(
    GROUP, "nsg", "paraglider-again", {"properties": rule}).result())
assert len(network.network_security_groups.get(GROUP, "nsg").security_rules) == 2


def peer(own, other, **more):
    return network.virtual_network_peerings.begin_create_or_update(GROUP, own.name, f"{own.name}-to-{other.name}", {
        "properties": {"remoteVirtualNetwork": {"id": other.id}, "allowVirtualNetworkAccess": True, **more}}).result()


assert peer(a, b).peering_state == "Initiated"
assert peer(b, a).peering_state == "Connected"
network.virtual_network_peerings.begin_delete(GROUP, "b", "b-to-a").result()
assert network.virtual_network_peerings.get(GROUP, "a", "a-to-b").peering_state == "Disconnected"
refused("RemotePeeringIsDisconnected", lambda: peer(b, a))
network.virtual_network_peerings.begin_delete(GROUP, "a", "a-to-b").result()

# A cluster: a space and a subnet more in a network that is peered, its filter, and what becomes of the peering.
peer(a, b), peer(b, a)
fence = network.network_security_groups.begin_create_or_update(GROUP, "k-default-nsg", {
    "location": "westus2", "tags": TAGS,
    "properties": {"securityRules": [{"name": "paraglider-deny-all-inbound", "properties": deny}]},
}).result()
default = {"name": "default", "properties": {"addressPrefix": "10.0.0.0/16"}}
ours = {"name": "k-subnet", "properties": {"addressPrefix": "10.2.0.0/16", "networkSecurityGroup": {"id": fence.id}}}


def reshape(spaces, subnets):
    return network.virtual_networks.begin_create_or_update(GROUP, "a", {
        "location": "westus2", "tags": TAGS,
        "properties": {"addressSpace": {"addressPrefixes": spaces}, "subnets": subnets}}).result()


refused("VnetAddressSpacesOverlap", lambda: reshape(["10.0.0.0/16", "10.1.0.0/16"], [default]))
refused("InUseSubnetCannotBeDeleted", lambda: reshape(["10.2.0.0/16"], [ours]))
wider = reshape(["10.0.0.0/16", "10.2.0.0/16"], [default, ours])
assert {subnet.name for subnet in wider.subnets} == {"default", "k-subnet"}, wider
assert wider.virtual_network_peerings[0].peering_sync_level == "RemoteNotInSync", wider.virtual_network_peerings
far = network.virtual_network_peerings.get(GROUP, "b", "b-to-a")
assert far.peering_sync_level == "LocalNotInSync" and far.remote_address_space.address_prefixes == ["10.0.0.0/16"]
far = network.virtual_network_peerings.begin_create_or_update(
    GROUP, "b", "b-to-a", far, sync_remote_address_space="true").result()
assert far.remote_address_space.address_prefixes == ["10.0.0.0/16", "10.2.0.0/16"], far
assert network.virtual_network_peerings.get(GROUP, "a", "a-to-b").peering_sync_level == "FullyInSync"

place = next(subnet.id for subnet in wider.subnets if subnet.name == "k-subnet")
cluster = {
    "location": "westus2", "tags": TAGS, "identity": {"type": "SystemAssigned"},
    "properties": {
        "dnsPrefix": "k", "apiServerAccessProfile": {"enablePrivateCluster": True},
        "agentPoolProfiles": [{"name": "system", "mode": "System", "count": 1, "vmSize": "Standard_B4ms", "vnetSubnetID": place}],
        "networkProfile": {"networkPlugin": "azure", "serviceCidr": "10.3.0.0/16", "dnsServiceIP": "10.3.0.10"},
    },
}


def made_cluster(**profile):
    cluster["properties"]["networkProfile"].update(profile)
    return clusters.begin_create_or_update(GROUP, "k", cluster).result()


refused("ServiceCidrOverlapExistingSubnetsCidr", lambda: made_cluster(serviceCidr="10.1.0.0/16", dnsServiceIP="10.1.0.10"))
refused("DnsServiceIpOutOfServiceCidr", lambda: made_cluster(serviceCidr="10.3.0.0/16"))
shut = {**deny, "direction": "Outbound"}
network.security_rules.begin_create_or_update(GROUP, "k-default-nsg", "shut", {"properties": shut}).result()
refused("VMExtensionError_OutboundConnFail", lambda: made_cluster(dnsServiceIP="10.3.0.10"))
network.security_rules.begin_delete(GROUP, "k-default-nsg", "shut").result()
k = made_cluster()
assert k.provisioning_state == "Succeeded" and k.agent_pool_profiles[0].vnet_subnet_id == place, k
assert k.network_profile.service_cidr == "10.3.0.0/16" and k.api_server_access_profile.enable_private_cluster is True
assert [found.name for found in clusters.list_by_resource_group(GROUP)] == ["k"]
assert clusters.get(GROUP, "k").tags == TAGS
refused("PropertyChangeNotAllowed", lambda: made_cluster(serviceCidr="10.4.0.0/16", dnsServiceIP="10.4.0.10"))
refused("InUseSubnetCannotBeDeleted", lambda: reshape(["10.0.0.0/16"], [default]))
refused("InUse", lambda: network.network_security_groups.begin_delete(GROUP, "k-default-nsg").result())
clusters.begin_delete(GROUP, "k").result()
assert reshape(["10.0.0.0/16"], [default]).address_space.address_prefixes == ["10.0.0.0/16"]
network.network_security_groups.begin_delete(GROUP, "k-default-nsg").result()
for own, other in [("a", "b"), ("b", "a")]:
    network.virtual_network_peerings.begin_delete(GROUP, own, f"{own}-to-{other}").result()

ips = [network.public_ip_addresses.begin_create_or_update(GROUP, f"ip-{index}", {
    "location": "westus2", "sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"},
}).result() for index in range(3)]
nat = network.nat_gateways.begin_create_or_update(GROUP, "nat", {
    "location": "westus2", "sku": {"name": "Standard"}, "properties": {"publicIpAddresses": [{"id": ips[2].id}]},
}).result()
network.subnets.begin_create_or_update(GROUP, "a", "default", {
    "properties": {"addressPrefix": "10.0.0.0/16", "natGateway": {"id": nat.id}}}).result()
refused("InUse", lambda: network.nat_gateways.begin_delete(GROUP, "nat").result())

body = {
    "location": "westus2", "tags": TAGS,
    "properties": {
        "gatewayType": "Vpn", "vpnType": "RouteBased", "activeActive": True, "enableBgp": True,
        "vpnGatewayGeneration": "Generation1", "sku": {"name": "VpnGw1", "tier": "VpnGw1"}, "bgpSettings": {"asn": 64512},
        "ipConfigurations": [
            {"name": name, "properties": {"privateIPAllocationMethod": "Dynamic", "publicIPAddress": {"id": ip.id},
                                          "subnet": {"id": hub.subnets[0].id}}}
            for name, ip in zip(["default", "activeActive"], ips)],
    },
}
refused("RemoteVnetHasNoGateways", lambda: peer(a, hub, useRemoteGateways=True))
gateway = network.virtual_network_gateways.begin_create_or_update(GROUP, "gw", body).result()
assert gateway.provisioning_state == "Succeeded" and gateway.bgp_settings.asn == 64512
body["properties"]["bgpSettings"]["bgpPeeringAddresses"] = [
    {"ipconfigurationId": f"{gateway.id}/ipConfigurations/{name}", "customBgpIpAddresses": [address]}
    for name, address in [("default", "169.254.21.1"), ("activeActive", "169.254.21.5")]]
gateway = network.virtual_network_gateways.begin_create_or_update(GROUP, "gw", body).result()
assert gateway.bgp_settings.bgp_peering_addresses[1].custom_bgp_ip_addresses == ["169.254.21.5"]
peer(hub, a, allowGatewayTransit=True, allowForwardedTraffic=True)
assert peer(a, hub, useRemoteGateways=True, allowForwardedTraffic=True).use_remote_gateways is True

local = network.local_network_gateways.begin_create_or_update(GROUP, "local", {
    "location": "westus2", "properties": {"gatewayIpAddress": "35.0.0.1",
                                          "bgpSettings": {"asn": 65001, "bgpPeeringAddress": "169.254.21.2", "peerWeight": 0}},
}).result()
connection = network.virtual_network_gateway_connections.begin_create_or_update(GROUP, "conn", {
    "location": "westus2",
    "properties": {"connectionType": "IPsec", "connectionProtocol": "IKEv2", "enableBgp": True, "dpdTimeoutSeconds": 45,
                   "sharedKey": "first", "virtualNetworkGateway1": {"id": gateway.id}, "localNetworkGateway2": {"id": local.id}},
}).result()
assert connection.shared_key is None, "a key is not told"
connections = network.virtual_network_gateway_connections
assert connections.get_shared_key(GROUP, "conn").value == "first"
connections.begin_set_shared_key(GROUP, "conn", {"value": "second"}).result()
assert connections.get_shared_key(GROUP, "conn").value == "second"

refused("GatewayInUse", lambda: (network.virtual_network_gateway_connections.begin_delete(GROUP, "conn").result(),
                                 network.virtual_network_gateways.begin_delete(GROUP, "gw").result()))
network.local_network_gateways.begin_delete(GROUP, "local").result()
for own, other in [("a", "hub"), ("hub", "a")]:
    network.virtual_network_peerings.begin_delete(GROUP, own, f"{own}-to-{other}").result()
network.virtual_network_gateways.begin_delete(GROUP, "gw").result()
network.security_rules.begin_delete(GROUP, "nsg", "paraglider-web").result()
compute.virtual_machines.begin_delete(GROUP, "vm").result()
network.network_interfaces.begin_delete(GROUP, "nic").result()
network.network_security_groups.begin_delete(GROUP, "nsg").result()
network.subnets.begin_create_or_update(GROUP, "a", "default", {"properties": {"addressPrefix": "10.0.0.0/16"}}).result()
network.nat_gateways.begin_delete(GROUP, "nat").result()
for index in range(3):
    network.public_ip_addresses.begin_delete(GROUP, f"ip-{index}").result()
for name in ["a", "b", "hub"]:
    network.virtual_networks.begin_delete(GROUP, name).result()
assert list(network.virtual_networks.list(GROUP)) == []
print("done")
