"""What `decide` needs to know, read from a cluster's objects: running jobs, free places, pods that wait.

Objects are as the API server has them. Of affinity to other pods only that of workers to each other is looked
at; a worker that finds no place goes again.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from itertools import islice
from typing import Any

from bireme.autoscale.decisions import ElasticJob, Pool, Resize, decide
from bireme.autoscale.policy import Policy
from bireme.core.errors import BiremeError
from bireme.core.labels import AUTOSCALE_ANNOTATION, JOB_INDEX_LABEL, QUEUE_LABEL, RESIZED_ANNOTATION
from bireme.core.quantities import ACCELERATORS, pod_requests, quantity
from bireme.plan.instances import choose_nodes
from bireme.plan.node_health import illness
from bireme.plan.packing import Demand, Room, demand_of
from bireme.plan.scheduling import takes
from bireme.plan.workloads.model import true_conditions

Object = Mapping[str, Any]

DOOMED_TAINTS = frozenset(
    {
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/rebalance-recommendation",
    }
)
"""Taints of nodes that go soon: of Karpenter, the cluster autoscaler and AWS's node termination handler."""

_ENDED = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})
_STUCK_SECONDS = 60
# Others are looked at when these have their places.
_MOST_PODS = 32


@dataclass(frozen=True)
class RunningJob:
    """A Job whose chart lets its number of workers change, and its pods that have not ended."""

    namespace: str
    name: str
    live: Object
    policy: Policy
    pods: tuple[Object, ...]

    @property
    def key(self) -> str:
        """Its name in logs and decisions."""
        return f"{self.namespace}/{self.name}"

    @property
    def workers(self) -> int:
        """The workers that it shall have now, without spares."""
        return int(self.live["spec"]["completions"]) - self.policy.spares

    @property
    def spec(self) -> Object:
        """The spec of its workers' pods."""
        found: Object = self.live["spec"]["template"]["spec"]
        return found

    @property
    def priority(self) -> int:
        """That of its pods, which the API server has looked up."""
        return max((_priority(pod) for pod in self.pods), default=0)

    @property
    def resized_at(self) -> float:
        """When it was resized last, in seconds since 1970; long ago if never."""
        text = (self.live["metadata"].get("annotations") or {}).get(RESIZED_ANNOTATION)
        try:
            return datetime.fromisoformat(text).timestamp() if text else -math.inf
        except ValueError:
            return -math.inf

    @property
    def queue(self) -> str:
        """The queue of Kueue that admits it, or nothing."""
        return str((self.live["metadata"].get("labels") or {}).get(QUEUE_LABEL, ""))

    @property
    def together(self) -> tuple[str, ...]:
        """The labels of nodes that all its workers have to share, such as that of the zone."""
        template = self.live["spec"]["template"]
        own = (template.get("metadata") or {}).get("labels") or {}
        affinity = (self.spec.get("affinity") or {}).get("podAffinity") or {}
        return tuple(
            term["topologyKey"]
            for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
            if ((term.get("labelSelector") or {}).get("matchLabels") or {}).items() <= own.items()
        )

    def leaving(self, count: int) -> Iterator[Object]:
        """The pods that go when it has ``count`` workers less: those of the highest indices."""
        first = int(self.live["spec"]["completions"]) - count
        return (pod for pod in self.pods if index(pod) >= first)


@dataclass(frozen=True)
class World:
    """The objects of a cluster at one moment.

    ``quotas``: by the key of a job in a queue, how many workers more its queue has quota for. ``measured``:
    by the key of a job, the value of its query. ``saving``: the keys of jobs that write a checkpoint.
    """

    nodes: Sequence[Object]
    pods: Sequence[Object]
    jobs: Sequence[RunningJob]
    quotas: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    saving: frozenset[str] = frozenset()


def running(jobs: Iterable[Object], pods: Iterable[Object]) -> tuple[tuple[RunningJob, ...], tuple[str, ...]]:
    """The jobs that may be resized, by key, and a sentence for each whose annotation cannot be read.

    A Job that is suspended or has ended, or of which a worker has, is left alone.
    """
    by_owner: dict[str, list[Object]] = defaultdict(list)
    for pod in pods:
        for owner in pod["metadata"].get("ownerReferences") or ():
            if not has_ended(pod):
                by_owner[owner["uid"]].append(pod)
    found, sentences = [], []
    for job in jobs:
        about, spec, status = job["metadata"], job["spec"], job.get("status") or {}
        text = (about.get("annotations") or {}).get(AUTOSCALE_ANNOTATION)
        is_over = (
            true_conditions(job).keys() & _ENDED or status.get("succeeded") or "deletionTimestamp" in about
        )
        if not text or is_over or spec.get("suspend") or spec.get("completions") is None:
            continue
        try:
            policy = Policy.of(text)
        except BiremeError as error:
            sentences.append(f"{about['namespace']}/{about['name']}: {error}")
            continue
        found.append(
            RunningJob(about["namespace"], about["name"], job, policy, tuple(by_owner[about["uid"]]))
        )
    return tuple(sorted(found, key=lambda each: each.key)), tuple(sentences)


