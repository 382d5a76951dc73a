"""A job of a manifest as values of a chart, and both jobs beside each other, field by field."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema

from bireme.adopt.forms import form_of
from bireme.adopt.parts import Part, leaves, parts_of
from bireme.adopt.pods import accelerators_of, at, carry, pod_values, pruned, put, side_values
from bireme.adopt.programs import Program, program_of
from bireme.adopt.tables import Row, row_of, table
from bireme.audit.documents import Document, mappings, spelled
from bireme.audit.facts import Pods, pods_of
from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest, within
from bireme.core.plain import Plain
from bireme.helm import Renderer, RenderRequest
from bireme.helm.values import read_file
from bireme.helm.yaml import Values, merge
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.plan.workloads import plan_of
from bireme.plan.workloads.model import WorkloadPlan
from bireme.schemas.problems import refusals, shortened

EQUAL, BETTER, LOST = "equal", "better", "not carried over"
_ELASTIC, _MPI, _PADDLE = "torch-elastic", "mpi-training", "paddle"
_SERVERS = ("ps", "pserver")
_IMAGE, _COMMAND = "container.image", ("container.command", "container.args")
_CONTAINERS = ("containers", "initContainers")
# What options say of parts that have no row.
_GIVEN = {_IMAGE: "image.repository"} | dict.fromkeys(_COMMAND, "args")
# Why both plans differ in an option of the launcher, where the number of pods is not the reason.
_UNEQUAL = {"nnodes": "it is the number of workers", "np": "it is the number of workers times slots"}
WORKERS = ("worker", "trainer")
"""What the charts call the pods that train."""


@dataclass(frozen=True)
class Outcome(Plain):
    """What becomes of one ``field`` of a manifest: ``theirs`` is what it says, ``ours`` what our job has."""

    field: str
    outcome: str
    theirs: Any
    ours: Any = None
    why: str = ""


@dataclass(frozen=True)
class Adopted(Plain):
    """A job as ``values`` of ``chart``. ``asks`` says what its manifest does not."""

    chart: str
    release: str
    namespace: str
    values: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    asks: tuple[str, ...]


@dataclass(frozen=True)
class Adopter:
    """Adopts jobs into the charts of a folder. ``given`` are values that manifests do not say; they win."""

    renderer: Renderer
    charts: Path
    instances: Mapping[str, Instance]
    given: Mapping[str, Any]

    def adopt(self, document: Document, others: Sequence[Document] = ()) -> Adopted:
        """The job of ``document``, with the runtime that it names if ``others`` have it.

        Raises BiremeError where a chart cannot take it, and says why.
        """
        metadata = within(document.content, "metadata")
        name = document.name or str(metadata.get("generateName") or "job").rstrip("-.")
        for one in (document, *(each for each in others if each.kind in table("kinds"))):
            for problem in jsonschema.Draft202012Validator(table("types")).iter_errors(one.content):
                field = spelled(tuple(problem.absolute_path))
                raise BiremeError(f"{one.kind} {field} has another type than Kubernetes takes: correct it")
        job = _Job(document, others, self.instances)
        values = job.values(read_file(self.charts / job.chart / "values.yaml"), self.instances)
        request = RenderRequest(self.charts / job.chart, merge(values, dict(self.given)), name)
        if not at(request.values, "image.repository"):
            image = next((part.given for part in parts_of(job.main.template) if part.key == _IMAGE), "")
            there = f"{image} is no image" if image else "it names no image"
            there += ", so give its runtime too" if document.kind == "TrainJob" and not image else ""
            raise BiremeError(f"{there}: fill it in, or say --set image.repository=NAME,image.tag=TAG")
        if not (request.values.get("args") or at(request.values, "launch.command") or job.is_check):
            raise BiremeError(
                "it names no command: give the one that its image runs, as --set args={train.py}"
            )
        request, refused = accepted(self.renderer, request)
        rendered = self.renderer.render(request).manifests
        planned = expand(name, request.namespace, rendered, self.instances).workloads
        ours = next(each for each in planned if each.kind in ("Job", "MPIJob") and each.role in WORKERS)
        kept = [each for each in planned if each is ours or each.role == "pserver"]
        made = [each for one in kept for each in rendered if (each.kind, each.name) == (one.kind, one.name)]
        outcomes = (*job.plans(ours, refused), *job.outcomes(made, request.values, refused, self.given))
        namespace, asks = str(metadata.get("namespace") or "default"), tuple(job.asks(request.values))
        return Adopted(job.chart, name, namespace, pruned(request.values), outcomes, asks)


class _Job:
    """One job: its ``main`` pods train, and the program of its ``leader`` is the job's."""

    def __init__(
        self, source: Document, others: Sequence[Document], instances: Mapping[str, Instance]
    ) -> None:
        self.form = form_of(source, others)
        self.kind, self.document = source.kind, self.form.document
        self.groups = pods_of(self.document)
        parts = [part for each in self.groups for part in parts_of(each.template)]
        told = {part.key: part.value for part in parts}
        ours = [chart for name, chart in table("ours").items() if f"container.env.{name}" in told]
        self.chart = [*ours, table("charts")[self.document.kind]][0]
        if "PSERVER" in (part.value for part in parts if part.key == "container.env.TRAINING_ROLE"):
            raise BiremeError(
                "it has pods that are pservers: adopt the job of the trainers alone, or move both by "
                "docs/coming-from.md"
            )
        launchers = [each for each in self.groups if each.role == "Launcher"]
        self.servers = [
            each for each in self.groups if each.role.lower() in _SERVERS and self.chart == _PADDLE
        ]
        training = [each for each in self.groups if each not in (*launchers, *self.servers)]
        if not training or (self.document.kind == "MPIJob" and not launchers):
            raise BiremeError("it has no pods that train, or no launcher")
        self.main = max(
            training, key=lambda each: (accelerators_of(parts_of(each.template)), each.count or 0)
        )
        self.leader = [*launchers, self.main][0]
        self.program = self._program()
        started = " ".join(str(part.value) for part in parts if part.key in _COMMAND)
        is_own = self.kind == "MPIJob" or self.program.launcher == "mpirun"
        if len(self.groups) > 1 and re.search("mpirun|mpiexec", started) and not is_own:
            raise BiremeError("its mpirun starts other pods: docs/coming-from.md says how to move it")
        if self.kind == "StatefulSet" and self.program.launcher != "torchrun" and "torchrun" not in started:
            raise BiremeError("it starts no training: apply it as before")
        # The master of a PyTorchJob is a rank, whatever it runs.
        is_one = self.kind == "PyTorchJob"
        counts = [each.count for each in training if is_one or _sort(each) == _sort(self.main)]
        if None in counts:
            raise BiremeError("the number of its pods is not told: fill it in with --env-file")
        self.workers = sum(each or 0 for each in counts)
        theirs = plan_of(Manifest(self.document.content), instances)
        is_known = theirs and theirs.is_known and theirs.kind == self.document.kind
        self.theirs = theirs if is_known else None
        # The leaves outside of pod templates.
        inside = [spelled(each.place) for each in self.groups]
        self.around = [each for each in leaves(self.document.content) if not _is_below(each, inside)]

    def _program(self) -> Program:
        parts, known = parts_of(self.leader.template), table("variables").get(self.kind, {})
        given = {part.key: part.given for part in parts}
        words = [str(each) for key in _COMMAND for each in given.get(key) or ()]
        if words and words[0].startswith("-"):
            # The options of a program that only the image knows, or the operator.
            words = [table("programs")[self.kind], *words] if self.kind in table("programs") else []
        program = program_of(words, [key.removeprefix("container.env.") for key in given])
        if self.chart == _MPI:
            is_done = all(re.search(table("done"), line) for line in program.setup.splitlines())
            return program if program.launcher == "mpirun" and is_done else Program("node", words)
        if self.chart == _PADDLE:
            return program if program.launcher in ("paddle", "python", "") else Program("node", words)
        is_alone = program.launcher == "python" and ("RANK" not in known or accelerators_of(parts) > 1)
        if not is_alone and program.launcher not in ("node", "mpirun"):
            return program
        told = [f"{name}={value}" for name, value in known.items() if name == "RANK" or name in str(words)]
        start = ["bash", "-c", f'export {" ".join(told)}; exec "$@"', "bash"] if told else []
        return Program("node", [*start, *words])

    @property
    def is_check(self) -> bool:
        """Whether it trains nothing: Paddle tries whether its workers reach each other."""
        return self.chart == _PADDLE and [*self.program.words] == ["run_check"]

    def values(self, defaults: Mapping[str, Any], instances: Mapping[str, Instance]) -> Values:
        """The values that reproduce the job over the ``defaults`` of its chart."""
        kind, program = self.document.kind, self.program
        values: Values = {"workers": self.workers, **copy.deepcopy(table("values").get(kind, {}))}
        pods = pod_values(parts_of(self.main.template), defaults, instances)
        if self.chart == _MPI:
            put(values, "args" if program.launcher == "mpirun" else "launch.command", [*program.words])
            put(values, "mpi.mpirunArgs", [*program.options])
            if self.leader is not self.main:
                put(values, "mpi.launcher", side_values("launcher", self.leader.template, pods, defaults))
        elif self.chart == _PADDLE:
            command = {"command": [*program.words]} if program.launcher == "node" else {}
            values |= {"args": [] if command or self.is_check else [*program.words]}
            values["launch"] = {"setup": program.setup, **command}
            values["paddle"] = {} if self.servers else {"mode": "collective"}
            if accelerators_of(parts_of(self.main.template)):
                put(values, "paddle.useGpu", True)
            for each in self.servers:
                put(values, "paddle.pservers", side_values("pservers", each.template, pods, defaults))
        else:
            launch = {"setup": program.setup} if program.setup else {}
            values |= {"args": [*program.options, *program.words], "launch": launch}
            if program.launcher not in ("torchrun", "python"):
                values["launch"]["launcher"] = program.launcher
        bounds = self.theirs if self.theirs and self.theirs.replicas == self.workers else None
        low, high = (bounds.min_replicas, bounds.max_replicas) if bounds else (self.workers, self.workers)
        if self.chart == _ELASTIC or (self.chart == _MPI and low < high):
            values["elastic"] = {"minWorkers": max(low, 1), "maxWorkers": max(high, 1)}
        for part in self.around:
            carry(values, row_of(part.key, kind), part)
        least, _, most = program.owned.get("nnodes", "").partition(":")
        is_range = most and self.chart == _ELASTIC
        told = {**program.owned, **({"least": least, "most": most} if is_range else {})}
        for option, path in table("torchrun").items():
            if told.get(option, "").isdigit():
                put(values, path, int(told[option]))
        policy = within(self.document.content, "spec", "elasticPolicy")
        if "c10d" in (told.get("rdzv-backend"), policy.get("rdzvBackend")):
            values |= {"rendezvous": {"backend": "c10d"}, "etcd": {"enabled": False}}
        return merge(values, pods)

    def asks(self, values: Mapping[str, Any]) -> Iterator[str]:
        """What the manifest does not say."""
        parts = parts_of(self.main.template)
        if accelerators_of(parts) and not at(values, "instance.type"):
            yield "the type of its nodes, which gives memory, CPU and EFA: -f p4d.24xlarge"
        user = at(values, "podSecurityContext.runAsUser")
        if user is None and not any(".runAs" in part.key for part in parts):
            yield "a user, so it is that of the image, often root: --set podSecurityContext.runAsUser=1000"

    def plans(self, ours: WorkloadPlan, refused: Sequence[str]) -> Iterator[Outcome]:
        """Pods, ranks and processes of both jobs, and the options of the launcher that the chart sets."""
        own_pods = [each.count or 0 for each in self.groups if each not in self.servers]
        total, owned = sum(own_pods), self.program.owned
        theirs = self.theirs or replace(ours.sized(total, total), pods=(), replicas=total)
        own, made = (each.pods[-1].processes if each.pods else None for each in (theirs, ours))
        ranks, our_ranks = (
            [each.rank for each in workload.pods if each.rank is not None] for workload in (theirs, ours)
        )
        unranked = "" if ranks else "pods of an Indexed Job have ranks and names"
        nodes = [int(each) for each in owned.get("nnodes", "").split(":") if each.isdigit()]
        bounds = [theirs.min_replicas, theirs.max_replicas]
        counts = {option: int(value) for option, value in owned.items() if value.isdigit()}
        facts: Mapping[str, tuple[Any, Any, str]] = {
            "pods": (theirs.replicas, ours.replicas - ours.spares, ""),
            "ranks": (ranks or (theirs.pods and "none"), our_ranks, unranked),
            "bounds": (nodes if len(nodes) > 1 else bounds, [ours.min_replicas, ours.max_replicas], ""),
            "nnodes": (nodes if len(nodes) == 1 else None, [self.workers], ""),
            "processes": (counts.pop("nproc-per-node", own), made, ""),
            "np": (counts.pop("np", 0), self.workers * (made or 1), ""),
        }
        rest = {
            each: (value, None, "the chart sets it") for each, value in owned.items() if each not in facts
        }
        if self.chart == _MPI:
            rest["setup"] = (self.program.setup, None, "the chart serves sshd, and knows its workers")
        for name, (one, other, why) in {**facts, **rest}.items():
            if one:
                outcome = EQUAL if one == other else BETTER if why else LOST
                said = [each for each in refused if name == "processes" and "processesPerWorker" in each]
                lost = [*said, _UNEQUAL.get(name, "pods that run another program are not moved")][0]
                yield Outcome(name, outcome, one, other, {EQUAL: "", BETTER: why, LOST: lost}[outcome])
        if self.chart == _PADDLE and self.program.options:
            yield Outcome(
                "options", LOST, [*self.program.options], None, "the chart starts each trainer itself"
            )

    def outcomes(
        self,
        made: Sequence[Manifest],
        values: Mapping[str, Any],
        refused: Sequence[str],
        options: Mapping[str, Any],
    ) -> Iterator[Outcome]:
        """The outcome of each part of the job, then of what its form leaves out. They hold all leaves."""
        told: set[tuple[str, str]] = set()
        for part, row, there, otherwise in self._compared(made, values):
            if origin := self.form.origin(part.place):
                path = _GIVEN.get(part.key, row.value if row else "")
                if path and at(options, path) is not None:
                    row = Row("", why="an option says it instead")
                found = _outcome(part, *origin, row, there, refused, otherwise)
                # Two templates may be made of one.
                if (found.field, found.outcome) not in told:
                    yield found
                told.add((found.field, found.outcome))
        for leaf, kind, field, stands in self.form.rest({field for field, _ in told}):
            row = Row("", why="the job says it instead") if stands else row_of(leaf.key, kind)
            yield _outcome(leaf, field, leaf.given, row, _carried({}, row, leaf), refused)

    def _compared(
        self, made: Sequence[Manifest], values: Mapping[str, Any]
    ) -> Iterator[tuple[Part, Row | None, Any, str]]:
        """The parts of the form, each with its row, what our job says, and why it may say less."""
        for part in self.around:
            row = row_of(part.key, self.document.kind)
            yield part, row, _carried(values, row, part), ""
        own, *of_servers = [pods_of(replace(self.document, content=each.thaw())) for each in made]
        roles = {each.role: each for each in own} | {
            each.role: pods[0] for each in self.servers for pods in of_servers
        }
        for pods in self.groups:
            found = parts_of(roles.get(pods.role, own[0]).template)
            is_own = pods in (self.main, self.leader, *self.servers)
            containers = [each for key in _CONTAINERS for each in mappings(pods.spec.get(key))]
            mounted = [
                mount.get("name") for each in containers for mount in mappings(each.get("volumeMounts"))
            ]
            for part in parts_of(pods.template):
                row = row_of(part.key)
                if part.key.startswith("spec.volumes.") and part.given.get("name") not in mounted:
                    row = Row("", why="no container mounts it")
                of_job = row is not None and row.how in ("plan", "whole")
                there = _carried(values, row, part) if of_job else self._found(part, found, pods)
                part = replace(part, place=(*pods.place, *part.place))
                yield part, row, there, "" if is_own else "all workers are alike here"

    def _found(self, part: Part, ours: Sequence[Part], pods: Pods) -> Any:
        """What our pods say of the same thing."""
        if part.key in _COMMAND:
            given = {each.key: each.given for each in ours}
            words = [str(each) for key in _COMMAND for each in given.get(key) or ()]
            theirs = [*map(str, self.program.words or part.value or ())]
            is_there = words[len(words) - len(theirs) :] == theirs
            is_there = (is_there or self.is_check) and _sort(pods) == _sort(self.leader)
            return part.value if is_there or (pods is not self.leader and self.chart == _MPI) else None
        keys = [part.key, part.key.replace("spec.containers.", "spec.initContainers.")]
        keys += [each.key for each in ours if "spec.volumes." in each.key and "spec.volumes." in part.key]
        found = [each.value for each in ours if each.key in keys]
        other = None if "spec.volumes." in part.key else [*found, None][0]
        return next((part.value for each in found if _holds(each, part.value)), other)


