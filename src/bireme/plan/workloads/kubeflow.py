"""What the jobs of Kubeflow's operators share: pods by role, a run policy, conditions, a count by role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bireme.core.labels import KUBEFLOW_JOB_LABEL
from bireme.core.manifests import Manifest
from bireme.plan.workloads import model


class KubeflowJob(model.WorkloadKind):
    """A job whose ``spec[replicas_field]`` has {replicas, template} by role."""

    replicas_field: str
    suspension: ClassVar[Mapping[str, Any]] = {"runPolicy": {"suspend": True}}
    complete = "Succeeded"
    role_parts: ClassVar[Mapping[str, str]]
    """What people read about a changed template, by role: the operators only make pods that are missing."""

    def roles(self, manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
        """{replicas, template} by role."""
        return model.spec_of(manifest).get(self.replicas_field) or {}

    def replicas(self, manifest: Manifest, role: str) -> int:
        """The number of pods of ``role``."""
        found = self.roles(manifest).get(role)
        return model.count_in(found, "replicas") if found else 0

    def is_suspended(self, manifest: Manifest) -> bool:
        """Whether the job is to have no pods for now."""
        return bool((model.spec_of(manifest).get("runPolicy") or {}).get("suspend"))

    def pod_templates(self, manifest: Manifest) -> tuple[Mapping[str, Any], ...]:
        return tuple((role or {}).get("template") or {} for role in self.roles(manifest).values())

    def owner(self, pod: Mapping[str, Any]) -> str | None:
        """The job that controls the pod, or that the pod's label names where a Job in between does."""
        controller = model.controller_of(pod)
        if controller is None or controller[0] == self.name:
            return controller[1] if controller else None
        job = pod["metadata"].get("labels", {}).get(KUBEFLOW_JOB_LABEL)
        return job if job and controller in self.helpers(job) else None

    def helpers(self, job: str) -> tuple[tuple[str, str], ...]:
        """Kind and name of the objects through which the operator makes pods of ``job``."""
        return ()

    def slot(self, pod: Mapping[str, Any], workload: str) -> str | None:
        # A pod that a Job in between makes has a generated name, but the operator's host name.
        return str(pod["spec"].get("hostname") or pod["metadata"]["name"])

    def is_stopped(self, live: Mapping[str, Any]) -> bool:
        counts = live.get("status", {}).get("replicaStatuses") or {}
        return not any(role.get("active") for role in counts.values())

    def parts(self, manifest: Manifest) -> Mapping[str, Any]:
        spec, roles = model.spec_of(manifest), self.roles(manifest)
        own = {key: value for key, value in spec.items() if key not in {self.replicas_field, "runPolicy"}}
        policy = {model.part_name(key): value for key, value in (spec.get("runPolicy") or {}).items()}
        templates = {
            self.role_parts.get(role, role.lower()): {k: v for k, v in each.items() if k != "replicas"}
            for role, each in roles.items()
        }
        return {**own, **policy, **templates}

    def longest_host_name(self, manifest: Manifest) -> int:
        """Characters of the longest host name: the job's name, the role, and the last index."""
        last = [f"-{role.lower()}-{max(0, self.replicas(manifest, role) - 1)}" for role in self.role_parts]
        return len(manifest.name) + max(map(len, last))

    def name_problem(self, manifest: Manifest) -> str | None:
        return model.too_long_names(self.longest_host_name(manifest), "host", "role and index")
