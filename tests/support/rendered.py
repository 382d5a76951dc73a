"""Finding things in what a chart renders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bireme.core.manifests import Manifest
from bireme.helm import Render
from bireme.plan.topology import Plan

RenderChart = Callable[..., Render]
"""The fixture `render`."""
PlanChart = Callable[..., Plan]
"""The fixture `plan`."""


def the(rendered: Render, kind: str, name: str = "") -> Manifest:
    """The one object of ``kind`` that is not a hook.

    ``name`` is its name, or what its name ends with when it begins with a dash; empty for any name.
    """
    objects = [each for each in rendered.manifests if each.kind == kind and not each.is_hook]
    found = [each for each in objects if _is_called(each, name)]
    assert len(found) == 1, [each.identity for each in rendered.manifests]
    return found[0]


def _is_called(manifest: Manifest, name: str) -> bool:
    return manifest.name.endswith(name) if name.startswith("-") else name in ("", manifest.name)


def container_of(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The container, or init container, called ``name`` of a pod's specification."""
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    (found,) = [each for each in containers if each["name"] == name]
    assert isinstance(found, Mapping)
    return found


def environment_of(container: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables that a container is given as plain values."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def job_of(rendered: Render) -> Any:
    """The Job or MPIJob that trains, as plain data."""
    jobs = [each.thaw() for each in rendered.manifests if each.kind in ("Job", "MPIJob") and not each.is_hook]
    (found,) = [each for each in jobs if "trainer" in [one["name"] for one in _pod(each)["containers"]]]
    return found


def pod_of(rendered: Render) -> Any:
    """The specification of the pods that train. Of an MPIJob these are the workers."""
    return _pod(job_of(rendered))


def trainer_of(rendered: Render) -> Any:
    """The container that trains."""
    return container_of(pod_of(rendered), "trainer")


def _pod(job: Any) -> Any:
    return job["spec"].get("mpiReplicaSpecs", {}).get("Worker", job["spec"])["template"]["spec"]
