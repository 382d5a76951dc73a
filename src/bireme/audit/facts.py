"""What the rules look at: objects as they are written, with facts that are computed once.

A condition that needs what the files do not tell, such as a count that is a placeholder, finds nothing.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bireme.audit.commands import take_apart
from bireme.audit.documents import Document, Place, mappings
from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest, read_as_kubernetes, within
from bireme.core.quantities import ACCELERATORS, EFA, HUGE_PAGES, quantity
from bireme.helm.yaml import doubled_keys
from bireme.plan.instances import Instance, choose_nodes
from bireme.plan.workloads import kind_of

Facts = dict[str, Any]

_UNITS = {"memory": 2**20, HUGE_PAGES: 2**20, "cpu": 0.001}
# Devices that one process drives each.
_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
_NAMES = {EFA: "efa", HUGE_PAGES: "hugePages"} | dict.fromkeys(_GPUS, "gpus")
_AMOUNTS = ("gpus", "efa", "hugePages", "memory", "cpu")


@dataclass(frozen=True)
class Known:
    """What is known: the ``fields`` of places, ``kinds`` of jobs, ``variables``, and instance types."""

    fields: Mapping[str, Sequence[str]]
    kinds: Mapping[str, Sequence[str]]
    variables: Sequence[str]
    instances: Mapping[str, Instance]


@dataclass(frozen=True)
class Scope:
    """What one rule looks at at a time: ``kind`` names it, ``place`` is its field, ``facts`` are its own.

    ``inner`` are the scopes in it: a job in an object, pods in a job, containers in a pod, and so on.
    """

    kind: str
    place: Place
    facts: Facts
    inner: Sequence[Scope] = ()


@dataclass(frozen=True)
class Pods:
    """Pods of one template; ``holder`` is the mapping around it, ``count`` None where nothing tells it."""

    role: str
    place: Place
    template: Mapping[str, Any]
    count: int | None
    holder: Mapping[str, Any]

    @property
    def spec(self) -> Mapping[str, Any]:
        return within(self.template, "spec")


def files_of(documents: Sequence[Document]) -> Facts:
    """What is in files that belong together: specs by kind and name, and the labels and ports of pods."""
    # Only what pods refer to: each condition costs the time to hand all of it over.
    kinds = ("Service", "ConfigMap", "Secret", "PersistentVolumeClaim")
    specs: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
    for each in documents:
        if each.kind in specs:
            specs[each.kind][each.name] = within(each.content, "spec")
    pods = [_ports(pods) for document in documents for pods in pods_of(document)]
    return {**specs, "pods": pods}


def _ports(pods: Pods) -> Facts:
    ports = [port for each in mappings(pods.spec.get("containers")) for port in mappings(each.get("ports"))]
    opened = [port.get(key) for port in ports for key in ("containerPort", "name")]
    return {"labels": within(pods.template, "metadata", "labels"), "ports": opened}


def facts_of(document: Document, known: Known) -> Scope:
    """One object with all that is in it."""
    metadata = within(document.content, "metadata")
    facts: Facts = {
        "kind": document.kind,
        "apiVersion": _text(document.content["apiVersion"]),
        "name": document.name,
        "labels": within(metadata, "labels"),
        "annotations": within(metadata, "annotations"),
        "spec": within(document.content, "spec"),
        "text": json.dumps(document.content),
        "doubledKeys": [f"{key} (line {line})" for key, line, _ in doubled_keys(document.node)],
        "unknown": list(_unknown(document.content, document.kind, known.fields)),
    }
    groups = pods_of(document)
    return Scope("object", (), facts, [_job(document, groups, known)] if groups else [])


def pods_of(document: Document) -> list[Pods]:
    """The pod templates in an object, with their places. A TrainJob's trainer stands for one."""
    spec = within(document.content, "spec")
    if document.kind == "Pod":
        return [Pods("pod", (), document.content, 1, {})]
    if document.kind == "TrainJob":
        trainer = within(spec, "trainer")
        container = {"name": "node", **trainer, "resources": within(trainer, "resourcesPerNode")}
        template, count = {"spec": {"containers": [container]}}, _whole(trainer.get("numNodes", 1))
        return [Pods("node", ("spec", "trainer"), template, count, {})]
    return list(_templates(spec, ("spec",), "pod", 1, {}))


