"""DaemonSet: a pod on each node that its template may run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.core.manifests import Manifest
from bireme.plan.instances import HYPERPOD, Instance, choose_nodes, other_labels
from bireme.plan.workloads.model import ObservedWorkload, WorkloadKind, WorkloadPlan, role_of, spec_of


class DaemonSet(WorkloadKind):
    """apps/v1 DaemonSet. The cluster's nodes decide how many pods it has, so the plan does not count them."""

    name = "DaemonSet"
    api_version = "apps/v1"
    template_part = "pods, one by one"
    fixed = frozenset({"selector"})

    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> WorkloadPlan:
        template = spec_of(manifest).get("template") or {}
        pod_spec = template.get("spec") or {}
        choice, role = choose_nodes(pod_spec, instances), role_of(manifest, template)
        known = {each for each in instances if choice.admits(each)}
        # A type of HyperPod has the facts of another one, which stands for both.
        named = {each for each in choice.types or () if each.removeprefix(HYPERPOD) not in known}
        types = tuple(sorted(known | named))
        labels = other_labels(pod_spec)
        note = f"a {role} pod on each node" + (f" labelled {labels}" if labels else "")
        return WorkloadPlan(manifest.name, self.name, role, 0, 0, 0, (), instance_types=types, note=note)

    def state(self, live: Mapping[str, Any]) -> ObservedWorkload:
        meta, status = live["metadata"], live.get("status", {})
        wanted, has = status.get("desiredNumberScheduled", 0), status.get("updatedNumberScheduled", 0)
        why = ""
        if status.get("observedGeneration", 0) < meta["generation"]:
            why = "its controller has not counted them"
        elif has < wanted:
            why = f"{has} of {wanted} have its newest pods"
        if not why:
            return ObservedWorkload(self.name, meta["name"], "")
        return ObservedWorkload(self.name, meta["name"], "Updating", f"is not on all its nodes yet: {why}")


KINDS = (DaemonSet(),)