def _is_below(part: Part, fields: Sequence[str]) -> bool:
    return f"{spelled(part.place)}.".startswith(tuple(f"{each}." for each in fields))


def _sort(pods: Pods) -> tuple[bool, int, Any]:
    """What pods have in common that train together."""
    parts = parts_of(pods.template)
    told = [part.value for part in parts if part.key in table("alike")]
    return pods.role == "Launcher", accelerators_of(parts), told


def accepted(renderer: Renderer, request: RenderRequest) -> tuple[RenderRequest, list[str]]:
    """``request`` without the values that its chart refuses, and the sentences that refuse them.

    Raises BiremeError for what a job cannot do without.
    """
    refused: list[str] = []
    while found := refusals(renderer, request):
        values = copy.deepcopy(dict(request.values))
        taken = [sentence for sentence in found if _taken_out(values, sentence)]
        if not taken:
            raise BiremeError(shortened(found))
        refused, request = refused + taken, replace(request, values=values)
    return request, refused


def _taken_out(values: Values, sentence: str) -> bool:
    """Take out of ``values`` what ``sentence`` refuses, if it is one thing that a job can do without."""
    path, _, said = sentence.replace("`", "").partition(":")
    words = {*re.split(r"[\s;,:]+", said)}
    # Charts speak of variables from elsewhere as of env.
    path = "pod.extraEnv" if path == "env" and not words & {*within(values, "env")} else path
    *way, last = re.findall(r"[^.\[\]]+", path.split(" ")[0]) or [""]
    holder: Any = values
    around: Any = None
    for key in way:
        is_index = isinstance(holder, list) and key.isdigit()
        around, holder = holder, holder[int(key)] if is_index else within({"": holder}, "").get(key)
    there = holder.get(last) if isinstance(holder, dict) else None
    if there is None and holder and isinstance(around, list):
        # An item of a list that lacks a required key is left out whole.
        around.remove(holder)
        return True
    if there in (None, {}, []) or path.startswith(("workers", "args", "image")):
        return False
    is_whole = path.startswith("mpi.launcher.") and isinstance(there, dict) and not words & {*there}
    if is_whole or sentence.startswith("`") or not isinstance(there, dict | list):
        del holder[last]
    elif isinstance(there, list):
        holder[last] = [each for each in there if not words & {*map(str, within({"": each}, "").values())}]
    else:
        holder[last] = {key: each for key, each in there.items() if key not in words}
    return bool(holder.get(last) != there)


