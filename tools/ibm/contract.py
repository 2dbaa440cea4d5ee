"""Derives the contract of IBM's VPC, transit gateway and tagging APIs from IBM's own Python SDKs.

    tools/install ibm
    ~/.cache/tarbet/ibm/venv/bin/python tools/ibm/contract.py > crates/nets/tests/it/ibm/contract.json

IBM publishes no machine-readable specification on its own; the SDKs are generated from it. Of what our plugin
calls, each method's verb, path, query parameters and body are kept, with the fields, types and enumerations
of all models the body may hold.
"""

import enum
import inspect
import json
import re
import typing

import ibm_cloud_networking_services.transit_gateway_apis_v1 as transit
import ibm_platform_services.global_tagging_v1 as tagging
import ibm_vpc.vpc_v1 as vpc

WANTED = {
    ("vpc", vpc, vpc.VpcV1): """
        list_region_zones list_vpcs create_vpc get_vpc delete_vpc create_vpc_address_prefix list_vpc_address_prefixes
        get_vpc_default_routing_table list_vpc_routing_table_routes create_vpc_routing_table_route
        get_vpc_routing_table_route delete_vpc_routing_table_route
        list_subnets create_subnet get_subnet delete_subnet set_subnet_public_gateway
        get_subnet_public_gateway unset_subnet_public_gateway
        list_security_groups create_security_group get_security_group delete_security_group
        list_security_group_rules create_security_group_rule get_security_group_rule delete_security_group_rule
        list_instances create_instance get_instance delete_instance get_instance_network_interface
        list_subnet_reserved_ips create_subnet_reserved_ip get_subnet_reserved_ip delete_subnet_reserved_ip
        list_endpoint_gateways create_endpoint_gateway get_endpoint_gateway delete_endpoint_gateway
        list_public_gateways create_public_gateway get_public_gateway delete_public_gateway
        list_vpn_gateways create_vpn_gateway get_vpn_gateway delete_vpn_gateway list_vpn_gateway_connections
        create_vpn_gateway_connection get_vpn_gateway_connection delete_vpn_gateway_connection
        list_ike_policies create_ike_policy get_ike_policy delete_ike_policy
        list_ipsec_policies create_ipsec_policy get_ipsec_policy delete_ipsec_policy""",
    ("transit", transit, transit.TransitGatewayApisV1): """
        list_transit_gateways create_transit_gateway get_transit_gateway delete_transit_gateway
        list_transit_gateway_connections create_transit_gateway_connection get_transit_gateway_connection
        delete_transit_gateway_connection""",
    ("tags", tagging, tagging.GlobalTaggingV1): "attach_tag list_tags",
}


def simple(module, kind, models):
    """A type of a signature as [list of] a plain type or the name of a model."""
    if isinstance(kind, typing.ForwardRef):
        kind = kind.__forward_arg__
    if isinstance(kind, str):
        kind = getattr(module, kind, None) or {"str": str, "int": int, "bool": bool}.get(kind, object)
    arguments = [one for one in typing.get_args(kind) if one is not type(None)]
    if typing.get_origin(kind) is list:
        return [simple(module, arguments[0], models)]
    if typing.get_origin(kind) is typing.Union:
        return simple(module, arguments[0], models)
    if kind in (str, int, bool, float):
        return kind.__name__
    if inspect.isclass(kind) and kind.__module__ == module.__name__:
        return model(module, kind, models)
    return "any"


def enumerations(cls):
    found = {}
    for name, value in vars(cls).items():
        if inspect.isclass(value) and issubclass(value, enum.Enum):
            found[re.sub(r"(?<!^)(?=[A-Z])", "_", name.removesuffix("Enum")).lower()] = [one.value for one in value]
    return found


def fields_of(module, function, enums, models):
    fields = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("self", "kwargs") or parameter.kind == parameter.VAR_KEYWORD:
            continue
        field = {"type": simple(module, parameter.annotation, models)}
        if parameter.default is parameter.empty:
            field["required"] = True
        if name in enums:
            field["enum"] = enums[name]
        fields[name.removesuffix("_")] = field
    return fields


def model(module, cls, models):
    name = cls.__name__
    if name not in models:
        models[name] = None
        kinds = [one for one in cls.__subclasses__() if one.__module__ == module.__name__]
        if kinds:
            models[name] = {"one": [model(module, one, models) for one in kinds]}
            # A model with kinds may be used as it is, unless it only says what kinds it has.
            if len(inspect.signature(cls.__init__).parameters) > 1 and "Cannot instantiate" not in inspect.getsource(cls.__init__):
                models[name]["fields"] = fields_of(module, cls.__init__, enumerations(cls), models)
        else:
            enums = {}
            for one in reversed(cls.__mro__):
                enums |= enumerations(one)
            models[name] = {"fields": fields_of(module, cls.__init__, enums, models)}
    return name


def operation(api, module, client, name, models):
    source = inspect.getsource(getattr(client, name))
    verb = re.search(r"method='(\w+)'", source).group(1)
    path = re.search(r"url = '([^']+)'", source).group(1)
    path = re.sub(r"\{[^}]*\}", "{}", path)
    found = {"api": api, "verb": verb, "path": path}
    query = re.search(r"params = \{(.*?)\n        \}", source, re.S)
    found["query"] = re.findall(r"'([\w.]+)':", query.group(1)) if query else []
    data = re.search(r"data = \{\n(.*?)\n        \}", source, re.S)
    if data:
        keys = re.findall(r"'([\w.]+)':", data.group(1))
        fields = fields_of(module, getattr(client, name), {}, models)
        found["body"] = {"fields": {key: fields[key] for key in keys}}
    else:
        whole = re.search(r"data = json\.dumps\((\w+)\)", source)
        if whole and verb in ("POST", "PUT", "PATCH"):
            annotation = inspect.signature(getattr(client, name)).parameters[whole.group(1)].annotation
            found["body"] = {"model": simple(module, annotation, models)}
    return found


def main():
    operations, models = {}, {}
    for (api, module, client), names in WANTED.items():
        for name in names.split():
            operations[name] = operation(api, module, client, name, models)
    print(json.dumps({"operations": operations, "models": models}, separators=(",", ":"), sort_keys=True))


main()
