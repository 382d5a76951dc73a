"""The way out: a job of our charts as plain manifests of another kind, without our runtime."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bireme.adopt.jobs import WORKERS, accepted
from bireme.adopt.parts import leaves
from bireme.adopt.pods import at, put
from bireme.adopt.tables import table
from bireme.core.errors import BiremeError
from bireme.core.labels import COMPONENT_LABEL
from bireme.core.manifests import Manifest
from bireme.core.plain import Plain
from bireme.helm import Renderer, RenderRequest
from bireme.helm.yaml import merge
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.plan.workloads import kind_of
from bireme.plan.workloads.model import WorkloadPlan

Object = dict[str, Any]

_FIXED = "workers: their number is fixed once the job is there"
# The operator of PyTorchJobs sets these from the elastic policy.
_POLICY = {"PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "PET_RDZV_ID", "PET_NNODES", "PET_NPROC_PER_NODE"}


@dataclass(frozen=True)
class Exported(Plain):
    """The ``objects`` of a job, and sentences that say what is ``lost`` with them."""

    objects: Sequence[Object]
    lost: Sequence[str]


def export(
    renderer: Renderer, request: RenderRequest, kind: str, instances: Mapping[str, Instance]
) -> Exported:
    """The job of ``request`` as ``kind``, one of those that fields.yaml has for its chart.

    Raises BiremeError for a chart that has no such way out, and for a job that only our runtime can run.
    """
    way = table("export").get(request.chart.name)
    if way is None or kind not in way["kinds"]:
        able = f"is exported as {' or '.join(way['kinds'])}, not as {kind}" if way else "has no job to export"
        raise BiremeError(f"the chart {request.chart.name} {able}")
    request = renderer.merged(request)
    planned = expand(
        request.release, request.namespace, renderer.render(request).manifests, instances
    ).workloads
    lost = [
        f"{path}: {there} is done by our runtime"
        for each in leaves(way["without"])
        for path in [".".join(map(str, each.place))]
        if (there := at(request.values, path)) not in (None, each.given)
    ]
    values = copy.deepcopy(dict(merge(dict(request.values), way["without"])))
    always = {path: kind if value == "KIND" else value for path, value in way["always"].items()}
    for path, value in always.items():
        put(values, path, value)
    request, refused = accepted(renderer, replace(request, values=values))
    if any(at(request.values, path) != each for path, each in always.items()):
        raise BiremeError(f"without our runtime this job cannot run: {' '.join(refused)}")
    rendered = [each for each in renderer.render(request).manifests if not each.is_hook]
    job = next(each for each in rendered if each.kind in ("Job", "MPIJob") and _is_worker(each))
    plain = _plain(job, way["has_runtime"])
    made, further = _MAKERS[kind](plain) if kind in _MAKERS else ([plain], ())
    # The controllers of the other kinds make a Service of their own.
    kept = [each for each in rendered if each is not job and (kind == "Job" or not _is_worker(each))]
    objects = [*(_plain(each, way["has_runtime"]) for each in kept), *made]
    for each in map(Manifest, made):
        known = kind_of(each)
        if known and (problem := known.name_problem(each)):
            raise BiremeError(f"{each.identity}: {problem}")
    now = expand(request.release, request.namespace, map(Manifest, objects), instances).workloads
    return Exported(objects, [*way["lost"], *lost, *refused, *further, *_unequal(planned, now)])


def _is_worker(item: Manifest) -> bool:
    return item.kind in ("Job", "MPIJob", "Service") and item.labels.get(COMPONENT_LABEL) in WORKERS


def _unequal(planned: Sequence[WorkloadPlan], now: Sequence[WorkloadPlan]) -> Iterator[str]:
    """How the pods that train differ from the chart's, but for their names and for kinds without a plan."""
    ours, theirs = (
        [each for each in workloads if each.role in WORKERS and each.is_known] for workloads in (planned, now)
    )
    for one, other in zip(ours, theirs, strict=False):
        own, made = ((each.min_replicas, each.max_replicas) for each in (one, other))
        if own != made:
            yield f"workers: {made[0]} to {made[1]} are planned, not {own[0]} to {own[1]}"
        ranked = [[pod for pod in each.pods if pod.rank is not None] for each in (one, other)]
        told, there = ([(pod.rank, pod.resources, pod.nodes) for pod in each] for each in ranked)
        counts = [[pod.processes for pod in each if pod.processes] for each in ranked]
        if told != there or (all(counts) and counts[0] != counts[1]):
            yield "workers: their ranks, processes, resources or nodes are not those of the chart"
        if len(other.pods) - other.spares > len(one.pods) - one.spares:
            yield f"launcher: {other.kind}s have a pod of their own for it, beside the workers"


def _plain(item: Manifest, has_runtime: bool) -> Object:
    """The object without what is Helm's and, if it ``has_runtime`` no more, ours."""
    found: Object = item.thaw()
    metadata = found["metadata"]
    for key in ("labels", "annotations"):
        kept = {
            name: each
            for name, each in (metadata.pop(key, None) or {}).items()
            if not name.startswith(("helm.sh/", "bireme/", "app.kubernetes.io/managed-by"))
        }
        metadata |= {key: kept} if kept else {}
    for container in at(found, "spec.template.spec.containers") or ():
        rest = json.dumps({**container, "env": None})
        container["env"] = [
            each
            for each in container.get("env") or ()
            if has_runtime or not each["name"].startswith("BIREME_") or each["name"] in rest
        ]
    return found


