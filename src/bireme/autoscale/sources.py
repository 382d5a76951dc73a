"""What the controller asks others: workers whether they save, Kueue for quota, Prometheus for a number."""

from __future__ import annotations

import json
import math
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from http.client import HTTPException
from types import MappingProxyType
from typing import Any

from bireme.autoscale.cluster import RunningJob, index
from bireme.clusters.api import Api
from bireme.core.errors import BiremeError
from bireme.core.quantities import pod_requests, quantity
from bireme.live.pod_http import Ask, metrics_port
from bireme.live.pods import is_ready

_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WORKER_SECONDS = 2.0
"""Time limit of a request to a worker."""
_FIRST = 4
_PARALLEL = 64
_QUERY_SECONDS = 10.0


def saving(ask: Ask, jobs: Sequence[RunningJob]) -> frozenset[str]:
    """The keys of the jobs of which a worker says that it writes a checkpoint.

    A worker that does not answer does not say so. Where none of a job's first workers answers, the others
    are not asked: they cannot be reached either, and each would cost its time-out.
    """
    asked = [(job, port, _ready(job)) for job in jobs if (port := metrics_port(job.live))]
    first = _answers(ask, [(job, port, pod) for job, port, pods in asked for pod in pods[:_FIRST]])
    reached = {key for key, _ in first}
    others = [(job, port, pod) for job, port, pods in asked if job.key in reached for pod in pods[_FIRST:]]
    return frozenset(key for key, answer in [*first, *_answers(ask, others)] if answer.get("saving"))


def _answers(
    ask: Ask, pods: Sequence[tuple[RunningJob, int, Mapping[str, Any]]]
) -> list[tuple[str, Mapping[str, Any]]]:
    with ThreadPoolExecutor(_PARALLEL) as pool:
        answers = list(pool.map(lambda each: ask(each[0].namespace, each[2], each[1], "v1/status"), pods))
    return [(each[0].key, answer) for each, answer in zip(pods, answers, strict=True) if answer is not None]


def _ready(job: RunningJob) -> list[Mapping[str, Any]]:
    """The pods of a job that may answer, that of the lowest index first: it is the one that saves, mostly."""
    ready = [pod for pod in job.pods if is_ready(pod) and (pod.get("status") or {}).get("podIP")]
    return sorted(ready, key=index)


def quotas(api: Api, jobs: Iterable[RunningJob]) -> dict[str, int]:
    """How many workers more the queue of each job has quota for; only of jobs in a queue. Raises ApiError.

    It is the ClusterQueue's own quota that counts, not what it could borrow, and none is left while other
    jobs wait in it: those are Kueue's to decide about.
    """
    find = cache(api.find)
    queues: dict[str, Mapping[str, Any] | None] = {}
    held: dict[str, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    queued = {job.key: job for job in jobs if job.queue}
    for job in queued.values():
        local = find(f"{_KUEUE}/namespaces/{job.namespace}/localqueues/{job.queue}") or {}
        name = (local.get("spec") or {}).get("clusterQueue") or ""
        queues[job.key] = find(f"{_KUEUE}/clusterqueues/{name}") if name else None
        for resource, amount in pod_requests(job.spec).items():
            held[name][resource] += quantity(amount) * (job.workers + job.policy.spares)
    return {
        key: unused(queue, queued[key].spec, held[queue["metadata"]["name"]]) if queue else 0
        for key, queue in queues.items()
    }


def unused(
    queue: Mapping[str, Any], spec: Mapping[str, Any], held: Mapping[str, Fraction] = MappingProxyType({})
) -> int:
    """How many pods of this spec fit the unused quota of a ClusterQueue, within one flavor of each group.

    ``held``: what its elastic jobs ask for by resource, because Kueue counts what it admits a little later.
    """
    status = queue.get("status") or {}
    if status.get("pendingWorkloads"):
        return 0
    used = {
        (flavor["name"], each["name"]): quantity(each.get("total", "0"))
        for flavor in status.get("flavorsUsage") or ()
        for each in flavor.get("resources") or ()
    }

    def uncounted(resource: str) -> Fraction:
        counted = sum(amount for (_, name), amount in used.items() if name == resource)
        return max(Fraction(), held.get(resource, Fraction()) - counted)

    requests = {name: quantity(amount) for name, amount in pod_requests(spec).items()}
    most = []
    for group in queue["spec"].get("resourceGroups") or ():
        names = [name for name in group["coveredResources"] if requests.get(name)]
        if names:
            fit = 0
            for flavor in group["flavors"]:
                quota = {each["name"]: quantity(each["nominalQuota"]) for each in flavor["resources"]}
                left = [
                    (quota.get(name, 0) - used.get((flavor["name"], name), 0) - uncounted(name))
                    / requests[name]
                    for name in names
                ]
                fit = max(fit, math.floor(min(left)))
            most.append(fit)
    return max(0, min(most, default=0))


def measured(jobs: Iterable[RunningJob], prometheus: str, tell: Callable[[str], None]) -> dict[str, float]:
    """The value of each job's query; ``tell`` gets a sentence for each that has none. Such a job stays."""
    found = {}
    for job in jobs:
        if job.policy.query:
            try:
                found[job.key] = query(prometheus, job.policy.query)
            except BiremeError as error:
                tell(f"{job.key}: {error}")
                found[job.key] = job.workers * job.policy.per_worker
    return found


def query(prometheus: str, text: str) -> float:
    """The one number that a query gives. Raises BiremeError when it gives none, or several."""
    if not prometheus:
        raise BiremeError("it has a metric, and nobody says where Prometheus is: set --prometheus")
    url = f"{prometheus.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
    try:
        with urllib.request.urlopen(url, timeout=_QUERY_SECONDS) as answer:
            data = json.load(answer)["data"]
        result = data["result"]
        if data["resultType"] == "scalar":
            return _number(result[1], text)
        if len(result) != 1:
            raise BiremeError(f"the query {text!r} gives {len(result)} series; write it so that it gives one")
        return _number(result[0]["value"][1], text)
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise BiremeError(f"Prometheus at {prometheus} gives nothing for {text!r}: {error}") from error


def _number(value: str, text: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise BiremeError(f"the query {text!r} gives {value}, which is no number of workers")
    return number