def _carried(values: Mapping[str, Any], row: Row | None, part: Part) -> Any:
    """What the values say of a field outside of pods."""
    there = at(values, row.value) if row and row.value else None
    if row and row.how == "map":
        there = within({"": there}, "").get(row.name_in(part.key))
    return part.value if str(there) == str(part.value) or (row and row.how == "plan") else there


def _holds(ours: Any, theirs: Any) -> bool:
    """Whether ``ours`` has all that ``theirs`` has."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return all(key in ours and _holds(ours[key], each) for key, each in theirs.items())
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(ours) >= len(theirs) and all(map(_holds, ours, theirs))
    return str(ours) == str(theirs)


def _outcome(
    part: Part,
    field: str,
    given: Any,
    row: Row | None,
    ours: Any,
    refused: Sequence[str],
    otherwise: str = "",
) -> Outcome:
    name = part.key.rpartition(".")[2]
    if ours == part.value or (part.given in ({}, [], None) and not (row and row.lost)):
        return Outcome(field, EQUAL, given)
    if row and row.why:
        return Outcome(field, BETTER, given, ours, row.why)
    texts = [each.value for each in leaves(part.given) if isinstance(each.value, str) and len(each.value) > 3]
    said = next(
        (
            each
            for each in refused
            if name in each.split()
            or (row and row.value and each.strip("`").startswith(row.value))
            or any(text in each for text in texts)
        ),
        otherwise,
    )
    why = (row.lost if row else "") or said or "no value of the chart says it"
    return Outcome(field, LOST, given, ours, why)
