"""Names and labels that Kubernetes, or the pods made from an object, would not accept."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.manifests import Manifest

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_RBAC_NAME = re.compile(r"[^/%]+")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LONG_NAMES = {
    "ConfigMap",
    "CustomResourceDefinition",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Secret",
    "ServiceAccount",
    "StorageClass",
}
_LIMITS = {"StatefulSet": 52, "CronJob": 52}
_WHY = {
    "StatefulSet": "its controller adds an 11-character revision hash",
    "CronJob": "its controller adds 11 characters of time",
}


def name_problems(manifest: Manifest) -> list[str]:
    """What Kubernetes, or the pods made from the object, would not accept in its names and labels."""
    return [f"{manifest.identity}: {why}" for why in [*_object_name(manifest), *_label_values(manifest)]]


def _object_name(manifest: Manifest) -> Iterator[str]:
    name, kind = manifest.name, manifest.kind
    if kind in {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}:
        pattern, limit = _RBAC_NAME, 253
    elif kind == "Service":
        pattern, limit = _SERVICE_NAME, 63
    elif kind in _LONG_NAMES:
        pattern, limit = _SUBDOMAIN, 253
    else:
        pattern, limit = _LABEL, _LIMITS.get(kind, 63)
    if not pattern.fullmatch(name):
        yield f"the name {name!r} may only hold lower-case letters, digits and '-', as a DNS name does"
    if kind == "Job":
        suffix = _job_suffix(manifest)
        if len(name) + suffix > 63:
            yield f"pod names would have {len(name) + suffix} characters with their index, 63 is the most"
    elif kind == "MPIJob":
        suffix = _mpi_suffix(manifest)
        if len(name) + suffix > 63:
            yield f"host names would have {len(name) + suffix} characters with role and index, 63 is the most"
    elif len(name) > limit:
        why = f" ({_WHY[kind]})" if kind in _WHY else ""
        yield f"the name has {len(name)} characters, {limit} is the most{why}"


def _job_suffix(manifest: Manifest) -> int:
    """Characters a Job adds for the host names of its pods: ``-<index>`` when it is Indexed."""
    spec = manifest.get("spec") or {}
    if spec.get("completionMode") != "Indexed":
        return 0
    return 1 + len(str(max(0, int(spec.get("completions") or 1) - 1)))


def _mpi_suffix(manifest: Manifest) -> int:
    """Characters mpi-operator adds for host names: ``-launcher``, or ``-worker-<index>``."""
    replicas = (manifest.get("spec") or {}).get("mpiReplicaSpecs") or {}
    worker = replicas.get("Worker") or {}
    last = max(0, int(worker.get("replicas", 1)) - 1)
    return max(len("-launcher"), len(f"-worker-{last}"))


def _label_values(manifest: Manifest) -> Iterator[str]:
    templates = manifest.pod_templates if manifest.kind != "Pod" else ()
    of_pods = [("pod label", (each.get("metadata") or {}).get("labels") or {}) for each in templates]
    for where, labels in [("label", manifest.labels), *of_pods]:
        for key, value in labels.items():
            if not isinstance(value, str):
                yield f"{where} {key} is {value!r}, it must be a string"
            elif len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
                yield f"{where} {key}={value!r} must be at most 63 letters, digits, '-', '_' or '.'"