def _renamed(job: Object, container: str, host: str) -> Object:
    """The Job with another name of its container, and ``host`` as the name of worker 0."""
    pod = job["spec"]["template"]["spec"]
    name, subdomain = job["metadata"]["name"], pod["subdomain"]
    text = json.dumps(job).replace(f"{name}-0.{subdomain}.{job['metadata']['namespace']}.svc", host)
    found: Object = json.loads(re.sub(r'("(name|containerName)": )"trainer"', rf'\1"{container}"', text))
    return found


def _group(job: Object, group: str) -> tuple[Object, Object]:
    """The spec of a JobSet with this Job as its only group, and the fields that the object around it has."""
    spec = job["spec"]
    outer = {
        key: spec.pop(key) for key in ("suspend", "ttlSecondsAfterFinished") if spec.get(key) is not None
    }
    network = {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    network["subdomain"] = spec["template"]["spec"].pop("subdomain")
    jobs = [{"name": group, "replicas": 1, "template": {"spec": spec}}]
    return {"network": network, "replicatedJobs": jobs}, outer


def _host(job: Object, group: str) -> str:
    metadata, subdomain = job["metadata"], at(job, "spec.template.spec.subdomain")
    return f"{metadata['name']}-{group}-0-0.{subdomain}.{metadata['namespace']}.svc"


def _jobset(job: Object) -> tuple[list[Object], Sequence[str]]:
    spec, outer = _group(_renamed(job, "trainer", _host(job, "worker")), "worker")
    about = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": job["metadata"]}
    return [{**about, "spec": {**outer, **spec}}], [_FIXED]


def _train_job(job: Object) -> tuple[list[Object], Sequence[str]]:
    """A TrainJob with a runtime of its own, whose plain policy leaves the variables of torchrun alone."""
    version, metadata = "trainer.kubeflow.org/v1alpha1", job["metadata"]
    spec, outer = _group(_renamed(job, "node", _host(job, "node")), "node")
    [group] = spec["replicatedJobs"]
    count = group["template"]["spec"].pop("completions")
    del group["template"]["spec"]["parallelism"]
    group["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    node = next(
        each for each in at(group, "template.spec.template.spec.containers") if each["name"] == "node"
    )
    own = {key: node.pop(key) for key in ("image", "command", "args", "env") if key in node}
    trainer = {"numNodes": count, **own, "resourcesPerNode": node.pop("resources")}
    about = {key: metadata[key] for key in ("name", "namespace")}
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": metadata["name"]}
    runtime = {"mlPolicy": {"numNodes": count}, "template": {"spec": spec}}
    suspend = {"suspend": outer["suspend"]} if "suspend" in outer else {}
    ttl = ["job.ttlSecondsAfterFinished: a TrainJob stays"] if "ttlSecondsAfterFinished" in outer else []
    return [
        {"apiVersion": version, "kind": "TrainingRuntime", "metadata": about, "spec": runtime},
        {
            "apiVersion": version,
            "kind": "TrainJob",
            "metadata": metadata,
            "spec": {**suspend, "runtimeRef": reference, "trainer": trainer},
        },
    ], [_FIXED, *ttl]


def _pytorch_job(job: Object) -> tuple[list[Object], Sequence[str]]:
    metadata = job["metadata"]
    spec = _renamed(job, "pytorch", f"{metadata['name']}-worker-0")["spec"]
    template = spec["template"]
    pod = template["spec"]
    del pod["subdomain"]
    pod.pop("restartPolicy", None)
    trainer = next(each for each in pod["containers"] if each["name"] == "pytorch")
    env = {each["name"]: each.get("value", "") for each in trainer["env"]}
    low, _, high = env["PET_NNODES"].partition(":")
    policy = {"minReplicas": int(low), "maxReplicas": int(high or low), "rdzvBackend": "c10d"}
    policy |= {"rdzvPort": int(env["PET_RDZV_ENDPOINT"].rpartition(":")[2]), "rdzvId": metadata["name"]}
    processes = {"nprocPerNode": env["PET_NPROC_PER_NODE"]} if env.get("PET_NPROC_PER_NODE") else {}
    index = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}
    kept = [each for each in trainer["env"] if each["name"] not in _POLICY]
    trainer["env"] = [{"name": "JOB_COMPLETION_INDEX", "valueFrom": index}, *kept]
    limits = ("suspend", "ttlSecondsAfterFinished", "activeDeadlineSeconds")
    run = {key: spec[key] for key in limits if spec.get(key) is not None}
    run |= {"backoffLimit": spec["backoffLimitPerIndex"], "cleanPodPolicy": "Running"}
    worker = {"replicas": spec["completions"], "restartPolicy": "OnFailure", "template": template}
    made = {**processes, "runPolicy": run, "elasticPolicy": policy, "pytorchReplicaSpecs": {"Worker": worker}}
    about = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata}
    return [{**about, "spec": made}], [
        "podFailurePolicy: a PyTorchJob has none, so no exit code ends the job",
        "recovery.backoffLimitPerIndex: backoffLimit counts the restarts of all workers together",
    ]


_MAKERS = {"TrainJob": _train_job, "JobSet": _jobset, "PyTorchJob": _pytorch_job}
