"""Kinds that make pods in a way that Bireme has not been taught, such as a RayCluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bireme.core.manifests import Manifest
from bireme.plan.instances import Instance
from bireme.plan.workloads.model import WorkloadKind, WorkloadPlan, role_of, spec_of

# Well-known kinds that have no pod template: other fields describe their pods.
_WITHOUT_TEMPLATE = frozenset(
    {
        ("argoproj.io", "Workflow"),
        ("sparkoperator.k8s.io", "SparkApplication"),
        ("trainer.kubeflow.org", "TrainJob"),
    }
)


class UnknownKind(WorkloadKind):
    """The kind of one object. Its pods are not counted; the plan's note says so."""

    has_state = False

    def __init__(self, manifest: Manifest) -> None:
        self.name = manifest.kind
        self.api_version = manifest.api_version

    def pod_templates(self, manifest: Manifest) -> tuple[Mapping[str, Any], ...]:
        """Whatever under ``spec`` is called a template and has a pod's containers."""
        return tuple(_templates(spec_of(manifest)))

    def makes_pods(self, manifest: Manifest) -> bool:
        """Whether pods come from the object: it has a pod template, or its kind is known to do without."""
        return bool(self.pod_templates(manifest)) or (self.group, self.name) in _WITHOUT_TEMPLATE

    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> WorkloadPlan:
        note = f"makes pods, but Bireme does not know how many a {self.name} has: none of them is counted"
        role = role_of(manifest, {})
        return WorkloadPlan(manifest.name, self.name, role, 0, 0, 0, (), note=note, is_known=False)


def _templates(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _templates(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if str(key).lower().endswith("template") and _is_pod(item):
                yield item
            else:
                yield from _templates(item)


def _is_pod(value: Any) -> bool:
    spec = value.get("spec") if isinstance(value, Mapping) else None
    return isinstance(spec, Mapping) and isinstance(spec.get("containers"), list | tuple)
