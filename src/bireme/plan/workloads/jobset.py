"""JobSet: groups of Jobs, whose pods have the host names ``<jobset>-<group>-<job>-<pod>``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from bireme.core.manifests import Manifest
from bireme.plan.instances import Instance
from bireme.plan.workloads import model
from bireme.plan.workloads.job import pods_at_a_time

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
# What a Job adds to the name of each pod: a dash and five characters.
_POD_SUFFIX = "-abcde"


class JobSet(model.WorkloadKind):
    """jobset.x-k8s.io/v1alpha2 JobSet. A rank counts the pods of one replicated job, Job by Job."""

    name = "JobSet"
    api_version = "jobset.x-k8s.io/v1alpha2"
    suspension: ClassVar[Mapping[str, Any]] = {"suspend": True}
    complete = "Completed"
    mutable = frozenset({"suspend", "ttlSecondsAfterFinished"})

    def pod_templates(self, manifest: Manifest) -> tuple[Mapping[str, Any], ...]:
        return tuple(_template(group) for group in _groups(manifest))

    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> model.WorkloadPlan:
        groups = [*_groups(manifest)]
        pods = tuple(pod for group in groups for pod in _pods(manifest, group, instances))
        count = len(pods)
        bounds = model.elastic_bounds(_template(groups[0]).get("spec") or {}) if len(groups) == 1 else None
        low, high = bounds or (count, count)
        role = pods[-1].role if pods else manifest.name
        suspended = bool(model.spec_of(manifest).get("suspend"))
        return model.WorkloadPlan(manifest.name, self.name, role, count, low, high, pods, suspended)

    def owner(self, pod: Mapping[str, Any]) -> str | None:
        """The JobSet makes its pods through Jobs and puts its name on them."""
        controller = model.controller_of(pod)
        is_of_job = controller is not None and controller[0] == "Job"
        return pod["metadata"].get("labels", {}).get(JOBSET_LABEL) if is_of_job else None

    def slot(self, pod: Mapping[str, Any], workload: str) -> str | None:
        found = pod["spec"].get("hostname")
        return None if found is None else str(found)

    def is_stopped(self, live: Mapping[str, Any]) -> bool:
        counts = live.get("status", {}).get("replicatedJobsStatus") or ()
        return not any(group.get("active") for group in counts)

    def name_problem(self, manifest: Manifest) -> str | None:
        length = max((_longest_pod_name(manifest, group) for group in _groups(manifest)), default=0)
        return model.too_long_names(length, "pod", "job and index")


def _groups(manifest: Manifest) -> Iterable[Mapping[str, Any]]:
    return model.spec_of(manifest).get("replicatedJobs") or ()


def _job_spec(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return (group.get("template") or {}).get("spec") or {}


def _template(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return _job_spec(group).get("template") or {}


def _pods(
    manifest: Manifest, group: Mapping[str, Any], instances: Mapping[str, Instance]
) -> tuple[model.PodPlan, ...]:
    jobs, pods = model.count_in(group, "replicas"), pods_at_a_time(_job_spec(group))
    base = f"{manifest.name}-{group['name']}"
    model.count_in({"replicas": jobs * pods}, "replicas")
    names = [f"{base}-{job}-{pod}" for job in range(jobs) for pod in range(pods)]
    template = _template(group)
    role = model.role_of(manifest, template, group["name"])
    is_indexed = _job_spec(group).get("completionMode", "Indexed") == "Indexed"
    hostnames, ranks = (names, range(len(names))) if is_indexed else (None, None)
    return model.pod_plans(names, role, template, instances, hostnames, ranks)


def _longest_pod_name(manifest: Manifest, group: Mapping[str, Any]) -> int:
    last_job = max(0, model.count_in(group, "replicas") - 1)
    last_pod = max(0, model.count_in(_job_spec(group), "completions") - 1)
    return len(f"{manifest.name}-{group['name']}-{last_job}-{last_pod}{_POD_SUFFIX}")


KINDS = (JobSet(),)
