"""Objects of Flux as tests make, change and await them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bireme.clusters.base import Cluster
from tests.support.waiting import until

_PLURALS = {
    "GitRepository": "gitrepositories",
    "HelmRelease": "helmreleases",
    "Kustomization": "kustomizations",
    "OCIRepository": "ocirepositories",
}
Object = dict[str, Any]


def path_of(kind: str, version: str, name: str = "") -> str:
    """Where the API server has the objects of a kind of Flux, or one of them, in the namespace default."""
    return f"/apis/{version}/namespaces/default/{_PLURALS[kind]}/{name}".rstrip("/")


@dataclass
class Flux:
    """Flux at work for a cluster; what tests apply is removed by `clear`."""

    cluster: Cluster
    paths: list[str] = field(default_factory=list)

    def apply(self, item: Mapping[str, Any]) -> str:
        """Create an object; returns its path."""
        kind, version, name = item["kind"], item["apiVersion"], item["metadata"]["name"]
        self.cluster.api.create(path_of(kind, version), item)
        self.paths.append(path_of(kind, version, name))
        return self.paths[-1]

    def change(self, path: str, **spec: Any) -> None:
        """Merge these fields into the spec of an object."""
        self.cluster.api.patch(path, {"spec": spec})

    def ready(self, path: str) -> Object:
        """The status of an object once Flux has done what its spec says."""
        return self._settled(path, "True")

    def refused(self, path: str) -> str:
        """What Flux says once it could not do what the spec says."""
        return str(_condition(self._settled(path, "False"), "Ready")["message"])

    def sync(self, path: str) -> Object:
        """The status of an object after Flux was asked to look at it again."""
        asked = uuid.uuid4().hex
        annotations = {"reconcile.fluxcd.io/requestedAt": asked}
        self.cluster.api.patch(path, {"metadata": {"annotations": annotations}})
        until(
            lambda: self._status(path).get("lastHandledReconcileAt") == asked,
            what=lambda: f"{path} to be looked at again: {self._status(path)}",
        )
        return self.ready(path)

    def remove(self, path: str) -> None:
        """Delete an object; returns when Flux has removed what it had made for it."""
        self.cluster.api.delete(path)
        until(lambda: self.cluster.api.find(path) is None, what=lambda: f"{path} to go")
        self.paths.remove(path)

    def clear(self) -> None:
        for path in reversed(list(self.paths)):
            self.remove(path)

    def _status(self, path: str) -> Object:
        return dict(self.cluster.api.get(path).get("status", {}))

    def _settled(self, path: str, wanted: str) -> Object:
        def is_settled() -> bool:
            found = self.cluster.api.find(path) or {"metadata": {}}
            status = found.get("status", {})
            condition = _condition(status, "Ready")
            # The status as a whole follows the spec only once that is done.
            seen = status if wanted == "True" else condition
            return (
                condition.get("status") == wanted
                and seen.get("observedGeneration") == found["metadata"].get("generation")
                and (wanted == "False" or not _condition(status, "Reconciling"))
            )

        until(is_settled, what=lambda: f"{path} to be Ready={wanted}: {self.cluster.api.find(path)}")
        return self._status(path)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})
