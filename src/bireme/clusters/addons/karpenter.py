"""Karpenter beside the control plane, with its own provider of simulated nodes, which kwok then plays.

It knows the instance types of values/instances, and has the NodePool that `bireme karpenter` prints for each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bireme.clusters import programs
from bireme.clusters.addons.kinds import add_kinds, definitions
from bireme.clusters.base import Cluster
from bireme.clusters.nodes import REGION, ZONE
from bireme.clusters.ports import reserved
from bireme.clusters.programs import Program
from bireme.core.labels import CAPACITY_TYPE_LABEL, ZONE_LABEL
from bireme.core.quantities import format_quantity, quantity
from bireme.plan.instances import Instance, load_instances
from bireme.provision.costs import Prices, load_prices
from bireme.provision.groups import Fleet
from bireme.provision.karpenter import karpenter_objects
from bireme.tools import Toolbox

_SECONDS = 120
_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_NODES_OF_A_TYPE = 1000
# What the provider takes off every node again (kwok/cloudprovider/helpers.go of sigs.k8s.io/karpenter).
_RESERVED = {"cpu": "100m", "memory": "10Mi"}
# Types without a list price cost more than those that have one.
_NO_PRICE = 1000.0


def start(cluster: Cluster, toolbox: Toolbox) -> Program:
    """Start Karpenter with its kinds and a NodePool for every type; returns when it is ready.

    Raises BiremeError.
    """
    folder = programs.new_folder(cluster, "karpenter")
    binary, source = toolbox.path("karpenter-kwok"), toolbox.source("karpenter-kwok")
    add_kinds(cluster, definitions(source / "pkg/apis/crds", source / "kwok/apis/crds"))
    instances, prices = load_instances(toolbox.paths), load_prices(toolbox.paths)
    types = folder / "types.json"
    types.write_text(json.dumps([_type(each, prices) for each in instances.values()]), encoding="utf-8")
    with reserved(2) as (metrics, health):
        environment = {
            "KUBECONFIG": str(cluster.kubeconfig),
            "SYSTEM_NAMESPACE": "kube-system",
            "DISABLE_LEADER_ELECTION": "true",
            "METRICS_PORT": str(metrics),
            "HEALTH_PROBE_PORT": str(health),
        }
        program = programs.start(folder, binary, [f"--instance-types-file-path={types}"], environment)
        program.wait_ready(f"http://127.0.0.1:{health}/readyz", _SECONDS)
    for path, body in _objects(instances):
        cluster.api.create(path, body)
    return program


def _type(instance: Instance, prices: Prices) -> dict[str, Any]:
    """An instance type as the provider reads it."""
    # Karpenter itself takes huge pages out of the memory.
    offer = instance.allocatable(huge_pages=True) | {"memory": instance.allocatable()["memory"]}
    for name, amount in _RESERVED.items():
        offer[name] = format_quantity(name, quantity(offer[name]) + quantity(amount))
    price = prices.on_demand.get(instance.type, _NO_PRICE)
    return {
        "name": instance.type,
        "architecture": instance.architecture,
        "operatingSystems": ["linux"],
        "resources": offer,
        "offerings": [_offering("on-demand", price), _offering("spot", price / 2)],
    }


def _offering(capacity: str, price: float) -> dict[str, Any]:
    wanted = {CAPACITY_TYPE_LABEL: capacity, ZONE_LABEL: ZONE}
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()]
    return {"Price": price, "Available": True, "Requirements": requirements}


def _objects(instances: Mapping[str, Instance]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The class of the nodes and their pools, and where to create them."""
    yield (
        "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses",
        {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": _CLASS["kind"],
            "metadata": {"name": _CLASS["name"]},
            "spec": {},
        },
    )
    fleet = Fleet(
        "embedded", REGION, (ZONE, f"{REGION}b"), dict.fromkeys(instances, _NODES_OF_A_TYPE), instances
    )
    for item in karpenter_objects(fleet, role="none"):
        if item["kind"] == "NodePool":
            item["spec"]["template"]["spec"]["nodeClassRef"] = _CLASS
            yield "/apis/karpenter.sh/v1/nodepools", item
