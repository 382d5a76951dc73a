"""What a pod template says, part by part, under keys by which two templates compare."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bireme.adopt.tables import table
from bireme.audit.documents import Place, mappings
from bireme.core.manifests import within
from bireme.core.quantities import ACCELERATORS
from bireme.helm.values import image_values


@dataclass(frozen=True)
class Part:
    """One thing that an object says at ``place``, such as a variable or a mount.

    Its ``key`` is the same in any template that says it: the container that trains is ``container``, and
    items of lists go by their names. What is written is ``given``, what compares is ``value``.
    """

    place: Place
    key: str
    given: Any
    value: Any


def leaves(value: Any, place: Place = ()) -> Iterator[Part]:
    """The scalars below ``value``, and mappings and lists without any."""
    if not value or not isinstance(value, Mapping | list):
        yield Part(place, ".".join(map(str, place)), value, value)
    else:
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(each, (*place, key))


def parts_of(template: Mapping[str, Any]) -> list[Part]:
    """The parts of a pod template, which hold all its leaves."""
    containers = enumerate(mappings(within(template, "spec").get("containers")))
    asking = [at for at, each in containers if {*within(each, "resources", "limits")} & {*ACCELERATORS}]
    main = ("spec", "containers", (asking or [0])[0])
    volumes = {each.get("name"): each for each in mappings(within(template, "spec").get("volumes"))}

    def walk(value: Any, place: Place, key: str) -> Iterator[Part]:
        key = "container" if place == main else f"{key}Name" if key == "spec.serviceAccount" else key
        if value and isinstance(value, Mapping) and re.fullmatch(table("mappings"), key):
            for name, each in value.items():
                yield from walk(each, (*place, name), f"{key}.{name}".lstrip("."))
        elif value and isinstance(value, list) and key in table("lists"):
            for at, each in enumerate(value):
                name = each.get(table("lists")[key]) or json.dumps(each, sort_keys=True)
                yield from walk(each, (*place, at), f"{key}.{name}")
        else:
            yield Part(place, key, value, compared(key, value))

    def compared(key: str, value: Any) -> Any:
        if key == "container.image":
            return image_values(str(value)) or value
        if key.startswith("container.ports."):
            return value.get("protocol", "TCP")
        if key.startswith("container.env."):
            return value.get("valueFrom") or str(value.get("value") or "")
        if not isinstance(value, Mapping):
            return value
        if key.startswith("container.volumeMounts."):
            return mount(value)
        unnamed = {name: each for name, each in value.items() if name not in ("name", "volumeMounts")}
        return {**unnamed, "mounts": [mount(each) for each in mappings(value.get("volumeMounts"))]}

    def mount(value: Mapping[str, Any]) -> Any:
        """A mount with what its volume is, in place of the volume's name."""
        volume = volumes.get(value.get("name"), {})
        claim = within(volume, "persistentVolumeClaim")
        is_read_only = bool(claim.get("readOnly") or value.get("readOnly"))
        source = {"persistentVolumeClaim": claim.get("claimName")} if claim else volume
        return {**source, **value, "name": "", "readOnly": is_read_only}

    found = [*walk(template, (), "")]
    shared = [f"spec.volumes.{each.given.get('name')}" for each in found if each.key.endswith("./dev/shm")]
    return [replace(each, key="spec.volumes./dev/shm") if each.key in shared else each for each in found]
