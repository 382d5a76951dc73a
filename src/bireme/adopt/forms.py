"""The object that a job's controller makes of it: a TrainJob with its runtime, old versions as today's."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bireme.adopt.parts import Part, leaves
from bireme.adopt.tables import table
from bireme.audit.documents import Document, Place, mappings, spelled
from bireme.audit.facts import pods_of
from bireme.core.errors import BiremeError
from bireme.core.manifests import within
from bireme.core.quantities import ACCELERATORS

# A source by its number, and a place in it.
_Origin = tuple[int, Place]
# The container of a runtime that trains, and the label of its group.
_NODE, _STEP = "node", "trainer.kubeflow.org/trainjob-ancestor-step"


@dataclass(frozen=True)
class Form:
    """A job as ``document``, whose fields ``moves`` take from ``sources``, the manifest and its runtime."""

    document: Document
    sources: Sequence[Document]
    moves: Mapping[Place, _Origin]

    def origin(self, place: Place) -> tuple[str, Any] | None:
        """The field of a source that stands at ``place``, and what it says; None where the form adds it."""
        length = next((each for each in range(len(place), 0, -1) if place[:each] in self.moves), 0)
        number, start = self.moves.get(place[:length], (0, ()))
        found = (*start, *place[length:])
        value = _value(self.sources[number].content, found) if number < len(self.sources) else None
        return None if value is None else (self._spelled(number, found), value)

    def rest(self, told: set[str]) -> Iterator[tuple[Part, str, str, bool]]:
        """The leaves of all sources that no field in ``told`` holds.

        With each go the kind of its source, its field, and whether a field of the form stands in for it.
        """
        for number, source in enumerate(self.sources):
            moved = [place for of, place in self.moves.values() if of == number]
            for leaf in leaves(source.content):
                above = [leaf.place[:length] for length in range(1, len(leaf.place) + 1)]
                fields = [self._spelled(number, each) for each in above]
                if not told & {*fields}:
                    yield leaf, source.kind, fields[-1], any(each in moved for each in above)

    def _spelled(self, number: int, place: Place) -> str:
        source = self.sources[number]
        return f"{f'{source.kind}/{source.name}: ' if number else ''}{spelled(place)}"


def _value(content: Any, place: Place) -> Any:
    """What is at ``place``, None where there is nothing."""
    for key in place:
        try:
            content = content[key]
        except (IndexError, KeyError, TypeError):
            return None
    return content


class _Made:
    """The content of a form in the making."""

    def __init__(self, document: Document, version: str, kind: str) -> None:
        metadata = copy.deepcopy(within(document.content, "metadata"))
        self.document = document
        self.moves: dict[Place, _Origin] = {}
        self.content: dict[str, Any] = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {}}

    def form(self, *runtime: Document) -> Form:
        """The form of what was put."""
        return Form(replace(self.document, content=self.content), [self.document, *runtime], self.moves)

    def put(self, place: Place, value: Any, origin: Place, source: int = 0) -> Any:
        """Set ``value``, which stands at ``origin``, at ``place``, and return it. Lists grow by an item."""
        holder: Any = self.content
        for key, inner in zip(place, (*place[1:], ""), strict=True):
            if isinstance(holder, list) and key == len(holder):
                holder.append([] if isinstance(inner, int) else {})
            elif isinstance(holder, dict) and holder.get(key) is None:
                holder[key] = [] if isinstance(inner, int) else {}
            holder, around = holder[key], holder
        around[place[-1]] = found = copy.deepcopy(value)
        self.moves[place] = source, origin
        return found

    def lay(self, there: Any, place: Place, patch: Any, origin: Place) -> None:
        """Lay ``patch`` over what is ``there``, at ``place``, item by item of named lists."""
        names = [each.get("name") or each.get("mountPath") for each in mappings(patch)]
        if isinstance(patch, Mapping) and isinstance(there, dict):
            for key, each in patch.items():
                self.lay(there.get(key), (*place, key), each, (*origin, key))
        elif names and all(names) and isinstance(there, list):
            own = [each.get("name") or each.get("mountPath") for each in mappings(there)]
            for at, name in enumerate(names):
                to = own.index(name) if name in own else len(there)
                # A variable, a mount or a volume is replaced, a container is not.
                is_patched = name in own and place[-1] in ("containers", "initContainers")
                self.lay(there[to] if is_patched else None, (*place, to), patch[at], (*origin, at))
        elif place[-1] != "containers":
            self.put(place, patch, origin)
        elif patch:  # an empty list takes none away
            raise BiremeError(f"{spelled(origin)}: give each container the name of the one that it changes")


def form_of(document: Document, others: Sequence[Document] = ()) -> Form:
    """The form of a job, with the runtime that it names if ``others`` have it, and labels of its AppWrapper.

    Raises BiremeError for a job of which only the settings of its operator say how many pods it has.
    """
    form = _form_of(document, others)
    if document.around is None:
        return form
    sources, moves = [*form.sources, document.around], dict(form.moves)
    content = copy.deepcopy({**form.document.content, "metadata": within(form.document.content, "metadata")})
    labels = content["metadata"].setdefault("labels", {})
    for key, each in within(document.around.content, "metadata", "labels").items():
        if key not in labels:
            moves["metadata", "labels", key] = len(form.sources), ("metadata", "labels", key)
            labels[key] = each
    return Form(replace(form.document, content=content), sources, moves)


def _form_of(document: Document, others: Sequence[Document]) -> Form:
    if document.kind == "TrainJob":
        return _train_job(document, others)
    spec, form = within(document.content, "spec"), table("forms").get(document.kind)
    roles = _roles(document) if form and "kind" in form else {"": ""}
    if not form or form["has"] not in spec or not roles:
        return Form(document, [document], {})
    made = _Made(document, form["apiVersion"], form.get("kind", document.kind))
    kept = {f"spec.{key}": f"spec.{key}" for key in spec if key not in form.get("gone", spec)}
    for to, path in {**kept, **form["moves"]}.items():
        origin = _place(re.sub(r"\{(\w+)\}", lambda role: roles.get(role[1], role[0]), path))
        if (found := _value(document.content, origin)) is not None:
            made.put(_place(to), found, origin)
    for to, found in form.get("set", {}).items():
        made.put(_place(to), found, ("",))
    for path in form.get("without", ()):
        *way, last = _place(path)
        if isinstance(holder := _value(made.content, tuple(way)), dict):
            holder.pop(last, None)
    if document.kind == "MPIJob":
        _count_devices(made, spec)
    return made.form()


def _place(path: str) -> Place:
    return tuple(int(key) if key.isdigit() else key for key in path.split("."))


def _count_devices(made: _Made, spec: Mapping[str, Any]) -> None:
    """What v1alpha1 makes of a number of devices: workers, the devices of each, and its slots."""
    worker: Place = ("spec", "mpiReplicaSpecs", "Worker")
    resources: Place = (*worker, "template", "spec", "containers", 0, "resources")
    device = str(spec.get("processingResourceType") or ACCELERATORS[0])
    unit = next((each for each in ("gpus", "processingUnits") if each in spec), "")
    if unit:
        most = spec.get(f"{unit}PerNode")
        if not most:
            raise BiremeError(f"its operator says how many {unit} a pod has: say it as spec.{unit}PerNode")
        made.put((*worker, "replicas"), max(1, spec[unit] // most), ("spec", unit))
        made.put(resources, {"limits": {device: min(spec[unit], most)}}, ("spec", unit))
    slots = (_value(made.content, resources) or {}).get("limits", {}).get(device, 1)
    made.content["spec"].setdefault("slotsPerWorker", slots)


def _roles(document: Document) -> Mapping[str, str]:
    """Where a job has the pod that runs mpirun and those in which it starts ranks. {} where it has none."""
    commands = {
        ".".join(map(str, pods.place[:-1])): [
            (each.get("command"), each.get("args")) for each in mappings(pods.spec.get("containers"))
        ]
        for pods in pods_of(document)
    }
    found = {re.search("mpirun|mpiexec", str(each)) is not None: place for place, each in commands.items()}
    return {"lead": found[True], "rest": found[False]} if len(commands) == len(found) == 2 else {}


def _train_job(document: Document, others: Sequence[Document]) -> Form:
    """The JobSet that Kubeflow's trainer makes of the job and its runtime, without other groups of pods."""
    spec = within(document.content, "spec")
    trainer, reference = within(spec, "trainer"), within(spec, "runtimeRef")
    named = reference.get("kind") or "ClusterTrainingRuntime", reference.get("name")
    runtime = [each for each in others if (each.kind, each.name) == named][:1]
    told = within(runtime[0].content, "spec") if runtime else {}
    policy = within(told, "mlPolicy", "mpi")
    if policy and not policy.get("runLauncherAsNode"):
        raise BiremeError("its launcher has no rank: docs/coming-from.md says how an MPIJob is moved")
    made = _Made(document, "jobset.x-k8s.io/v1alpha2", "JobSet")
    inner, inside = within(told, "template", "spec"), ("spec", "template", "spec")
    for key in {*inner} - {"replicatedJobs"}:
        made.put(("spec", key), inner[key], (*inside, key), 1)
    if "podGroupPolicy" in told:
        made.put(("spec", "podGroupPolicy"), told["podGroupPolicy"], ("spec", "podGroupPolicy"), 1)
    for key in ("suspend", "activeDeadlineSeconds", *(["runtimeRef"] if runtime else [])):
        if key in spec:
            made.put(("spec", key), spec[key], ("spec", key))
    groups = mappings(inner.get("replicatedJobs")) or [{"name": _NODE}]
    steps = [within(each, "template", "metadata", "labels").get(_STEP) for each in groups]
    lead = steps.index("trainer") if "trainer" in steps else len(groups) - 1
    made.content["spec"]["replicatedJobs"] = []
    origin: Place = (*inside, "replicatedJobs", lead)
    group = made.put(("spec", "replicatedJobs", 0), groups[lead], origin, 1)
    job: Place = ("spec", "replicatedJobs", 0, "template", "spec")
    template = group.setdefault("template", {}).setdefault("spec", {}).setdefault("template", {})
    containers = template.setdefault("spec", {}).setdefault("containers", [])
    if not containers:
        containers.append({"name": _NODE})
    names = [each.get("name") for each in containers]
    main: Place = (*job, "template", "spec", "containers", names.index(_NODE) if _NODE in names else 0)
    for targets, patch, place in _patches(spec):
        if not targets or group.get("name") in targets:
            made.lay(template, (*job, "template"), patch, place)
    node = containers[main[-1]]
    own = {key: trainer[key] for key in ("image", "command", "args", "env") if key in trainer}
    made.lay(node, main, own, ("spec", "trainer"))
    variables = table("policies")["mpi" if policy else "torch"]
    places: dict[str, Place] = {"numNodes": (*job, "parallelism"), "resourcesPerNode": (*main, "resources")}
    for key in (*places, *variables):
        way: Place = ("mlPolicy", "mpi" if policy else "torch") if key in variables else ("mlPolicy",)
        way = ("trainer",) if key in trainer else way
        found = within(spec if key in trainer else told, *map(str, way)).get(key, {"numNodes": 1}.get(key))
        # One process of a runtime's stands for one on each device.
        if found is not None and (key, found, way) != ("numProcPerNode", 1, ("mlPolicy", "mpi")):
            to = places.get(key, (*main, "env", len(node.get("env") or ())))
            value = {"name": variables[key], "value": str(found)} if key in variables else found
            made.put(to, value, ("spec", *way, key), int(key not in trainer))
    return made.form(*runtime)


def _patches(spec: Mapping[str, Any]) -> Iterator[tuple[list[Any], Mapping[str, Any], Place]]:
    """What a TrainJob lays over pod templates of its runtime: the groups, the patch and its place."""
    for at, each in enumerate(mappings(spec.get("podTemplateOverrides"))):
        targets = [target.get("name") for target in mappings(each.get("targetJobs"))]
        patch = {key: each[key] for key in ("metadata", "spec") if key in each}
        yield targets, patch, ("spec", "podTemplateOverrides", at)
    for at, each in enumerate(mappings(spec.get("runtimePatches"))):
        way = ("trainingRuntimeSpec", "template", "spec")
        for to, group in enumerate(mappings(within(each, *way).get("replicatedJobs"))):
            inside = ("replicatedJobs", to, "template", "spec", "template")
            over = within(group, "template", "spec", "template")
            yield [group.get("name")], over, ("spec", "runtimePatches", at, *way, *inside)