def plan(world: World, now: float) -> tuple[Resize, ...]:
    """What changes at ``now`` (seconds since 1970), by `decide`.

    A job outside its bounds comes back to them first. Workers that find no place go, and so do as many as
    there are on nodes that will be taken away, unless others take them.
    """
    return _Planner(world, now).resizes()


@dataclass(frozen=True)
class _Waiting:
    """A pod that needs a place, made or still to be made; ``job`` is the key of its job, if it has one."""

    priority: int
    since: str
    spec: Object
    demand: Demand
    nominated: str = ""
    job: str = ""
    is_stuck: bool = False


class _Planner:
    def __init__(self, world: World, now: float) -> None:
        self._world, self._now = world, now
        self._jobs = {job.key: job for job in world.jobs}
        self._bounds = {job.key: job.policy.bounds(now, world.measured.get(job.key)) for job in world.jobs}
        self._eligible: dict[str, dict[str, None]] = {}
        self._there = {node["metadata"]["name"]: node for node in sorted(world.nodes, key=_accelerators)}
        self._labels = {name: node["metadata"].get("labels") or {} for name, node in self._there.items()}
        self._near = {job.key: self._where(job) for job in world.jobs}
        self._full: set[str] = set()
        self._doomed = {
            name
            for name, node in self._there.items()
            if illness(node)
            or any(taint["key"] in DOOMED_TAINTS for taint in node["spec"].get("taints") or ())
        }
        # What is free now, and when the pods that end are gone.
        offered = {name: node["status"].get("allocatable") or {} for name, node in self._there.items()}
        self._free, self._soon = ({name: Room(each) for name, each in offered.items()} for _ in range(2))
        self._unplaced = [each for each in self._waiting() if not self._place(each)]

    def resizes(self) -> tuple[Resize, ...]:
        found: list[Resize] = []
        pools: dict[str, list[RunningJob]] = defaultdict(list)
        # Jobs that save are left alone: they neither grow nor give.
        for job in (each for each in self._world.jobs if each.key not in self._world.saving):
            low, high = self._bounds[job.key]
            if job.workers > high:
                found.append(Resize(job.key, high, f"it shall have {high} workers at most now"))
            elif job.workers < low:
                found.append(Resize(job.key, low, f"it shall have {low} workers at least now"))
            else:
                pools[_shape(job) + self._near[job.key]].append(job)
        grown: set[str] = set()
        order = sorted(pools.values(), key=lambda jobs: (-max(job.priority for job in jobs), jobs[0].key))
        for jobs in order:
            nodes = self._nodes(jobs[0].spec, jobs[0].key)
            wanted = self._one(jobs, nodes)
            if not nodes.keys().isdisjoint(grown):
                # The places of a node are given out once; others look again when these pods are there.
                wanted = [each for each in wanted if not self._grows(each)]
            if any(map(self._grows, wanted)):
                grown |= set(nodes)
            found += wanted
        return tuple(sorted(found, key=self._grows))

    def _grows(self, resize: Resize) -> bool:
        return resize.workers > self._jobs[resize.job].workers

    # --- what is there ---

    def _waiting(self) -> list[_Waiting]:
        """The pods that need a node, the most urgent first. Those that have one take their room."""
        own = {pod["metadata"]["uid"]: job for job in self._world.jobs for pod in job.pods}
        going = {pod["metadata"]["uid"] for job in self._world.jobs for pod in job.leaving(0)}
        found = []
        for pod in (each for each in self._world.pods if not has_ended(each)):
            about, spec, demand = pod["metadata"], pod["spec"], _demand(pod["spec"])
            node, stays = spec.get("nodeName", ""), not goes(pod) and about["uid"] not in going
            if node in self._free:
                self._free[node].take(demand)
                if stays:
                    self._soon[node].take(demand)
            elif stays and not node and not spec.get("schedulingGates"):
                job = own.get(about["uid"])
                found.append(
                    _Waiting(
                        _priority(pod),
                        about.get("creationTimestamp") or "",
                        spec,
                        demand,
                        (pod.get("status") or {}).get("nominatedNodeName") or "",
                        job.key if job else "",
                        job is not None and self._is_stuck(pod),
                    )
                )
        for job in self._world.jobs:
            found += [
                _Waiting(job.priority, "~", job.spec, _demand(job.spec), job=job.key)
                for _ in range(self._missing(job))
            ]
        return sorted(found, key=lambda each: (-each.priority, each.since))

    def _missing(self, job: RunningJob) -> int:
        """Pods still to be made: new ones, and those in place of pods that end or lose their node."""
        total = int(job.live["spec"]["completions"])
        kept = {
            index(pod)
            for pod in job.pods
            if not goes(pod) and pod["spec"].get("nodeName") not in self._doomed and index(pod) < total
        }
        return total - len(kept)

    def _is_stuck(self, pod: Object) -> bool:
        """Whether the scheduler has found no place for it for long, whatever is free."""
        for each in (pod.get("status") or {}).get("conditions") or ():
            if each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable":
                when = datetime.fromisoformat(each["lastTransitionTime"]).timestamp()
                return self._now - when > _STUCK_SECONDS
        return False

    def _where(self, job: RunningJob) -> str:
        """The label and value that its further workers need on their nodes, as JSON {label: value}."""
        on = [pod["spec"]["nodeName"] for pod in job.pods if pod["spec"].get("nodeName") in self._labels]
        found = {key: self._labels[on[0]].get(key) for key in job.together} if on else {}
        return json.dumps(found, sort_keys=True)

    def _nodes(self, spec: Object, job: str = "") -> Mapping[str, None]:
        """The nodes that take such pods, those with the fewest accelerators first.

        ``job``: the key of the job whose they are, for that of its other pods."""
        near = self._near.get(job, "{}")
        key = _placement(spec) + near
        if key not in self._eligible:
            needed = json.loads(near).items()
            self._eligible[key] = {
                name: None
                for name, node in self._there.items()
                if name not in self._doomed and needed <= self._labels[name].items() and takes(node, spec)
            }
        return self._eligible[key]

    def _place(self, pod: _Waiting) -> bool:
        if pod.nominated in self._soon:
            self._soon[pod.nominated].take(pod.demand)
            return True
        # Places only become fewer: what found none is not looked for again.
        sort = f"{_placement(pod.spec)} {self._near.get(pod.job)} {pod.demand}"
        if pod.is_stuck or sort in self._full:
            return False
        demand, names = pod.demand, self._nodes(pod.spec, pod.job)
        later = (name for name in names if not self._soon[name].lacks(demand))
        if name := next((name for name in later if not self._free[name].lacks(demand)), None):
            self._free[name].take(demand)
        else:
            name = next((name for name in names if not self._soon[name].lacks(demand)), None)
        if name is None:
            self._full.add(sort)
            return False
        self._soon[name].take(demand)
        return True

    # --- one sort of workers ---

    def _one(self, jobs: Sequence[RunningJob], nodes: Mapping[str, None]) -> list[Resize]:
        name, own = _pool_name(jobs[0]), {job.key for job in jobs}
        # A pod could go to one of the nodes: one of others, or of a job that is in no zone yet.
        concerned = (
            each
            for each in self._unplaced
            if each.job in own or not self._nodes(each.spec, each.job).keys().isdisjoint(nodes)
        )
        waiting = list(islice(concerned, _MOST_PODS))
        counted = self._would_fit(waiting, jobs)
        left = Counter(each.job for each in waiting) - Counter(each.job for each in counted)
        gone = [
            Resize(job.key, self._shrunk(job, left[job.key]), f"no node of {name} has a place for its pods")
            for job in jobs
            if left[job.key]
        ]
        gone = [each for each in gone if each.workers < self._jobs[each.job].workers]
        settled = [job for job in jobs if job.key not in {each.job for each in waiting}]
        if counted:
            self._unplaced = [each for each in self._unplaced if all(each is not other for other in counted)]
            return [*gone, *self._give_way(counted, settled, name)]
        demand = _demand(jobs[0].spec)
        free = sum(min(self._free[node].places(demand), self._soon[node].places(demand)) for node in nodes)
        quota = min((self._world.quotas[key] for key in own if key in self._world.quotas), default=free)
        return [*gone, *decide(list(map(self._elastic, settled)), Pool(name, min(free, quota)), self._now)]

    def _give_way(self, counted: Sequence[_Waiting], givers: Sequence[RunningJob], name: str) -> list[Resize]:
        """As few workers go as let all of ``counted`` fit, or as many as can."""
        elastic = list(map(self._elastic, givers))
        wanted: dict[int, int] = defaultdict(int)
        resizes: list[Resize] = []
        given: list[Object] = []
        while late := self._late(counted, given):
            wanted[late[0].priority] += 1
            more = decide(elastic, Pool(name, 0, dict(wanted)), self._now)
            if more == resizes:
                break
            resizes = more
            given = [
                pod
                for each in resizes
                for pod in self._jobs[each.job].leaving(self._jobs[each.job].workers - each.workers)
            ]
        return resizes

    def _would_fit(self, waiting: Sequence[_Waiting], jobs: Sequence[RunningJob]) -> list[_Waiting]:
        """Those that fit when all jobs that are not more urgent have their minimum.

        Of the pods of a job, those beyond its minimum only take from jobs of a lower priority.
        """
        counted: list[_Waiting] = []
        missing = Counter(each.job for each in waiting if each.job)
        within = {
            key: max(0, self._bounds[key][0] - self._jobs[key].workers + count)
            for key, count in missing.items()
        }
        for each in waiting:
            is_borrowed = within.get(each.job, 1) <= 0
            limit = each.priority - 1 if is_borrowed else each.priority
            givers = [job for job in jobs if job.priority <= limit and job.key != each.job]
            given = [pod for job in givers for pod in job.leaving(job.workers - self._bounds[job.key][0])]
            if not self._late([*counted, each], given):
                counted.append(each)
                if each.job in within:
                    within[each.job] -= 1
        return counted

    def _late(self, pods: Sequence[_Waiting], given: Iterable[Object]) -> list[_Waiting]:
        """Those of ``pods``, which have no place, that still find none when the pods ``given`` are gone."""
        # Only nodes on which something ends can have a place then.
        rooms: dict[str, Room] = {}
        for pod in given:
            node = pod["spec"].get("nodeName", "")
            if node in self._there and not goes(pod):
                if node not in rooms:
                    rooms[node] = copy.deepcopy(self._soon[node])
                rooms[node].take(_demand(pod["spec"]), -1)
        late = []
        for each in pods:
            among = self._nodes(each.spec, each.job)
            eligible = (room for name, room in rooms.items() if name in among)
            if free := next((room for room in eligible if not room.lacks(each.demand)), None):
                free.take(each.demand)
            else:
                late.append(each)
        return late

    def _shrunk(self, job: RunningJob, count: int) -> int:
        """Its workers without ``count`` of them, in whole steps and not below its minimum."""
        step = job.policy.step
        return max(job.workers - math.ceil(count / step) * step, self._bounds[job.key][0])

    def _elastic(self, job: RunningJob) -> ElasticJob:
        policy = job.policy
        return ElasticJob(
            job.key,
            job.workers,
            *self._bounds[job.key],
            policy.step,
            job.priority,
            job.resized_at,
            policy.cooldown,
            policy.reserve,
        )


