"""What the pods of a release print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bireme.clusters import Cluster
from bireme.clusters.api import ApiError
from bireme.core.errors import BiremeError
from bireme.live.observe import LAUNCHER_ROLE, observe
from bireme.live.pods import ObservedPod
from bireme.plan.topology import Plan


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


def named_pod(cluster: Cluster, plan: Plan, name: str) -> ObservedPod:
    """The release's pod of that name. Raises BiremeError when there is none."""
    pods = observe(cluster, plan)
    found = next((pod for pod in pods if pod.name == name), None)
    if found is None:
        names = ", ".join(pod.name for pod in pods) or "none"
        raise BiremeError(f"{plan.release} has no pod {name}: there are {names}")
    return found


def log(
    cluster: Cluster, plan: Plan, pod: ObservedPod, follow: bool = False, previous: bool = False
) -> Iterator[bytes]:
    """What the pod's first container has printed, piece by piece; with ``follow`` also what it will print.

    ``previous``: what it printed before its last restart. Raises BiremeError when it has not started, and
    when its node cannot be reached.
    """
    path = f"/api/v1/namespaces/{plan.namespace}/pods/{pod.name}"
    if not pod.scheduled or (pod.phase == "Pending" and not previous):
        raise BiremeError(f"{pod.name} has not started: {pod.reason or 'its containers are being made'}")
    container = cluster.api.get(path)["spec"]["containers"][0]["name"]
    query = {"follow": "true"} if follow else {}
    query |= {"previous": "true"} if previous else {}
    try:
        return cluster.api.stream(f"{path}/log", endless=follow, container=container, **query)
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
