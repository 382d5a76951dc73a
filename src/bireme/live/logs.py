"""What the pods of a release print."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread

from bireme.clusters.api import ApiError
from bireme.clusters.base import Cluster
from bireme.core.errors import BiremeError
from bireme.live.observe import LAUNCHER_ROLE, observe
from bireme.live.pods import ObservedPod
from bireme.plan.topology import Plan

_LOOK_SECONDS = 2
_REST_SECONDS = 30


def main_pod(cluster: Cluster, plan: Plan, rank: int | None = None) -> ObservedPod:
    """The newest pod that runs world rank ``rank``; without a rank, the launcher's, else that of rank 0.

    Raises BiremeError when the release has no such pod.
    """
    pods = observe(cluster, plan)
    found = [pod for pod in pods if pod.role == LAUNCHER_ROLE] if rank is None else []
    if not found:
        planned = _slots(plan, rank or 0)
        found = [pod for pod in pods if pod.slot in planned]
    if not found:
        what = "a launcher or ranks" if rank is None else f"rank {rank}"
        raise BiremeError(
            f"{plan.release} in namespace {plan.namespace} has no pod with {what}: "
            f"bireme status {plan.release} shows its pods"
        )
    return max(found, key=lambda pod: pod.created)


def main_log(cluster: Cluster, plan: Plan) -> str:
    """What the pod of `main_pod` has printed. Raises BiremeError as that does, or when it has not started."""
    return b"".join(log(cluster, plan, main_pod(cluster, plan))).decode(errors="replace")


@dataclass(frozen=True)
class Wanted:
    """How much of a log: also what comes (``follow``), what the pod printed before its last restart
    (``previous``), of the last ``since`` seconds, at most the last ``tail`` lines.
    """

    follow: bool = False
    previous: bool = False
    since: int | None = None
    tail: int | None = None

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the API server."""
        texts = {"follow": self.follow and "true", "previous": self.previous and "true"}
        numbers = {"sinceSeconds": self.since, "tailLines": self.tail}
        return {key: str(each) for key, each in (texts | numbers).items() if each not in (None, False)}


def all_logs(cluster: Cluster, plan: Plan, wanted: Wanted) -> Iterator[bytes]:
    """Whole lines of every rank's pod, and of the launcher's, each with its rank before it.

    What is followed comes as it is printed, also from pods that come later. Raises BiremeError when no pod
    has started, or as `log` does.
    """
    printed: Queue[bytes | BaseException | None] = Queue()
    open_logs: dict[str, Thread] = {}
    ended = 0

    def read(pod: ObservedPod) -> None:
        try:
            for line in _prefixed(cluster, plan, pod, wanted):
                printed.put(line)
        except BaseException as error:
            printed.put(error)
        printed.put(None)

    while True:
        pods = [pod for pod in observe(cluster, plan) if _rank(plan, pod)]
        started = [pod for pod in pods if pod.scheduled and pod.phase != "Pending"]
        if not started and not open_logs:
            raise BiremeError(f"no pod of {plan.release} has started: bireme status {plan.release} says why")
        for pod in sorted(started, key=lambda pod: (len(_rank(plan, pod)), _rank(plan, pod), pod.created)):
            if not wanted.follow:
                yield from _prefixed(cluster, plan, pod, wanted)
            elif pod.name not in open_logs:
                open_logs[pod.name] = Thread(target=read, args=(pod,), daemon=True)
                open_logs[pod.name].start()
        if not wanted.follow:
            return
        is_live = any(pod.is_live for pod in pods)
        with suppress(Empty):
            while ended < len(open_logs):
                # What pods that have ended still have to say may take the API server a while.
                line = printed.get(timeout=_LOOK_SECONDS if is_live else _REST_SECONDS)
                ended += line is None
                if isinstance(line, BaseException):
                    raise line
                if line is not None:
                    yield line
            time.sleep(_LOOK_SECONDS)
        if not is_live:
            return


def _prefixed(cluster: Cluster, plan: Plan, pod: ObservedPod, wanted: Wanted) -> Iterator[bytes]:
    """Whole lines of the pod's log, each with its rank before it."""
    prefix = f"{_rank(plan, pod)} | ".encode()
    return (prefix + line + b"\n" for line in lines(log(cluster, plan, pod, wanted)))


def lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a log that comes in pieces, without their ends."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _rank(plan: Plan, pod: ObservedPod) -> str:
    """What stands before the lines of a pod; "" for one that has no rank and launches none."""
    if pod.role == LAUNCHER_ROLE:
        return LAUNCHER_ROLE
    ranks = (each.rank for each in plan.pods if each.name == pod.slot)
    return next((str(rank) for rank in ranks if rank is not None), "")


def log(cluster: Cluster, plan: Plan, pod: ObservedPod, wanted: Wanted = Wanted()) -> Iterator[bytes]:
    """What the pod's first container has printed, piece by piece.

    Raises BiremeError when it has not started, and when its node cannot be reached.
    """
    path = f"/api/v1/namespaces/{plan.namespace}/pods/{pod.name}"
    if not pod.scheduled or (pod.phase == "Pending" and not wanted.previous):
        raise BiremeError(f"{pod.name} has not started: {pod.reason or 'its containers are being made'}")
    container = cluster.api.get(path)["spec"]["containers"][0]["name"]
    try:
        return cluster.api.stream(f"{path}/log", endless=wanted.follow, container=container, **wanted.query)
    except ApiError as error:
        # The API server passes on what it hears when it calls the kubelet.
        if error.status < 500:
            raise
        raise BiremeError(
            f"{pod.name} runs on node {pod.node}, whose kubelet the API server cannot reach (a fake node of "
            f"bireme up has none): bireme status {plan.release} shows what is known of the pod"
        ) from error


def _slots(plan: Plan, rank: int) -> Sequence[str]:
    """The planned pods whose processes include world rank ``rank``."""
    ranked = [(pod, pod.rank, pod.processes or 1) for pod in plan.pods if pod.rank is not None]
    return [pod.name for pod, own, processes in ranked if own == rank // processes]