def _templates(
    value: Any, place: Place, role: str, count: int | None, holder: Mapping[str, Any]
) -> Iterator[Pods]:
    if isinstance(value, list):
        for at, item in enumerate(value[:500]):
            own = _text(item.get("name")) if isinstance(item, Mapping) else ""
            yield from _templates(item, (*place, at), own or role, count, value[at])
    elif isinstance(within(value, "spec").get("containers"), list):
        yield Pods(role, place, value, count, holder)
    elif isinstance(value, Mapping):
        for key in ("replicas", "parallelism"):
            factor = _whole(value[key]) if value.get(key) is not None else 1
            count = None if count is None or factor is None else count * factor
        is_roles = _text(place[-1]).lower().endswith("replicaspecs")
        for key, item in value.items():
            # A PaddleJob has its roles beside other fields.
            is_role = is_roles or within(item).keys() >= {"replicas", "template"}
            yield from _templates(item, (*place, key), key if is_role else role, count, value)


def _job(document: Document, groups: Sequence[Pods], known: Known) -> Scope:
    spec, kind = within(document.content, "spec"), document.kind
    counts = [each.count for each in groups if kind != "MPIJob" or each.role != "Launcher"]
    total = None if None in counts else sum(each or 0 for each in counts)
    slots = _whole(spec.get("slotsPerWorker", 1))
    facts: Facts = {
        "injected": kind in known.kinds["injecting"] or "pytorch" in within(spec, "plugins"),
        "hosts": [f"{document.name}-{each.role.lower()}" for each in groups],
        "nameProblem": _name_problem(document),
        **_told(workers=total, slots=slots),
    }
    processes = spec.get("nprocPerNode") or within(spec, "elasticPolicy").get("nProcPerNode")
    default = _whole(processes) if facts["injected"] else 1
    pods = [_pod(each, kind == "TrainJob", default, known) for each in groups]
    containers = [each.facts for pod in pods for each in pod.inner if each.kind == "container"]
    for name in ("gpus", "efa"):
        amounts = [each["requests"].get(name) for each in containers]
        facts |= {} if None in amounts else {name: max(amounts, default=0)}
    facts["launched"] = any(each["launchers"] > 0 for each in containers)
    is_spread = kind in known.kinds["batch"] and (total or 0) > 1 and facts.get("gpus", 0) > 0
    has_python = any(each["program"] == "python" for each in containers)
    facts["trains"] = kind in known.kinds["training"] or facts["launched"] or (is_spread and has_python)
    facts["benchmark"] = any(re.search(r"_perf\b|nccl-tests|osu_", each["text"]) for each in containers)
    facts["pods"] = [each.facts for each in pods]
    for pod in pods:
        alike = [each.get("count") for each in facts["pods"] if each["program"] == pod.facts["program"]]
        pod.facts.update({} if None in alike else {"peers": sum(alike)})
    return Scope("job", (), facts, pods)


def _name_problem(document: Document) -> str:
    manifest = Manifest(document.content)
    try:
        with read_as_kubernetes(manifest):
            kind = kind_of(manifest)
            return (kind.name_problem(manifest) if kind and "$" not in manifest.name else None) or ""
    except BiremeError:
        return ""


