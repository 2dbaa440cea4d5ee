"""Makes in a stand-in for Azure what the plugin makes for one machine and one VPN, with Azure's own SDK."""

import hashlib
import sys
import uuid

from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.network import NetworkManagementClient

URL, GROUP, ASN, PLACE = sys.argv[1], "rg", int(sys.argv[2]), "westus2"
TAGS = {"paraglider-namespace": "default"}
OURS = "paraglider-default"
ROOT = f"/subscriptions/s1/resourceGroups/{GROUP}/providers"


class Nobody:
    """No credentials: the stand-in is open."""

    def get_token(self, *_scopes, **_options):
        raise AssertionError("no token is asked for")


options = dict(base_url=URL, authentication_policy=SansIOHTTPPolicy(), polling_interval=0)
network = NetworkManagementClient(Nobody(), "s1", **options)
compute = ComputeManagementClient(Nobody(), "s1", api_version="2022-11-01", **options)


def made(kind, *names, **properties):
    more = {field: properties.pop(field) for field in ("sku",) if field in properties}
    return getattr(network, kind).begin_create_or_update(
        GROUP, *names, {"location": PLACE, "tags": TAGS, "properties": properties, **more}).result()


def child(kind, parent, name, **properties):
    return getattr(network, kind).begin_create_or_update(GROUP, parent, name, {"properties": properties}).result()


def vnet(name, space, subnet):
    return made("virtual_networks", name, addressSpace={"addressPrefixes": [space]},
                subnets=[{"name": subnet, "properties": {"addressPrefix": space}}])


def deny(direction):
    return {"name": f"paraglider-deny-all-{direction.lower()}", "properties": {
        "access": "Deny", "description": "paraglider deny rule", "direction": direction, "priority": 4096, "protocol": "*",
        "sourceAddressPrefix": "*", "sourcePortRange": "*", "destinationAddressPrefix": "*", "destinationPortRange": "*"}}


def address(name):
    return made("public_ip_addresses", name, sku={"name": "Standard"}, publicIPAllocationMethod="Static")


def peer(first, second, gateway):
    for own, other, serves in [(first, second, True), (second, first, False)]:
        child("virtual_network_peerings", own.name, f"{own.name}-to-{other.name}",
              remoteVirtualNetwork={"id": other.id}, allowVirtualNetworkAccess=True, allowForwardedTraffic=gateway,
              allowGatewayTransit=gateway and serves, useRemoteGateways=gateway and not serves)


# A machine: its name is told by its interface's, so that it is found again.
machine = f"{ROOT}/Microsoft.Compute/virtualMachines/vm1"
digits = bytearray(hashlib.sha256(machine.lower().encode()).digest()[:16])
digits[6], digits[8] = digits[6] & 0x0F | 0x80, digits[8] & 0x3F | 0x80
interface = f"paraglider-nic-{uuid.UUID(bytes=bytes(digits))}"
own = vnet(f"{OURS}-{PLACE}-vnet", "10.0.0.0/16", "default")
filter_name = f"{interface}-default-nsg"
nsg = made("network_security_groups", filter_name, securityRules=[deny("Inbound"), deny("Outbound")])
nic = made("network_interfaces", interface, networkSecurityGroup={"id": nsg.id}, ipConfigurations=[
    {"name": "ipconfig1", "properties": {"privateIPAllocationMethod": "Dynamic", "subnet": {"id": own.subnets[0].id}}}])
compute.virtual_machines.begin_create_or_update(GROUP, "vm1", {"location": PLACE, "tags": TAGS, "properties": {
    "hardwareProfile": {"vmSize": "Standard_B1s"},
    "osProfile": {"computerName": "vm1", "adminUsername": "someone", "adminPassword": "Pass-word-1"},
    "storageProfile": {
        "imageReference": {"publisher": "canonical", "offer": "ubuntu", "sku": "22_04-lts", "version": "latest"},
        "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"}},
    "networkProfile": {"networkInterfaces": [{"id": nic.id, "properties": {"primary": True}}]},
}}).result()
hub = vnet(f"{OURS}-vpn-gw-vnet", "192.168.255.0/27", "GatewaySubnet")
peer(hub, own, False)

# Its rules, of which one needs a way to public addresses.
ip = address(f"{OURS}-{PLACE}-nat-gw-ip")
nat = made("nat_gateways", f"{OURS}-{PLACE}-nat-gw", sku={"name": "Standard"}, publicIpAddresses=[{"id": ip.id}])
child("subnets", own.name, "default", addressPrefix="10.0.0.0/16", natGateway={"id": nat.id})
here = nic.ip_configurations[0].private_ip_address
both = {"access": "Allow", "protocol": "Tcp", "priority": 100, "sourcePortRange": "*", "destinationPortRange": "443"}
child("security_rules", filter_name, "paraglider-web", direction="Inbound", description="paraglider rule:[10.0.0.9]",
      sourceAddressPrefixes=["10.0.0.9"], destinationAddressPrefix=here, **both)
child("security_rules", filter_name, "paraglider-out", direction="Outbound", description="paraglider rule:[8.8.8.8]",
      sourceAddressPrefix=here, destinationAddressPrefixes=["8.8.8.8"], **both)

# A gateway that the network uses, and a tunnel with static routes as IBM's gateways want it.
ips = [address(f"{OURS}-vpn-gw-ip-{index}") for index in range(2)]
gateway = network.virtual_network_gateways.begin_create_or_update(GROUP, f"{OURS}-vpn-gw", {
    "location": PLACE, "tags": TAGS, "properties": {
        "gatewayType": "Vpn", "vpnType": "RouteBased", "activeActive": True, "enableBgp": True,
        "vpnGatewayGeneration": "Generation1", "sku": {"name": "VpnGw1", "tier": "VpnGw1"}, "bgpSettings": {"asn": ASN},
        "ipConfigurations": [
            {"name": name, "properties": {"privateIPAllocationMethod": "Dynamic", "publicIPAddress": {"id": ip.id},
                                          "subnet": {"id": hub.subnets[0].id}}}
            for name, ip in zip(["default", "activeActive"], ips)]}}).result()
peer(hub, own, True)
local = made("local_network_gateways", f"{OURS}-ibm-local-gw-0", gatewayIpAddress="169.48.0.1",
             localNetworkAddressSpace={"addressPrefixes": ["10.9.0.0/16"]})
made("virtual_network_gateway_connections", f"{OURS}-ibm-conn-0", connectionProtocol="IKEv2", connectionType="IPsec",
     dpdTimeoutSeconds=45, enableBgp=False, sharedKey="KeyOfBothEnds1234567890",
     virtualNetworkGateway1={"id": gateway.id}, localNetworkGateway2={"id": local.id}, ipsecPolicies=[{
         "dhGroup": "DHGroup24", "ikeEncryption": "AES256", "ikeIntegrity": "SHA384", "ipsecEncryption": "AES256",
         "ipsecIntegrity": "SHA256", "pfsGroup": "None", "saDataSizeKilobytes": 0, "saLifeTimeSeconds": 27000}])
