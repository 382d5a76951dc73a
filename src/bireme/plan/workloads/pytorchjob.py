"""PyTorchJob: a master and workers that Kubeflow's training operator makes, elastic if it has a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest
from bireme.plan.instances import Instance
from bireme.plan.workloads.kubeflow import KubeflowJob
from bireme.plan.workloads.model import PodPlan, WorkloadPlan, pod_plans, processes_of, role_of, spec_of

_ROLES = ("Master", "Worker")


class PyTorchJob(KubeflowJob):
    """kubeflow.org/v1 PyTorchJob. The master trains too: it has rank 0, and the workers follow it."""

    name = "PyTorchJob"
    api_version = "kubeflow.org/v1"
    replicas_field = "pytorchReplicaSpecs"
    role_parts: ClassVar[Mapping[str, str]] = {
        "Master": "a master not made yet",
        "Worker": "workers made from now on",
    }

    def roles(self, manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
        # The operator takes the roles in any case.
        return {role.capitalize(): each for role, each in super().roles(manifest).items()}

    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> WorkloadPlan:
        roles = [role for role in _ROLES if role in self.roles(manifest)]
        if not roles:
            raise BiremeError(
                f"{manifest.identity} has neither Master nor Worker in spec.{self.replicas_field}: "
                "a PyTorchJob needs one of them"
            )
        pods: tuple[PodPlan, ...] = ()
        for role in roles:
            template, first = self.roles(manifest)[role].get("template") or {}, len(pods)
            count, own = self.replicas(manifest, role), role_of(manifest, template, role.lower())
            hosts = [f"{manifest.name}-{role.lower()}-{index}" for index in range(count)]
            processes = _processes(spec_of(manifest), template.get("spec") or {})
            ranks = range(first, first + count)
            pods += pod_plans(hosts, own, template, instances, hosts, ranks, processes)
        low, high = self._bounds(manifest) or (len(pods), len(pods))
        suspended = self.is_suspended(manifest)
        return WorkloadPlan(manifest.name, self.name, own, len(pods), low, high, pods, suspended)

    def _bounds(self, manifest: Manifest) -> tuple[int, int] | None:
        """The least and the most pods that the elastic policy lets torchrun go on with."""
        policy = spec_of(manifest).get("elasticPolicy")
        if policy is None:
            return None
        low, high = policy.get("minReplicas"), policy.get("maxReplicas")
        workers = self.replicas(manifest, "Worker")
        return int(low or high or workers), int(high or low or workers)


def _processes(spec: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> int | None:
    """Processes per pod: as given, else one per accelerator under torchrun, else one."""
    policy = spec.get("elasticPolicy")
    given = spec.get("nprocPerNode") or (policy or {}).get("nProcPerNode")
    if given == "cpu":
        return None
    if given is None and policy is None:
        return processes_of(pod_spec) or 1
    return processes_of(pod_spec, str(given or "auto"))


KINDS = (PyTorchJob(),)
