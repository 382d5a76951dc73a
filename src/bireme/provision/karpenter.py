"""Karpenter's objects for a fleet: a NodePool, an EC2NodeClass and a NodeOverlay for each type."""

from __future__ import annotations

from typing import Any

from bireme.core.labels import ARCHITECTURE_LABEL, CAPACITY_TYPE_LABEL, INSTANCE_TYPE_LABEL, ZONE_LABEL
from bireme.core.quantities import HUGE_PAGES
from bireme.plan.instances import ROOT_VOLUME_GIB, Instance
from bireme.provision.groups import NODE_CONFIG, Fleet, Group

_CAPACITY_TYPES = {"on-demand": "on-demand", "spot": "spot", "reservation": "reserved", "block": "reserved"}


def karpenter_objects(fleet: Fleet, role: str) -> list[dict[str, Any]]:
    """The objects for ``kubectl apply``, of Karpenter 1.11 or newer.

    ``role``: the IAM role of the nodes. Subnets and security groups are those with the tag
    ``karpenter.sh/discovery: CLUSTER``, and the group that EKS itself makes and tags for the cluster.
    """
    found: list[dict[str, Any]] = []
    for group in fleet.groups:
        found += [_node_class(group, fleet, role), _node_pool(group)]
        # Karpenter cannot know what user data sets aside, and counts no part of a GPU: without these no node
        # has them, and their pods wait forever.
        instance = group.instance
        if instance.huge_pages_mib:
            found.append(_overlay(instance, "huge-pages", {HUGE_PAGES: f"{instance.huge_pages_mib}Mi"}))
        if instance.has_part_of_gpu:
            gpus = instance.accelerator
            found.append(_overlay(instance, "gpus", {gpus.resource: str(gpus.count)}))
    return found


def _node_class(group: Group, fleet: Fleet, role: str) -> dict[str, Any]:
    cluster = [{"tags": {"karpenter.sh/discovery": fleet.name}}]
    volume = {
        "volumeSize": f"{ROOT_VOLUME_GIB}Gi",
        "volumeType": "gp3",
        "encrypted": True,
        "deleteOnTermination": True,
    }
    spec: dict[str, Any] = {
        "role": role,
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": cluster,
        "securityGroupSelectorTerms": [*cluster, {"tags": {"aws:eks:cluster-name": fleet.name}}],
        "blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": volume}],
        # Pods do not reach the nodes' credentials.
        "metadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 1},
        "tags": {"bireme/cluster": fleet.name},
    }
    if group.instance.nvme_gb:
        spec["instanceStorePolicy"] = "RAID0"
    if group.instance.taints:
        spec["userData"] = _user_data(group)
    if group.capacity.reservation:
        spec["capacityReservationSelectorTerms"] = [{"id": group.capacity.reservation}]
    if fleet.placement_group and group.instance.taints:
        spec["placementGroupSelector"] = {"name": fleet.placement_group}
    return {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": group.instance.node_name},
        "spec": spec,
    }


def _user_data(group: Group) -> str:
    parts = [f"Content-Type: application/node.eks.aws\n\n{NODE_CONFIG}"]
    if group.boot_script:
        parts.insert(0, f"Content-Type: text/x-shellscript\n\n#!/bin/bash\n{group.boot_script}")
    head = 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="part"\n\n'
    return head + "".join(f"--part\n{part}\n" for part in parts) + "--part--\n"


def _node_pool(group: Group) -> dict[str, Any]:
    instance, accelerator = group.instance, group.instance.accelerator
    requirements = [
        _one_of(INSTANCE_TYPE_LABEL, instance.type),
        _one_of(CAPACITY_TYPE_LABEL, _CAPACITY_TYPES[group.capacity.kind]),
        _one_of(ARCHITECTURE_LABEL, instance.architecture),
    ]
    if group.zone:
        requirements.append(_one_of(ZONE_LABEL, group.zone))
    spec: dict[str, Any] = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": instance.node_name},
        "requirements": requirements,
        "expireAfter": "Never",
        # Without it, pods that must not be disrupted are not told when AWS takes a node back: they are told
        # their own grace period before its end. AWS takes spot nodes two minutes after it says so.
        "terminationGracePeriod": "2m" if group.capacity.kind == "spot" else "10m",
    }
    if instance.taints:
        spec["taints"] = instance.taints
    limit = {accelerator.resource: group.count * accelerator.count} if accelerator.count else {}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": group.instance.node_name},
        "spec": {
            "template": {"metadata": {"labels": group.labels}, "spec": spec},
            "limits": limit or {"cpu": group.count * instance.vcpu},
            "disruption": {
                "consolidationPolicy": "WhenEmpty",
                "consolidateAfter": "5m",
                # A training is moved by nobody: a node that has pods stays, also when its image is outdated.
                "budgets": [
                    {"nodes": "100%", "reasons": ["Empty"]},
                    {"nodes": "0", "reasons": ["Drifted", "Underutilized"]},
                ],
            },
        },
    }


def _overlay(instance: Instance, of: str, capacity: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": f"{instance.node_name}-{of}"},
        "spec": {
            "requirements": [_one_of("karpenter.sh/nodepool", instance.node_name)],
            "capacity": capacity,
        },
    }


def _one_of(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [value]}
