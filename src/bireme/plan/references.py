"""What objects name or select and nothing has: a Secret that is nowhere, a Service without pods."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.plan.workloads import pod_templates
from bireme.plan.workloads.model import spec_of

# Fields with the name of an object, by its kind. A scale target has the kind beside the name.
_NAMING = {
    **dict.fromkeys(("configMap", "configMapRef", "configMapKeyRef"), "ConfigMap"),
    **dict.fromkeys(("secret", "secretRef", "secretKeyRef", "imagePullSecrets"), "Secret"),
    **{"persistentVolumeClaim": "PersistentVolumeClaim", "service": "Service", "scaleTargetRef": ""},
}
_BY_CONTROLLERS = ("apps.kubernetes.io/", "batch.kubernetes.io/", "statefulset.kubernetes.io/")


def dangling(manifests: Sequence[Manifest], has: Callable[[str, str], bool]) -> Iterator[Finding]:
    """What the objects refer to, without being optional, that is neither among them nor elsewhere.

    ``has``: whether an object of a kind and a name is elsewhere; with ``Pod``, one with labels a=b,c=d.
    """
    own = {(each.kind, each.name) for each in manifests}
    pods = [Manifest(each) for item in manifests for each in pod_templates(item)]
    # What the spec of a hook or of a custom resource names, its controller may make.
    makers = [spec_of(each) for each in manifests if _is_maker(each)]
    made = set(re.findall(r"[\w.-]+", str(makers)))
    for item in manifests:
        names = sorted({each for each in _named(item) if each not in own and each[1] not in made})
        said = [f"there is no {kind} {name}, which it names" for kind, name in names if not has(kind, name)]
        if item.kind == "Service":
            # An operator may make the pods.
            said += _unserved(item, pods, lambda labels: bool(made) or has("Pod", labels))
        for each in said:
            yield Finding("references", each, "correct the name, or make it first", path=item.identity)


def _is_maker(item: Manifest) -> bool:
    is_custom = "." in item.group and not item.group.endswith(".k8s.io")
    return "-install" in str(item.annotations) or (is_custom and not pod_templates(item))


def _named(item: Manifest) -> Iterator[tuple[str, str]]:
    is_outer = item.kind in ("HorizontalPodAutoscaler", "Ingress")
    parts = [spec_of(item)] if is_outer else [each.get("spec") for each in pod_templates(item)]
    for key, held in _fields(parts):
        for each in [held] if isinstance(held, Mapping) else held if key == "imagePullSecrets" else ():
            name = each.get("name") or each.get("secretName") or each.get("claimName")
            if name and key in _NAMING and not each.get("optional"):
                yield _NAMING[key] or str(each.get("kind")), str(name)


def _unserved(service: Manifest, pods: Sequence[Manifest], has: Callable[[str], bool]) -> Iterator[str]:
    """What a Service lacks: a pod with its labels, and ports with the names that it gives."""
    labels = spec_of(service).get("selector")
    given = labels.items() if isinstance(labels, Mapping) else ()
    wanted = {key: value for key, value in given if not key.startswith(_BY_CONTROLLERS)}
    found = [each for each in pods if wanted and wanted.items() <= each.labels.items()]
    words = ",".join(f"{key}={value}" for key, value in wanted.items())
    if words and not found and not has(words):
        yield f"no pod has the labels {words}, which it selects"
    names = {each.get("name") for key, held in _fields(found) if key == "ports" for each in held or ()}
    for target in [each.get("targetPort") for each in spec_of(service).get("ports") or ()]:
        if found and isinstance(target, str) and target not in names:
            yield f"its pods have no port {target}"


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """All fields within, however deep."""
    if isinstance(value, Mapping):
        yield from value.items()
        value = tuple(value.values())
    for each in value if isinstance(value, tuple | list) else ():
        yield from _fields(each)