def _shape(job: RunningJob) -> str:
    """Jobs of one shape ask for the same places."""
    demand = {name: str(amount) for name, amount in _demand(job.spec).items()}
    return json.dumps([demand, _placement(job.spec), job.queue and f"{job.namespace}/{job.queue}"])


def _placement(spec: Object) -> str:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    return json.dumps([spec.get("nodeSelector"), affinity, spec.get("tolerations")], sort_keys=True)


def _pool_name(job: RunningJob) -> str:
    types = choose_nodes(job.spec, {}).types or ()
    return " or ".join(types[:2]) if types else "the cluster"


def _demand(spec: Object) -> dict[str, Fraction]:
    return demand_of(pod_requests(spec))


def _accelerators(node: Object) -> tuple[int, str]:
    offered = node["status"].get("allocatable") or {}
    return sum(int(quantity(offered.get(name, "0"))) for name in ACCELERATORS), node["metadata"]["name"]


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)


def index(pod: Object) -> int:
    """The index that its Job has given a pod; -1 if none has."""
    return int((pod["metadata"].get("labels") or {}).get(JOB_INDEX_LABEL, -1))


def has_ended(pod: Object) -> bool:
    """Whether a pod has run to its end, well or not."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def goes(pod: Object) -> bool:
    """Whether a pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]
