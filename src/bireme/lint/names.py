"""Names and labels that Kubernetes, or the pods made from an object, would not accept."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.plan.workloads import kind_of, pod_templates

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_RBAC_NAME = re.compile(r"[^/%]+")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_RBAC_KINDS = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def name_problems(manifest: Manifest) -> list[Finding]:
    """What Kubernetes, or the pods made from the object, would not accept in its names and labels."""
    problems = [*_object_name(manifest), *_label_values(manifest)]
    return [Finding("names", why, path=manifest.identity) for why in problems]


def _object_name(manifest: Manifest) -> Iterator[str]:
    name, workload = manifest.name, kind_of(manifest)
    if manifest.kind in _RBAC_KINDS:
        pattern, limit = _RBAC_NAME, 253
    elif manifest.kind == "Service":
        pattern, limit = _SERVICE_NAME, 63
    elif workload or manifest.kind == "Namespace":
        pattern, limit = _LABEL, 63
    else:
        pattern, limit = _SUBDOMAIN, 253
    if not pattern.fullmatch(name):
        yield f"the name {name!r} may only hold lower-case letters, digits and '-', as a DNS name does"
    problem = workload.name_problem(manifest) if workload else None
    if problem:
        yield problem
    elif not workload and len(name) > limit:
        yield f"the name has {len(name)} characters, {limit} is the most"


def _label_values(manifest: Manifest) -> Iterator[str]:
    templates = [each for each in pod_templates(manifest) if each is not manifest]
    of_pods = [("pod label", (each.get("metadata") or {}).get("labels") or {}) for each in templates]
    for where, labels in [("label", manifest.labels), *of_pods]:
        for key, value in labels.items():
            if not isinstance(value, str):
                yield f"{where} {key} is {value!r}, it must be a string"
            elif len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
                yield f"{where} {key}={value!r} must be at most 63 letters, digits, '-', '_' or '.'"
