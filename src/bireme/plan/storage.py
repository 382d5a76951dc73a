"""What a release keeps data on: the claims, volumes and storage classes among its objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bireme.core.manifests import Manifest, read_as_kubernetes, within
from bireme.core.plain import Plain
from bireme.plan.workloads import kind_of
from bireme.plan.workloads.model import spec_of

CLAIM = "PersistentVolumeClaim"
VOLUME = "PersistentVolume"
CLASS = "StorageClass"


@dataclass(frozen=True)
class Storage(Plain):
    """One claim, volume or storage class.

    ``size`` is a quantity, "" for classes; ``storage_class`` that of a claim or volume, "" for none or the
    cluster's own; ``driver`` the CSI driver of a volume or the provisioner of a class.
    """

    optional = ("size", "access_modes", "storage_class", "driver")

    kind: str
    name: str
    size: str = ""
    access_modes: tuple[str, ...] = ()
    storage_class: str = ""
    driver: str = ""


def storage_of(manifest: Manifest) -> Sequence[Storage]:
    """The storage that one object is, or that its claim templates make; nothing for others.

    Raises BiremeError for an object that Kubernetes could not read.
    """
    spec = spec_of(manifest)
    with read_as_kubernetes(manifest):
        if manifest.kind == CLASS:
            return [Storage(CLASS, manifest.name, driver=str(manifest.get("provisioner") or ""))]
        if manifest.kind in (VOLUME, CLAIM):
            return [_sized(manifest.kind, manifest.name, spec)]
        kind = kind_of(manifest)
        claims = kind.claims(manifest) if kind else {}
        return [_sized(CLAIM, name, claim) for name, claim in claims.items()]


def _sized(kind: str, name: str, spec: Mapping[str, Any]) -> Storage:
    sizes = within(spec, "capacity") if kind == VOLUME else within(spec, "resources", "requests")
    modes = tuple(str(mode) for mode in spec.get("accessModes") or ())
    storage_class, driver = spec.get("storageClassName"), within(spec, "csi").get("driver")
    return Storage(
        kind, name, str(sizes.get("storage") or ""), modes, str(storage_class or ""), str(driver or "")
    )
