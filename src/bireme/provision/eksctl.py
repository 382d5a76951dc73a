"""eksctl's ClusterConfig for a fleet."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from bireme.core.errors import BiremeError
from bireme.plan.instances import ROOT_VOLUME_GIB
from bireme.provision.groups import NODE_CONFIG, Capacity, Fleet, Group

_ADDONS = (
    *("coredns", "kube-proxy", "eks-pod-identity-agent", "eks-node-monitoring-agent"),
    *("aws-ebs-csi-driver", "aws-efs-csi-driver", "aws-fsx-csi-driver"),
)
# Without it no NetworkPolicy holds.
_CNI = {"name": "vpc-cni", "configurationValues": '{"enableNetworkPolicy": "true"}'}
_RAID0 = """\
  instance:
    localStorage:
      strategy: RAID0
"""


def cluster_config(fleet: Fleet, kubernetes: str, admitted: tuple[str, ...] = ()) -> dict[str, Any]:
    """The configuration for ``eksctl create cluster -f``.

    ``kubernetes``: the minor version, e.g. ``1.35``. ``admitted``: networks whose addresses may reach the API
    server from outside; without any it answers only inside the VPC. Raises BiremeError when they are none.
    """
    if not re.fullmatch(r"1\.[0-9]{1,3}", kubernetes):
        raise BiremeError(f"--kubernetes {kubernetes!r} is not a minor version: write for example 1.35")
    for network in admitted:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise BiremeError(f"--admit: {error}; write for example 203.0.113.0/24") from error
    endpoints = {"privateAccess": True, "publicAccess": bool(admitted)}
    opened = {"publicAccessCIDRs": list(admitted)} if admitted else {}
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {"name": fleet.name, "region": fleet.region, "version": kubernetes},
        "availabilityZones": list(fleet.zones),
        "vpc": {"nat": {"gateway": "Single"}, "clusterEndpoints": endpoints, **opened},
        "iam": {"withOIDC": True},
        "addonsConfig": {"autoApplyPodIdentityAssociations": True},
        "addons": [_CNI, *({"name": name} for name in _ADDONS)],
        "managedNodeGroups": [_node_group(group, fleet.placement_group) for group in fleet.groups],
    }


def _node_group(group: Group, placement_group: str | None) -> dict[str, Any]:
    instance, is_accelerated = group.instance, bool(group.instance.taints)
    found: dict[str, Any] = {
        "name": instance.node_name,
        "amiFamily": "AmazonLinux2023",
        "instanceType": instance.type,
        "desiredCapacity": group.count,
        "minSize": 0 if is_accelerated else group.count,
        "maxSize": group.count,
        "privateNetworking": True,
        "disableIMDSv1": True,
        "disablePodIMDS": True,
        "volumeSize": ROOT_VOLUME_GIB,
        "volumeEncrypted": True,
        "labels": group.labels,
        "nodeRepairConfig": {"enabled": True},
    }
    if is_accelerated:
        found["taints"] = instance.taints
        found["overrideBootstrapCommand"] = NODE_CONFIG + _RAID0 * bool(instance.nvme_gb)
    if group.zone:
        found["availabilityZones"] = [group.zone]
    if instance.efa:
        # eksctl makes a placement group of its own for nodes with EFA, and an interface on each network card.
        found["efaEnabled"] = True
    if placement_group and is_accelerated:
        found["placement"] = {"groupName": placement_group}
    if group.boot_script:
        found["preBootstrapCommands"] = [group.boot_script]
    return found | _bought(group.capacity)


def _bought(capacity: Capacity) -> dict[str, Any]:
    if capacity.kind == "spot":
        return {"spot": True}
    if not capacity.reservation:
        return {}
    target = {"capacityReservationTarget": {"capacityReservationID": capacity.reservation}}
    block = {"instanceMarketOptions": {"marketType": "capacity-block"}} if capacity.kind == "block" else {}
    return {"capacityReservation": target} | block
