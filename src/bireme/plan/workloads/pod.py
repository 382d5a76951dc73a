"""Pod: one that a chart makes itself, without a controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bireme.core.manifests import Manifest
from bireme.plan.instances import Instance
from bireme.plan.workloads.model import WorkloadKind, WorkloadPlan, controller_of, pod_plans, role_of, spec_of


class Pod(WorkloadKind):
    """v1 Pod."""

    name = "Pod"
    api_version = "v1"
    has_state = False
    # Of the containers only the images can change, which is not looked at here.
    mutable = frozenset({"activeDeadlineSeconds", "containers", "initContainers", "tolerations"})

    def pod_templates(self, manifest: Manifest) -> tuple[Mapping[str, Any], ...]:
        return (manifest,)

    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> WorkloadPlan:
        role = role_of(manifest, manifest)
        hostname = str(spec_of(manifest).get("hostname") or manifest.name)
        pods = pod_plans([manifest.name], role, manifest, instances, [hostname])
        return WorkloadPlan(manifest.name, self.name, role, 1, 1, 1, pods)

    def owner(self, pod: Mapping[str, Any]) -> str | None:
        return None if controller_of(pod) else str(pod["metadata"]["name"])

    def slot(self, pod: Mapping[str, Any], workload: str) -> str | None:
        return workload


KINDS = (Pod(),)
