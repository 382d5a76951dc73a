"""What belongs to a release: the objects of its manifest, and all that these have made on the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bireme.clusters.api import Api, ApiError
from bireme.core.errors import BiremeError
from bireme.core.labels import HOOK_ANNOTATION, RELEASE_LABEL
from bireme.core.manifests import Manifest
from bireme.plan.topology import Plan
from bireme.plan.workloads import KINDS, pod_templates, trace

Maker = tuple[str, str]
"""Kind and name of an object."""
_NOBODY: Maker = ("", "")


class Owners:
    """Finds what belongs to the release of ``plan``, by owner references.

    Makers are remembered, so that what they made is known after they are gone.
    """

    def __init__(self, api: Api, plan: Plan) -> None:
        self._api = api
        self._plan = plan
        # A StatefulSet does not own its claims.
        known = ((each, KINDS[each.kind]) for each in plan.objects if each.kind in KINDS)
        claims = {("PersistentVolumeClaim", name) for item, kind in known for name in kind.claims(item)}
        self._roots = {(each.kind, each.name) for each in plan.objects} | claims
        self._known: dict[str, Mapping[str, Any] | None] = {}

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces of the release's objects, its own first."""
        found = (each.namespace for each in self._plan.objects)
        return tuple(dict.fromkeys([self._plan.namespace, *filter(None, found)]))

    @property
    def pod_query(self) -> dict[str, str]:
        """A query that finds all pods of the release, and few others: their label where all have one."""
        release = self._plan.release
        all_have_it = all(_has_label(each, release) for each in self._plan.objects)
        return {"labelSelector": f"{RELEASE_LABEL}={release}"} if all_have_it else {}

    def maker(self, kind: str, thing: Mapping[str, Any]) -> Maker | None:
        """The release's object that made ``thing`` of ``kind``, or is it; None where none did.

        What nobody there has made is of the release by its label, and has its last known maker. Raises
        ApiError.
        """
        meta = thing["metadata"]
        if HOOK_ANNOTATION in (meta.get("annotations") or {}):
            return None
        if (kind, meta["name"]) in self._roots:
            return kind, meta["name"]
        # Labels tell of the makers of some pods, also when these are gone.
        first = trace(thing)[:2] if kind == "Pod" else _NOBODY
        if first in self._roots:
            return first
        owner = _owner(meta)
        while owner:
            key = owner["kind"], owner["name"]
            if key in self._roots:
                return key
            first = key if first == _NOBODY else first
            found = self._metadata(owner, str(meta.get("namespace") or self._plan.namespace))
            owner = _owner(found or {})
            if found and not owner:
                return None
        label = (meta.get("labels") or {}).get(RELEASE_LABEL)
        return first if label == self._plan.release else None

    def _metadata(self, owner: Mapping[str, str], namespace: str) -> Mapping[str, Any] | None:
        """Metadata of an owner; None for one that is gone or that may not be read."""
        uid = owner.get("uid", "")
        if uid not in self._known:
            self._known[uid] = None
            served = _resources(self._api, owner.get("apiVersion", ""), namespace)
            path = next((path for path, each in served if each["kind"] == owner["kind"]), None)
            items = self._api.items(path, unless=(403, 404)) if path else []
            self._known |= {each["metadata"]["uid"]: each["metadata"] for each in items}
        return self._known[uid]


def paths_of(api: Api, plural: str, namespace: str) -> dict[str, str]:
    """The paths of all kinds of this plural (or ``plural.group``), by kind. Raises BiremeError for none."""
    name, _, group = plural.partition(".")
    groups = api.get("/apis")["groups"]
    versions = ["v1", *(each["preferredVersion"]["groupVersion"] for each in groups)]
    found = {
        each["kind"]: path
        for version in versions
        if not group or version.startswith(f"{group}/")
        for path, each in _resources(api, version, namespace)
        if each["name"] == name
    }
    if not found:
        raise BiremeError(f"the cluster has no {plural}: kubectl api-resources lists what it has")
    return found


def _resources(api: Api, api_version: str, namespace: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The kinds of a version with the path of their objects, without subresources."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    try:
        served = api.find(root) if api_version else None
    except ApiError as error:
        # An API of a pod, such as metrics-server's, has no answer before the pod is ready.
        if error.status != 503:
            raise
        served = None
    for each in (served or {}).get("resources", ()):
        if "/" not in each["name"]:
            inside = f"/namespaces/{namespace}" if each["namespaced"] else ""
            yield f"{root}{inside}/{each['name']}", each


def _owner(meta: Mapping[str, Any]) -> Mapping[str, str] | None:
    owners = meta.get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller")), owners[0] if owners else None)


def _has_label(item: Manifest, release: str) -> bool:
    """Whether all pods that come from an object are known to have the label of the release."""
    templates = pod_templates(item)
    if templates or item.kind in KINDS:
        labels = ((each.get("metadata") or {}).get("labels") or {} for each in templates)
        return bool(templates) and all(each.get(RELEASE_LABEL) == release for each in labels)
    # Objects of kinds that the cluster was taught may make anything.
    return "." not in item.group or item.group.endswith(".k8s.io")
