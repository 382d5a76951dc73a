"""What a release keeps data on: the claims, volumes and storage classes among its objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.core.manifests import Manifest, within
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


def storage_of(manifest: Manifest) -> Iterator[Storage]:
    """The storage that one object is, or that its claim templates make; nothing for others."""
    spec = spec_of(manifest)
    if manifest.kind == CLASS:
        yield Storage(CLASS, manifest.name, driver=str(manifest.get("provisioner") or ""))
    elif manifest.kind == VOLUME:
        driver = str(within(spec, "csi").get("driver") or "")
        yield _sized(VOLUME, manifest.name, spec, within(spec, "capacity"), driver)
    elif manifest.kind == CLAIM:
        yield _claim(manifest.name, spec)
    else:
        kind = kind_of(manifest)
        for name, claim in kind.claims(manifest).items() if kind else ():
            yield _claim(name, claim)


def _claim(name: str, spec: Mapping[str, Any]) -> Storage:
    return _sized(CLAIM, name, spec, within(spec, "resources", "requests"))


def _sized(
    kind: str, name: str, spec: Mapping[str, Any], sizes: Mapping[str, Any], driver: str = ""
) -> Storage:
    modes = tuple(str(mode) for mode in spec.get("accessModes") or ())
    storage_class = str(spec.get("storageClassName") or "")
    return Storage(kind, name, str(sizes.get("storage") or ""), modes, storage_class, driver)