def _pod(pods: Pods, is_partial: bool, processes: int | None, known: Known) -> Scope:
    """The facts of pods; those that are partial, as a TrainJob's, get volumes and nodes from elsewhere."""
    place: Place = pods.place if is_partial else (*pods.place, "spec")
    containers = [
        _container(each, place if is_partial else (*place, key, at), processes, known)
        for key in ("containers", "initContainers")
        for at, each in enumerate(mappings(pods.spec.get(key)))
    ]
    running = [each.facts for each in containers if "initContainers" not in each.place]
    mounts = [mount for each in containers for mount in mappings(each.facts["volumeMounts"])]
    volumes = mappings(pods.spec.get("volumes"))
    rest = {key: each for key, each in pods.spec.items() if key not in ("containers", "volumes")}
    facts: Facts = {
        **rest,
        "role": pods.role,
        "probes": any("readinessProbe" in each for each in mappings(pods.spec.get("containers"))),
        "program": next((each["program"] for each in running), ""),
        "labels": within(pods.template, "metadata", "labels"),
        "annotations": within(pods.template, "metadata", "annotations"),
        "holder": pods.holder,
        "unknown": [key for key in pods.spec if key not in known.fields["PodSpec"] and not is_partial],
        **_told(count=pods.count, node=_node(pods.spec, known.instances)),
    }
    for name in ("requests", "limits"):
        own = [each[name] for each in running]
        facts[name] = {key: sum(each[key] for each in own) for key in _AMOUNTS if all(key in e for e in own)}
    if not is_partial:
        used = [each.get("name") for each in mounts]
        facts["unmounted"] = [each.get("name") for each in volumes if each.get("name") not in used]
        shm = next((each.get("name") for each in mounts if each.get("mountPath") == "/dev/shm"), "")
        facts |= {"volumeNames": [each.get("name") for each in volumes], "shm": _text(shm)}
    inner = [
        Scope("volume", (*place, "volumes", at), {**each, "size": _size(each)})
        for at, each in enumerate(volumes)
    ]
    return Scope("pod", place, facts, [*containers, *inner])


def _node(spec: Mapping[str, Any], instances: Mapping[str, Instance]) -> Facts | None:
    """The instance type that a pod is bound to; None where it is bound to none, or to several."""
    try:
        choice = choose_nodes(spec, instances)
        found = instances[choice.name] if choice.is_bound else None
    except (BiremeError, AttributeError, KeyError, TypeError, ValueError, IndexError):
        return None
    if found is None:
        return None
    gpus, resource = found.accelerator.count, found.accelerator.resource
    memory, cpu = found.allocatable_memory_mib, found.allocatable_cpu_millis
    own = {"type": found.type, "gpus": gpus, "resource": resource, "efa": found.efa}
    return {**own, "memory": memory, "cpu": cpu}


def _container(item: Mapping[str, Any], place: Place, processes: int | None, known: Known) -> Scope:
    limits = _resources(within(item, "resources", "limits"))
    asked = {**within(item, "resources", "limits"), **within(item, "resources", "requests")}
    entries = mappings(item.get("env"))
    names = [_text(each.get("name")) for each in entries]
    env = {_text(each.get("name")): _text(each.get("value")) for each in entries}
    given = [item.get(part) for part in ("command", "args")]
    words = [_text(each) for part in given if isinstance(part, list) for each in part]
    command = take_apart(words, {name: value for name, value in env.items() if value and "$" not in value})
    env |= command.exports
    mounts = mappings(item.get("volumeMounts"))
    paths = [_text(each.get("mountPath")) for each in mounts]
    facts: Facts = {
        "imagePullPolicy": "",
        **{key: each for key, each in item.items() if key not in ("env", "command", "args")},
        "volumeMounts": mounts,
        "device": next((each for each in ACCELERATORS if each in asked), ACCELERATORS[0]),
        "limits": limits,
        "requests": _resources(asked),
        "init": "initContainers" in place,
        "doubled": sorted({each for list_ in (paths, names) for each in list_ if list_.count(each) > 1}),
        "unknown": [key for key in item if key not in known.fields["Container"] and len(place) > 2],
        "text": command.text,
        "program": command.program,
        "launchers": command.launchers,
        "options": command.options,
        **_image(_text(item.get("image"))),
        **_world(command.options, env, processes, _resources(asked).get("gpus")),
    }
    inner = [
        Scope("variable", (*place, "env", names.index(name)) if name in names else (*place, "command"), each)
        for name in env
        for each in [_variable(name, env, entries, names, bool(item.get("envFrom")), known.variables)]
    ]
    inner += [Scope("mount", (*place, "volumeMounts", at), {**each}) for at, each in enumerate(mounts)]
    return Scope("container", place, facts, inner)


