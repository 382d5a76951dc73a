"""Job: pods that run to their end, each with a rank and a host name if the Job is Indexed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bireme.core.labels import JOB_INDEX_LABEL
from bireme.core.manifests import Manifest
from bireme.plan.instances import Instance
from bireme.plan.workloads import model

# Completions move with parallelism, and only in an Indexed Job (KEP-3715).
_COUNTS = frozenset({"parallelism", "completions"})


class Job(model.WorkloadKind):
    """batch/v1 Job."""

    name = "Job"
    api_version = "batch/v1"
    suspension: ClassVar[Mapping[str, Any]] = {"suspend": True}
    complete = "Complete"
    mutable = _COUNTS | {"activeDeadlineSeconds", "backoffLimit", "suspend", "ttlSecondsAfterFinished"}

    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> model.WorkloadPlan:
        spec = model.spec_of(manifest)
        template = spec.get("template") or {}
        replicas, is_indexed = pods_at_a_time(spec), spec.get("completionMode") == "Indexed"
        pod_spec = template.get("spec") or {}
        low, high = model.elastic_bounds(pod_spec) or (replicas, replicas)
        unit = model.count_of(pod_spec, "BIREME_WORKERS_PER_UNIT", 1)
        spares = min(model.count_of(pod_spec, "BIREME_SPARES", 0), replicas)
        names = [f"{manifest.name}-{index}" for index in range(replicas)]
        role = model.role_of(manifest, template)
        # Only an Indexed Job gives its pods a rank and a host name of their own.
        ranks = [*range(replicas - spares), *[None] * spares] if is_indexed else None
        pods = model.pod_plans(names, role, template, instances, names if is_indexed else None, ranks)
        is_suspended = bool(spec.get("suspend"))
        return model.WorkloadPlan(
            manifest.name, self.name, role, replicas, low, high, pods, is_suspended, unit=unit, spares=spares
        )

    def slot(self, pod: Mapping[str, Any], workload: str) -> str | None:
        index = pod["metadata"].get("labels", {}).get(JOB_INDEX_LABEL)
        return None if index is None else f"{workload}-{index}"

    def is_stopped(self, live: Mapping[str, Any]) -> bool:
        status = live.get("status", {})
        return not status.get("active") and not status.get("terminating")

    def parts(self, manifest: Manifest) -> Mapping[str, Any]:
        return {key: value for key, value in super().parts(manifest).items() if key not in _COUNTS}

    def refused(self, live: Manifest, wanted: Manifest) -> tuple[str, ...]:
        before, after = model.spec_of(live), model.spec_of(wanted)
        fixed = super().refused(live, wanted)
        is_elastic = after.get("completionMode") == "Indexed" and after.get("completions") == after.get(
            "parallelism"
        )
        same_completions = before.get("completions") == after.get("completions")
        return fixed if same_completions or is_elastic else (*fixed, "completions")

    def name_problem(self, manifest: Manifest) -> str | None:
        """The pods of an Indexed Job add ``-<index>`` to its name for their host names."""
        spec, length = model.spec_of(manifest), len(manifest.name)
        if spec.get("completionMode") == "Indexed":
            length += len(f"-{max(0, model.count_in(spec, 'completions') - 1)}")
        return model.too_long_names(length, "pod", "their index")


def pods_at_a_time(spec: Mapping[str, Any]) -> int:
    """How many pods a Job of ``spec`` runs at a time: no more than have to complete."""
    parallelism = model.count_in(spec, "parallelism")
    return min(parallelism, model.count_in(spec, "completions", parallelism))


KINDS = (Job(),)
