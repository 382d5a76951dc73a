"""List items that the API server cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.plan.workloads import pod_templates

# The keys by which the API server tells the items of a list apart, as the OpenAPI of Kubernetes has them:
# x-kubernetes-list-map-keys, or the patch merge key of lists that have only that.
_POD_LISTS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "schedulingGates": ("name",),
    "resourceClaims": ("name",),
}
_CONTAINER_LISTS: Mapping[str, tuple[str, ...]] = {
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
}
_DEFAULTS = {"protocol": "TCP"}


def duplicates(manifest: Manifest) -> list[Finding]:
    """Entries of one list that server-side apply cannot tell apart."""
    found: list[Finding] = []
    for template in pod_templates(manifest):
        pod = template.get("spec") or {}
        found += _repeated("pod", pod, _POD_LISTS)
        for container in [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]:
            found += _repeated(f"container {container.get('name')}", container, _CONTAINER_LISTS)
    spec = manifest.get("spec")
    if manifest.kind == "Service" and isinstance(spec, Mapping):
        found += _repeated("service", spec, {"ports": ("port", "protocol")})
        found += _same_names(spec.get("ports") or ())
    if isinstance(spec, Mapping) and "volumeClaimTemplates" in spec:
        claims = [claim.get("metadata") or {} for claim in spec.get("volumeClaimTemplates") or ()]
        found += _repeated("spec", {"volumeClaimTemplates": claims}, {"volumeClaimTemplates": ("name",)})
    return [replace(each, path=manifest.identity) for each in found]


def _repeated(
    where: str, holder: Mapping[str, Any], lists: Mapping[str, tuple[str, ...]]
) -> Iterator[Finding]:
    for name, keys in lists.items():
        seen: set[tuple[Any, ...]] = set()
        for item in holder.get(name) or ():
            identity = tuple(item.get(key, _DEFAULTS.get(key)) for key in keys)
            if identity in seen:
                pair = ", ".join(f"{key} {value}" for key, value in zip(keys, identity, strict=True))
                sentence = f"two entries in {name} of {where} have {pair}"
                yield Finding("duplicates", sentence, "keep one")
            seen.add(identity)


def _same_names(ports: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    names = [port.get("name") for port in ports]
    for name in sorted({str(name) for name in names if name and names.count(name) > 1}):
        yield Finding("duplicates", f"two ports are named {name}", "rename one")