def _resources(given: Mapping[str, Any]) -> Facts:
    """Amounts by name: memory in MiB, CPU in thousandths. Those that are no quantities are left out."""
    found = dict.fromkeys(_AMOUNTS, 0)
    for name, amount in given.items():
        key = _NAMES.get(name, name)
        try:
            found[key] = int(float(quantity(amount)) / _UNITS.get(name, 1))
        except (BiremeError, OverflowError):
            found.pop(key, None)
    return found


def _size(volume: Mapping[str, Any]) -> int:
    return int(_resources({"memory": within(volume, "emptyDir").get("sizeLimit", 0)}).get("memory", 0))


def _image(image: str) -> Facts:
    # The name of an image has no capitals, so IMAGE_URL is to be filled in.
    if not image or re.search(r"[${<]|^[^@:]*[A-Z]", image):
        return {}
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return {"tag": tag or ("" if digest else "latest"), "repository": name.removesuffix(f":{tag}")}


def _world(
    options: Mapping[str, str], env: Mapping[str, str], default: int | None, gpus: int | None
) -> Facts:
    """The nodes and processes that the launcher is told, by its options or by torchrun's variables."""

    def told(option: str, *variables: str) -> str:
        return options.get(option) or next((env[name] for name in variables if env.get(name)), "")

    nodes, processes = told("nnodes", "PET_NNODES"), told("nproc-per-node", "PET_NPROC_PER_NODE")
    least, _, most = nodes.partition(":")
    if processes:
        default = gpus if processes in ("gpu", "auto") else _whole(processes)
    endpoint = told("rdzv-endpoint", "PET_RDZV_ENDPOINT")
    endpoint = endpoint or told("master-addr", "PET_MASTER_ADDR", "MASTER_ADDR")
    host, _, port = endpoint.partition(":")
    return {
        "nodes": nodes,
        "master": host,
        "masterNames": host.split(".")[:2] if re.fullmatch(r"[a-z][a-z0-9.-]*", host) else [],
        "masterPort": port or told("master-port", "PET_MASTER_PORT", "MASTER_PORT"),
        "rendezvous": told("rdzv-backend", "PET_RDZV_BACKEND"),
        "nodeRank": told("node-rank", "PET_NODE_RANK", "NODE_RANK"),
        **_told(leastNodes=_whole(least), mostNodes=_whole(most or least), processes=default),
        **_told(np=_whole(told("np") or told("n")), perNode=_whole(told("npernode") or told("N"))),
    }


def _variable(
    name: str,
    env: Mapping[str, str],
    entries: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    has_more: bool,
    known: Sequence[str],
) -> Facts:
    value, at = env[name], names.index(name) if name in names else -1
    is_like = name not in known and name.partition("_")[0] in {each.partition("_")[0] for each in known}
    close = difflib.get_close_matches(name, known, 1, 0.92) if is_like else []
    # A variable that mpirun sets by -x has not the value of its entry in env.
    own = _text(entries[at].get("value")) if at >= 0 and not has_more else ""
    referred = re.findall(r"(?<!\$)\$\(([A-Za-z_]\w*)\)", own)
    return {
        "name": name,
        "value": value,
        "entry": at >= 0,
        "literal": at < 0 or "value" in entries[at],
        "closest": close[0] if close else "",
        "unresolved": [each for each in referred if each not in names[:at]],
        **_told(number=_whole(value)),
    }


def _told(**facts: Any) -> Facts:
    return {name: value for name, value in facts.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or isinstance(value, Mapping | list) else str(value)


def _whole(value: Any) -> int | None:
    return int(_text(value)) if re.fullmatch(r"[0-9]{1,9}", _text(value)) else None


def _unknown(value: Any, path: str, fields: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The fields below ``value`` that its kind does not have; places that ``fields`` leaves out have any."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key not in fields.get(path, (key,)):
                yield f"{path}.{key}".partition(".")[2]
            if any(listed.startswith(f"{path}.{key}") for listed in fields):
                yield from _unknown(each, f"{path}.{key}", fields)
