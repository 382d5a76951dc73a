"""List items that the API server cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.plan.workloads import pod_templates
from bireme.plan.workloads.model import spec_of

# The keys by which the API server tells the items of a list apart, as the OpenAPI of Kubernetes has them:
# x-kubernetes-list-map-keys, or the patch merge key of lists that have only that.
_KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("containers", "initContainers", "ephemeralContainers", "volumes"), ("name",)),
    **dict.fromkeys(("imagePullSecrets", "schedulingGates", "resourceClaims", "env"), ("name",)),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "volumeClaimTemplates": ("name",),
}
_DEFAULTS = {"protocol": "TCP"}


def duplicates(manifest: Manifest) -> Iterator[Finding]:
    """Entries of one list that server-side apply cannot tell apart."""
    for template in pod_templates(manifest):
        pod = template.get("spec") or {}
        yield from _repeated("pod", pod)
        for container in [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]:
            yield from _repeated(f"container {container.get('name')}", container)
    spec = spec_of(manifest)
    if manifest.kind == "Service":
        yield from _repeated("service", spec, {"ports": ("port", "protocol")})
        yield from _same_names(spec.get("ports") or ())
    claims = [claim.get("metadata") or {} for claim in spec.get("volumeClaimTemplates") or ()]
    yield from _repeated("spec", {"volumeClaimTemplates": claims})


def _repeated(
    where: str, holder: Mapping[str, Any], lists: Mapping[str, tuple[str, ...]] = _KEYS
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
