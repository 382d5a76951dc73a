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
    **{"persistentVolumeClaim": "PersistentVolumeClaim", "service": "Service", "serviceName": "Service"},
    **{"serviceAccountName": "ServiceAccount", "scaleTargetRef": "", "roleRef": "", "subjects": ""},
}
# Fields beside the pods of an object that name others.
_OUTER = ("roleRef", "subjects", "serviceName")
_BY_CONTROLLERS = ("apps.kubernetes.io/", "batch.kubernetes.io/", "statefulset.kubernetes.io/")


def dangling(manifests: Sequence[Manifest], has: Callable[[str, str], bool]) -> Iterator[Finding]:
    """What the objects refer to, without being optional, that is neither among them nor elsewhere.

    ``has``: whether an object of a kind and a name is elsewhere; with ``Pod``, one with labels a=b,c=d.
    """
    own = {(each.kind, each.name) for each in manifests}
    pods = [Manifest(each) for item in manifests for each in pod_templates(item)]
    # What the spec of a hook or of a custom resource names, its controller may make.
    makers = [each for each in manifests if _is_maker(each)]
    made = set(re.findall(r"[\w.-]+", str([spec_of(each) for each in makers])))
    marks = made | {each.name for each in makers}
    for item in manifests:
        names = sorted({each for each in _named(item) if each not in own and each[1] not in made})
        said = [f"there is no {kind} {name}, which it names" for kind, name in names if not has(kind, name)]
        # An operator may make the pods, and labels them with a name that it was given.
        said += _unserved(
            item,
            pods,
            lambda given: not marks.isdisjoint(map(str, given.values())) or has("Pod", _joined(given)),
        )
        said += _unmounted(item)
        for each in said:
            yield Finding("references", each, "correct the name, or make it first", path=item.identity)


def _is_custom(item: Manifest) -> bool:
    return "." in item.group and not item.group.endswith(".k8s.io")


def _is_maker(item: Manifest) -> bool:
    return "-install" in str(item.annotations) or (_is_custom(item) and not pod_templates(item))


def _named(item: Manifest) -> Iterator[tuple[str, str]]:
    is_outer = item.kind in ("HorizontalPodAutoscaler", "Ingress")
    parts = [spec_of(item)] if is_outer else [each.get("spec") for each in pod_templates(item)]
    parts.append({key: item.get(key) or spec_of(item).get(key) for key in _OUTER})
    for key, held in _fields(parts):
        if key not in _NAMING:
            continue
        held = {"name": held} if isinstance(held, str) else held
        several = held if isinstance(held, tuple | list) else (held,)
        for each in filter(lambda each: isinstance(each, Mapping), several):
            name = each.get("name") or each.get("secretName") or each.get("claimName")
            kind = _NAMING[key] or str(each.get("kind"))
            if name and not each.get("optional") and kind not in ("User", "Group"):
                yield kind, str(name)


def _joined(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _unserved(
    item: Manifest, pods: Sequence[Manifest], has: Callable[[Mapping[str, str]], bool]
) -> Iterator[str]:
    """What a Service or the like lacks: a pod with its labels, and ports with the names that it gives."""
    key = {"Service": "selector", "NetworkPolicy": "podSelector", "PodDisruptionBudget": "selector"}
    labels = spec_of(item).get(key.get(item.kind, ""))
    labels = (
        labels if item.kind == "Service" or not isinstance(labels, Mapping) else labels.get("matchLabels")
    )
    given = labels.items() if isinstance(labels, Mapping) else ()
    wanted = {key: value for key, value in given if not key.startswith(_BY_CONTROLLERS)}
    found = [each for each in pods if wanted and wanted.items() <= each.labels.items()]
    if wanted and not found and not has(wanted):
        yield f"no pod has the labels {_joined(wanted)}, which it selects"
    names = {each.get("name") for key, held in _fields(found) if key == "ports" for each in held or ()}
    for target in [each.get("targetPort") for each in spec_of(item).get("ports") or ()]:
        if found and isinstance(target, str) and target not in names:
            yield f"its pods have no port {target}"


def _unmounted(item: Manifest) -> Iterator[str]:
    """The volumes that containers mount and their pods do not have. An operator may add its own."""
    claims = spec_of(item).get("volumeClaimTemplates") or ()
    for template in () if _is_custom(item) else pod_templates(item):
        spec = template.get("spec") or {}
        there = {each.get("name") for each in spec.get("volumes") or ()}
        there |= {(each.get("metadata") or {}).get("name") for each in claims}
        mounts = [each for key, held in _fields([spec]) if key == "volumeMounts" for each in held or ()]
        lost = {str(each["name"]) for each in mounts if each.get("name")} - there
        yield from (f"there is no volume {name}, which it mounts" for name in sorted(lost))


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """All fields within, however deep."""
    if isinstance(value, Mapping):
        yield from value.items()
        value = tuple(value.values())
    for each in value if isinstance(value, tuple | list) else ():
        yield from _fields(each)
