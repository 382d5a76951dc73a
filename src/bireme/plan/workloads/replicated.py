"""StatefulSet, Deployment and ReplicaSet: a number of equal pods that are kept running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.core.labels import POD_TEMPLATE_HASH_LABEL
from bireme.core.manifests import Manifest
from bireme.plan.instances import Instance
from bireme.plan.workloads import model


class Replicated(model.WorkloadKind):
    """What the three share."""

    api_version = "apps/v1"
    has_hostnames = False
    template_part = "pods, one by one"
    fixed = frozenset({"selector"})

    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> model.WorkloadPlan:
        spec = model.spec_of(manifest)
        template, replicas = spec.get("template") or {}, model.count_in(spec, "replicas")
        role = model.role_of(manifest, template)
        names = [f"{manifest.name}-{index}" for index in range(replicas)]
        pods = model.pod_plans(names, role, template, instances, names if self.has_hostnames else None)
        return model.WorkloadPlan(manifest.name, self.name, role, replicas, replicas, replicas, pods)

    def state(self, live: Mapping[str, Any]) -> model.ObservedWorkload:
        meta, status = live["metadata"], live.get("status", {})
        has_seen_it = status.get("observedGeneration", 0) >= meta["generation"]
        is_new = status.get("updatedReplicas", 0) >= status.get("replicas", 0)
        # A StatefulSet that leaves the replacement to others has OnDelete; its old pods are meant to stay.
        waits = live["spec"].get("updateStrategy", {}).get("type") == "OnDelete"
        wanted = live["spec"].get("replicas")
        if has_seen_it and (is_new or waits):
            return model.ObservedWorkload(self.name, meta["name"], "", replicas=wanted)
        message = "is still replacing pods of its last version"
        return model.ObservedWorkload(self.name, meta["name"], "Updating", message, wanted)


class StatefulSet(Replicated):
    """apps/v1 StatefulSet: its pods keep their names."""

    name = "StatefulSet"
    has_hostnames = True
    mutable = frozenset(
        {
            "minReadySeconds",
            "ordinals",
            "persistentVolumeClaimRetentionPolicy",
            "replicas",
            "revisionHistoryLimit",
            "template",
            "updateStrategy",
        }
    )

    def claims(self, manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
        spec = model.spec_of(manifest)
        return {
            f"{template['metadata']['name']}-{manifest.name}-{index}": template["spec"]
            for template in spec.get("volumeClaimTemplates") or ()
            for index in range(model.count_in(spec, "replicas"))
        }

    def slot(self, pod: Mapping[str, Any], workload: str) -> str | None:
        return str(pod["metadata"]["name"])

    def name_problem(self, manifest: Manifest) -> str | None:
        return model.too_long(manifest, 52, "its controller adds an 11-character revision hash")


class Deployment(Replicated):
    """apps/v1 Deployment: a ReplicaSet of its own makes its pods."""

    name = "Deployment"

    def owner(self, pod: Mapping[str, Any]) -> str | None:
        controller = model.controller_of(pod)
        template = pod["metadata"].get("labels", {}).get(POD_TEMPLATE_HASH_LABEL)
        if controller is None or controller[0] != ReplicaSet.name or not template:
            return None
        name, _, suffix = controller[1].rpartition("-")
        return name if suffix == template else None


class ReplicaSet(Replicated):
    """apps/v1 ReplicaSet without a Deployment. It never replaces pods by itself."""

    name = "ReplicaSet"
    has_state = False
    template_part = "pods made from now on"


KINDS = (StatefulSet(), Deployment(), ReplicaSet())
