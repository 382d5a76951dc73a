"""The values of a pod template: what the rows of its parts say, and what several parts say together."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from bireme.adopt.parts import Part, parts_of
from bireme.adopt.tables import Row, row_of, table
from bireme.core.labels import INSTANCE_TYPE_LABEL
from bireme.core.manifests import within
from bireme.core.quantities import ACCELERATORS, EFA, HUGE_PAGES
from bireme.helm.values import image_values
from bireme.helm.yaml import Values, merge
from bireme.plan.instances import Instance

_DEVICES = (*ACCELERATORS[:2], EFA, HUGE_PAGES)


def put(values: Values, path: str, given: Any) -> None:
    """Set the value at ``path``, as in ``pod.shm.size``."""
    *way, last = path.split(".")
    for key in way:
        values = values.setdefault(key, {})
    values[last] = given


def at(values: Mapping[str, Any], path: str) -> Any:
    """The value at ``path``, None where there is none."""
    *way, last = path.split(".")
    return within(values, *way).get(last)


def carry(values: Values, row: Row | None, part: Part) -> None:
    """Put what ``part`` gives where ``row`` says."""
    if row is None or not row.value or row.how == "seen":
        return
    is_plain = row.how == "set" and part.key.startswith("container.env.")
    path, given, there = row.value, part.value if is_plain else part.given, at(values, row.value)
    match row.how:
        case "env" if within(given).get("valueFrom"):
            path, given = "pod.extraEnv", [*(at(values, "pod.extraEnv") or []), given]
        case "env":
            given = {**(there or {}), row.name_in(part.key): str(within(given).get("value") or "")}
        case "map":
            given = {**(there or {}), row.name_in(part.key): given}
        case "list" | "name":
            given = [*(there or []), row.name_in(part.key) if row.how == "name" else copy.deepcopy(given)]
        case "whole":
            given = int(part.value) if str(part.value).isdigit() else None
    if given is not None:
        put(values, path, given)
        values |= merge(values, copy.deepcopy(dict(row.also)))


def pod_values(
    parts: Sequence[Part], defaults: Mapping[str, Any], instances: Mapping[str, Instance]
) -> Values:
    """The values of pods, over the ``defaults`` of the chart."""
    values: Values = {}
    for part in parts:
        carry(values, row_of(part.key), part)
    given = {part.key: part.given for part in parts}
    type_ = str(at(values, "instance.type") or "")
    if type_ and type_ not in instances:
        # Another cloud's: nothing follows from it.
        del values["instance"]
        values.setdefault("nodeSelector", {})[INSTANCE_TYPE_LABEL] = type_
    image, policy = image_values(str(given.get("container.image"))), given.get("container.imagePullPolicy")
    if image and "tag" not in image and not image["digest"]:
        image["tag"] = "latest"
    # Kubernetes pulls `latest` always, unless the manifest says otherwise.
    policy = "Always" if image.get("tag") == "latest" else policy
    values["image"] = (image or {"repository": ""}) | ({"pullPolicy": policy} if policy else {})
    for key in ("podSecurityContext", "securityContext"):
        # The image's user and Kubernetes' rights where it names none. A profile of seccomp stays.
        default = {name: each for name, each in within(defaults, key).items() if name != "seccompProfile"}
        values[key] = exactly(default, values.get(key) or {})
    _volumes(values, given)
    _resources(values, instances.get(type_))
    return values


def exactly(default: Any, wanted: Mapping[str, Any]) -> Values:
    """The values that make ``default`` into ``wanted``: keys that are not wanted get null."""
    known = within({"": default}, "")
    return {key: None for key in known if key not in wanted} | {
        key: exactly(known.get(key), each) if isinstance(each, Mapping) else each
        for key, each in wanted.items()
    }


def _volumes(values: Values, given: Mapping[str, Any]) -> None:
    """Claims, /dev/shm, and all other volumes, under names that the chart leaves free."""
    volumes = {str(each.get("name")): each for key, each in given.items() if key.startswith("spec.volumes.")}
    names: dict[str, str] = {}
    further: dict[str, Values] = {}

    def renamed(mount: Mapping[str, Any]) -> Values:
        name = str(mount.get("name"))
        if name not in names and name in volumes:
            names[name] = f"own-{name}" if name in table("taken") or name.startswith("claim-") else name
            further[name] = {**volumes[name], "name": names[name]}
        return {**mount, "name": names.get(name, name)}

    claims: list[Values] = []
    mounts: list[Values] = []
    for mount in (each for key, each in given.items() if key.startswith("container.volumeMounts.")):
        volume = volumes.get(str(mount.get("name")), {})
        claim = within(volume, "persistentVolumeClaim")
        if mount.get("mountPath") == "/dev/shm":
            if size := within(volume, "emptyDir").get("sizeLimit"):
                put(values, "pod.shm.size", str(size))
        elif claim and not {*mount} - {"name", "mountPath", "subPath", "readOnly"}:
            own = {key: mount[key] for key in ("mountPath", "subPath") if mount.get(key)}
            if claim.get("readOnly") or mount.get("readOnly"):
                own["readOnly"] = True
            claims.append({"claimName": claim.get("claimName"), **own})
            order = list(dict.fromkeys(each["claimName"] for each in claims))
            names[str(mount.get("name"))] = f"claim-{order.index(claim.get('claimName'))}"
        elif volume and not str(mount.get("mountPath")).startswith("/bireme/"):
            mounts.append(renamed(mount))
    for container in (
        each for key in ("initContainers", "sidecars") for each in at(values, f"pod.{key}") or ()
    ):
        for mount in container.get("volumeMounts") or ():
            mount |= renamed(mount)
    values["claims"] = claims
    put(values, "pod.extraVolumes", list(further.values()))
    put(values, "pod.extraVolumeMounts", mounts)


def _resources(values: Values, instance: Instance | None) -> None:
    """Accelerators, EFA and huge pages under keys of their own, where the type does not say the same."""
    own = values.setdefault("resources", {})
    limits, requests = own.get("limits") or {}, own.get("requests") or {}
    if "cpu" in limits:
        # Kubernetes takes a limit for the request that is not there; the chart has one of its own.
        own["requests"] = requests = {"cpu": limits["cpu"], **requests}
    asked = {name: str(amount) for name, amount in {**requests, **limits}.items()}
    device = next((each for each in ACCELERATORS[:2] if asked.get(each, "").isdigit()), "")
    count = int(asked.get(device, 0))
    if count != (instance.accelerator.count if instance else 0):
        values["accelerators"] = count
    if device == ACCELERATORS[1] and not instance:
        put(values, "instance.accelerator.resource", device)
    if asked.get(EFA, "").isdigit() and not (instance and instance.efa == int(asked[EFA])):
        values["efa"] = int(asked[EFA])
    if HUGE_PAGES in asked:
        put(values, "pod.hugePages", asked[HUGE_PAGES])
    for side in (limits, requests):
        for name in {*_DEVICES} & {*side}:
            del side[name]


def side_values(
    name: str, template: Mapping[str, Any], workers: Values, defaults: Mapping[str, Any]
) -> Values:
    """What pods of another role, one of fields.yaml, have beside the values of ``workers`` or instead."""
    role = table(name)
    flat, theirs = (
        pruned({**each, **within(each, "pod")})
        for each in (pod_values(parts_of(template), defaults, {}), workers)
    )
    differing = [key for key in role["over"] if flat.get(key) != theirs.get(key)]
    kept: Values = {key: flat[key] for key in (*role["own"], *differing) if key in flat}
    # What only the workers have is taken away: Multus skips an empty annotation.
    for key, gone in (("podAnnotations", ""), ("securityContext", None)):
        if key in differing:
            kept[key] = dict.fromkeys(theirs.get(key) or (), gone) | (flat.get(key) or {})
    if "resources" in kept:
        kept["resources"] = exactly(at(defaults, f"{role['at']}.resources"), kept["resources"])
    return kept


def pruned(values: Any) -> Any:
    """Values without the empty ones, which are the chart's defaults."""
    if not isinstance(values, Mapping):
        return values
    found = {key: pruned(each) for key, each in values.items()}
    return {key: each for key, each in found.items() if each not in ({}, [])}


def accelerators_of(parts: Sequence[Part]) -> int:
    """The accelerators that the container that trains asks for."""
    names = {f"container.resources.{side}.{name}" for side in ("limits", "requests") for name in ACCELERATORS}
    return max(
        (int(each.given) for each in parts if each.key in names and str(each.given).isdigit()), default=0
    )
