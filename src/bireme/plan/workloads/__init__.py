"""The kinds of objects that make pods, a file each: every module here may have ``KINDS``."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest, read_as_kubernetes
from bireme.plan.instances import Instance
from bireme.plan.workloads.model import WorkloadKind, WorkloadPlan, controller_of
from bireme.plan.workloads.unknown import UnknownKind


def _all() -> Mapping[str, WorkloadKind]:
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {kind.name: kind for module in modules for kind in getattr(module, "KINDS", ())}


KINDS = _all()
"""Every kind that the harness knows, by its name."""


def kind_of(manifest: Manifest) -> WorkloadKind | None:
    """The kind of an object that makes pods, taught or not; None for objects that make none."""
    known = KINDS.get(manifest.kind)
    if known and manifest.group in ("", known.group):
        return known
    untaught = UnknownKind(manifest)
    return untaught if untaught.makes_pods(manifest) else None


def plan_of(manifest: Manifest, instances: Mapping[str, Instance]) -> WorkloadPlan | None:
    """The pods that an object becomes; None for objects that make none.

    Raises BiremeError for an invalid number, for a name that is too long for those of pods, and for an object
    that Kubernetes could not read.
    """
    kind = kind_of(manifest)
    with read_as_kubernetes(manifest):
        problem = kind.name_problem(manifest) if kind else None
        planned = kind.plan(manifest, instances) if kind else None
    if problem:
        raise BiremeError(f"{manifest.identity[:80]}: {problem}: give the release a shorter name")
    return planned


def trace(pod: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Kind and name of the workload that made a live pod, and the planned pod that it stands for.

    An object between the workload and the pod, such as the Job of an MPIJob, is passed over.
    """
    controller = controller_of(pod)
    claims = {name: owner for name, kind in KINDS.items() if (owner := kind.owner(pod)) is not None}
    behind = [name for name in claims if controller is None or name != controller[0]]
    for name in [*behind, *claims]:
        return name, claims[name], KINDS[name].slot(pod, claims[name])
    return *(controller or ("", "")), None


def pod_templates(manifest: Manifest) -> tuple[Mapping[str, Any], ...]:
    """The {metadata, spec} of all the pods that an object makes; none for objects that make no pods."""
    kind = kind_of(manifest)
    return kind.pod_templates(manifest) if kind else ()


def images_of(manifests: Iterable[Manifest]) -> set[str]:
    """The images of all containers that objects run."""
    specs = [each.get("spec") or {} for manifest in manifests for each in pod_templates(manifest)]
    roles = ("initContainers", "containers")
    return {str(each.get("image")) for spec in specs for role in roles for each in spec.get(role) or ()}
