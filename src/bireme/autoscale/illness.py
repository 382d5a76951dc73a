"""Workers leave ill nodes: a taint keeps new pods away, and an eviction lets the workers save and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bireme.autoscale.cluster import Object, goes, has_ended
from bireme.autoscale.events import record
from bireme.clusters.api import Api, ApiError
from bireme.core.labels import COMPONENT_LABEL, ILL_TAINT, JOB_INDEX_LABEL
from bireme.plan.node_health import device_illness, illness
from bireme.plan.scheduling import takes

# The pods of charts/training that train: those of the job charts, by the labels that their pods have.
_WORKERS = (
    f"app.kubernetes.io/name in (torch-elastic,mpi-training,paddle),{COMPONENT_LABEL} in (worker,trainer)"
)
_DRA = "/apis/resource.k8s.io"


@dataclass(frozen=True)
class IllNodes:
    """Marks the ill nodes of a cluster, and evicts the workers of Bireme's jobs from them.

    Only workers of ``namespaces`` leave, all if there are none. ``tell`` gets a sentence for people about
    what happens, ``tell_once`` about what stays as it is. With ``dry_run`` nothing changes.
    """

    api: Api
    tell: Callable[[str], None]
    tell_once: Callable[[str], None]
    namespaces: Sequence[str]
    dry_run: bool

    def once(self) -> None:
        """Look at all nodes and devices, and act, once. Raises ApiError."""
        nodes = {each["metadata"]["name"]: self._marked(each) for each in self.api.items("/api/v1/nodes")}
        ill = {name: sign for name, node in nodes.items() if (sign := illness(node))}
        claims = dict(self._ill_claims())
        if not ill and not claims:
            return
        for pod in self.api.among(self.namespaces, "/api/v1", "pods", labelSelector=_WORKERS):
            where = pod["spec"].get("nodeName", "")
            of_devices = (claims[each] for each in _claims(pod) if each in claims)
            why = ill.get(where) or next(of_devices, "")
            if why and where in nodes and not has_ended(pod) and not goes(pod):
                # A device that is ill takes no pod again, whatever its node does.
                if where in ill and takes(nodes[where], pod["spec"]):
                    self.tell_once(f"{_key(pod)} stays on {where}, to which it would come back: {why}")
                else:
                    self._evict(pod, why)

    def _marked(self, node: Object) -> Object:
        """The node with the taint if it is ill, and without it if it is well."""
        why, name = illness(node), node["metadata"]["name"]
        taints = node["spec"].get("taints") or []
        wanted = [each for each in taints if each["key"] != ILL_TAINT]
        wanted += [{"key": ILL_TAINT, "effect": "NoSchedule"}] if why else []
        if len(wanted) == len(taints):
            return node
        self.tell(f"{name} is ill: {why}" if why else f"{name} is well again")
        if self.dry_run:
            return {**node, "spec": {**node["spec"], "taints": wanted}}
        # The server refuses the patch of a node that has changed since it was read: the next look sees it.
        change = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}}
        with _unless_gone():
            return self.api.patch(f"/api/v1/nodes/{name}", change | {"spec": {"taints": wanted}})
        return node

    def _ill_claims(self) -> Iterator[tuple[tuple[str, str], str]]:
        """The namespace and name of each claim that has an ill device, and why it is ill."""
        # None where the server does not have them.
        slices = self.api.items(f"{_DRA}/v1/resourceslices", unless=(404,))
        rules = self.api.items(f"{_DRA}/v1beta2/devicetaintrules", unless=(404,))
        if rules or any("taints" in str(each["spec"].get("devices")) for each in slices):
            for claim in self.api.items(f"{_DRA}/v1/resourceclaims", unless=(404,)):
                if why := device_illness(claim, slices, rules):
                    yield (claim["metadata"]["namespace"], claim["metadata"]["name"]), why

    def _evict(self, pod: Object, why: str) -> None:
        about, where = pod["metadata"], pod["spec"]["nodeName"]
        index = (about.get("labels") or {}).get(JOB_INDEX_LABEL, about["name"])
        said = f"worker {index} leaves {where}: {why}"
        if self.dry_run:
            self.tell(f"{_key(pod)}: {said}")
            return
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": about["name"], "namespace": about["namespace"]},
            "deleteOptions": {"preconditions": {"uid": about["uid"]}},
        }
        with _unless_gone():
            try:
                self.api.create(path, body)
            except ApiError as error:
                if error.status not in (403, 429):
                    raise
                self.tell_once(f"{_key(pod)} stays on {where}: {error}")
                return
            self.tell(f"{_key(pod)}: {said}")
            for owner in (each for each in about.get("ownerReferences") or () if each.get("controller")):
                record(self.api, about["namespace"], owner, "LeavesIllNode", said)


@contextmanager
def _unless_gone() -> Iterator[None]:
    """Passes over what has gone, or has changed, since it was read."""
    try:
        yield
    except ApiError as error:
        if error.status not in (404, 409):
            raise


def _key(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _claims(pod: Object) -> Iterator[tuple[str, str]]:
    """The namespace and name of each ResourceClaim that a pod uses."""
    made = pod["status"].get("resourceClaimStatuses") or ()
    for each in (*(pod["spec"].get("resourceClaims") or ()), *made):
        if name := each.get("resourceClaimName"):
            yield pod["metadata"]["namespace"], name
