"""MPIJob: a launcher, made through a Job, and workers with the host names that mpi-operator gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest
from bireme.plan.instances import Instance
from bireme.plan.workloads.kubeflow import KubeflowJob
from bireme.plan.workloads.model import WorkloadPlan, count_in, pod_plans, role_of, spec_of

LAUNCHER, WORKER = "Launcher", "Worker"
# What mpi-operator adds to an MPIJob's name for the Job and the host of its launcher.
_LAUNCHER_SUFFIX = "-launcher"


class MPIJob(KubeflowJob):
    """kubeflow.org/v2beta1 MPIJob. The role and the replicas of its plan are its workers'."""

    name = "MPIJob"
    api_version = "kubeflow.org/v2beta1"
    replicas_field = "mpiReplicaSpecs"
    installation: ClassVar[str] = "helm install mpijob charts/mpijob"
    role_parts: ClassVar[Mapping[str, str]] = {
        LAUNCHER: "a launcher not made yet",
        WORKER: "workers made from now on",
    }

    def plan(self, manifest: Manifest, instances: Mapping[str, Instance]) -> WorkloadPlan:
        """Ranks follow the host file that mpi-operator writes: worker by worker, ``slotsPerWorker`` each.

        A launcher that works too comes first (mpi-operator ``pkg/controller/mpi_job_controller.go``).
        """
        roles, spec = self.roles(manifest), spec_of(manifest)
        if roles.get(LAUNCHER) is None:
            raise BiremeError(
                f"{manifest.identity} has no Launcher in spec.mpiReplicaSpecs: an MPIJob needs one"
            )
        slots, launcher_works = count_in(spec, "slotsPerWorker"), bool(spec.get("runLauncherAsWorker"))
        count = self.replicas(manifest, WORKER)
        template = roles[LAUNCHER].get("template") or {}
        hosts, role = [f"{manifest.name}{_LAUNCHER_SUFFIX}"], role_of(manifest, template, "launcher")
        ranks, processes = ([0], slots) if launcher_works else (None, None)
        pods = pod_plans(hosts, role, template, instances, hosts, ranks, processes)
        if count:
            template = roles[WORKER].get("template") or {}
            hosts = [f"{manifest.name}-worker-{index}" for index in range(count)]
            role, first = role_of(manifest, template, "worker"), int(launcher_works)
            pods += pod_plans(hosts, role, template, instances, hosts, range(first, first + count), slots)
        suspended = self.is_suspended(manifest)
        return WorkloadPlan(manifest.name, self.name, role, count, count, count, pods, suspended)

    def helpers(self, job: str) -> tuple[tuple[str, str], ...]:
        return (("Job", f"{job}{_LAUNCHER_SUFFIX}"),)

    def longest_host_name(self, manifest: Manifest) -> int:
        last_worker = f"-worker-{max(0, self.replicas(manifest, WORKER) - 1)}"
        return len(manifest.name) + max(len(_LAUNCHER_SUFFIX), len(last_worker))


KINDS = (MPIJob(),)
