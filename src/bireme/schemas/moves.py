"""Values that moved or went from one release to another, and values files that follow them."""

from __future__ import annotations

from typing import Any

import yaml

from bireme.core.errors import BiremeError
from bireme.helm.yaml import refuse_bombs

SINCE = "0.3.0"
_GROUPS = {
    "launch": """files argGroups command setup workingDir python waitSeconds
        runtime extraArgs accelerate processesPerWorker""",
    "data": "verify staging dispatcher jobPath jobName jobClaim",
    "elastic": "minWorkers maxWorkers workersPerUnit spares autoscale",
    "recovery": """maxRestarts failuresWithoutProgress excludeNodeSeconds progress hang monitorInterval
        agentRestarts preflight warmStart backoffLimit backoffLimitPerIndex
        saveEverySteps lostSeconds hangSeconds scriptRestarts""",
    "placement": "topologySpreadConstraints priorityClassName schedulerName",
    "job": "suspend ttlSecondsAfterFinished activeDeadlineSeconds",
    "monitoring": "metrics tensorboard",
    "mpi": "orchestrator slots np mpirunArgs ssh probeSeconds",
    "paddle": "topology mode dispatch pservers useGpu trainerCount controlPort nic",
    "pod": """hostNetwork hostIPC hostPID dnsPolicy dnsConfig hostAliases lifecycle initContainers
        sidecars ports extraEnv envFrom extraVolumes extraVolumeMounts
        resourceClaims resourceClaimTemplates shm hugePages reserve checkDevices helperResources
        runtimeClassName terminationGracePeriodSeconds""",
}
"""Values of job charts that kept their names and went into a group."""
_MOVES = {
    **{key: f"{group}.{key}" for group, keys in _GROUPS.items() for key in keys.split()},
    "queueName": "queue.name",
    "kueue.admission": "queue.admission",
    "kueue.priorityClass": "queue.priorityClass",
    "kueue.topology": "queue.topology",
    "jobLabels": "job.labels",
    "jobAnnotations": "job.annotations",
    "mpiImplementation": "mpi.implementation",
    "dataPrep": "data.prep",
}


def _without(*groups: str) -> dict[str, str]:
    return {before: after for before, after in _MOVES.items() if after.partition(".")[0] not in groups}


MOVES = {
    "torch-elastic": {**_without("mpi", "paddle"), "launcher": "launch.launcher"},
    "mpi-training": {**_without("paddle"), "launcher": "mpi.launcher"},
    "paddle": _without("mpi", "monitoring"),
}
"""Values that have another name since 0.3.0: of a chart, by the old name."""
GONE = {
    "autoscale.every": "since 0.3.0: remove it; charts/autoscaler looks every `everySeconds`",
    "autoscale.weight": "since 0.3.0: remove it; jobs of one priority share free places evenly",
    "autoscale.timeZone": "since 0.3.0: give each of `elastic.autoscale.schedules` its `timeZone`",
}
"""Values that no chart takes any more: since when, and what to do."""


def moved(chart: str, name: str) -> str | None:
    """The new name of a value of ``chart``, or of a group of values, that moved. None if it never did."""
    for before, after in MOVES.get(chart, {}).items():
        if f"{before}.".startswith(f"{name}."):
            return after.removesuffix(before.removeprefix(name))
    return None


def migrated(chart: str, text: str, name: str) -> tuple[str, tuple[str, ...]]:
    """A values file of ``chart`` as it takes it today, and a sentence for each value that moved.

    The lines of a value that moved go to its group, with the comments above them. All else stays. ``name``
    is the file's, for messages. Raises BiremeError for text that is not a mapping in YAML, and for a value
    that cannot follow or is gone.
    """
    refuse_bombs(text, name)
    try:
        root = _root(text)
    except yaml.YAMLError as error:
        raise BiremeError(f"{name} is no YAML: {' '.join(str(error).split())}") from error
    if root is None:
        return text, ()
    if not isinstance(root, yaml.MappingNode):
        raise BiremeError(f"{name} is not a values file: it must be a mapping of keys to values")
    for before, instead in GONE.items():
        for key, _ in _found(root, before)[-1:]:
            raise BiremeError(f"{name}, line {key.start_mark.line + 1}: {before} is gone {instead}")
    said = []
    for before, after in MOVES.get(chart, {}).items():
        if found := _found(root, before):
            place = f"{name}, line {found[-1][0].start_mark.line + 1}: {before}"
            if _found(root, after):
                raise BiremeError(f"{name} has both {before} and {after}: remove {before}")
            changed = _move(text, before, after)
            if changed is None or _leaf(changed, after) != _leaf(text, before):
                raise BiremeError(f"{place} is {after} since {SINCE}: move it by hand, lines cannot follow")
            text = changed
            said.append(f"{place} is {after} since {SINCE}")
    return text, tuple(said)


Pair = tuple[yaml.Node, yaml.Node]


def _root(text: str) -> Any:
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _found(root: yaml.Node, path: str) -> list[Pair]:
    """The keys and values on the way to ``path``, or none if the file does not have it."""
    way: list[Pair] = []
    node = root
    for part in path.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        here = [(key, value) for key, value in pairs if key.value == part]
        if not here:
            return []
        way.append(here[-1])
        node = here[-1][1]
    return way


def _leaf(text: str, path: str) -> Any:
    value = yaml.safe_load(text)
    for part in path.split("."):
        value = value[part]
    return value


def _move(text: str, before: str, after: str) -> str | None:
    """``text`` with the lines of ``before`` in the group of ``after``; None if it has no lines of its own."""
    root, lines = _root(text), text.splitlines(keepends=True)
    way = _found(root, before)
    key, value = way[-1]
    is_alias = value.start_mark.index < key.end_mark.index
    if is_alias or any(node.flow_style for node in (root, *(group for _, group in way[:-1]))):
        return None
    old, column = lines[_start(lines, key) : _stop(*way[-1])], key.start_mark.column
    place = _start(lines, way[0][0])
    while len(way) > 1 and len(way[-2][1].value) == 1:
        way.pop()  # a group that would be empty goes with its last value
    del lines[_start(lines, way[-1][0]) : _stop(*way[-1])]
    *groups, new = after.split(".")
    root = _root("".join(lines))
    there: list[Pair] = []
    while len(there) < len(groups) and (inner := _found(root, ".".join(groups[: len(there) + 1]))):
        there = inner
    indent = 0
    if there:
        group = there[-1][1]
        if not isinstance(group, yaml.MappingNode) or group.flow_style:
            return None
        indent, place = group.value[0][0].start_mark.column, _stop(*there[-1])
    end = "\r\n" if "\r\n" in text else "\n"
    for group_name in groups[len(there) :]:
        lines.insert(place, f"{' ' * indent}{group_name}:{end}")
        indent, place = indent + 2, place + 1
    if place and not lines[place - 1].endswith("\n"):
        lines[place - 1] += end
    named = [" " * indent + line[column:] if line.strip() else line for line in old]
    head = key.start_mark.line - _start(text.splitlines(), key)
    named[head] = " " * indent + new + old[head][key.end_mark.column :]
    return "".join([*lines[:place], *named[:-1], named[-1].rstrip("\r\n") + end, *lines[place:]])


def _start(lines: list[str], key: yaml.Node) -> int:
    """The line of ``key``, or of the first comment right above it."""
    line: int = key.start_mark.line
    while line and lines[line - 1].startswith(" " * key.start_mark.column + "#"):
        line -= 1
    return line


def _stop(key: yaml.Node, value: yaml.Node) -> int:
    """The line after a value, without the comments that follow it."""
    line: int = value.end_mark.line + bool(value.end_mark.column)
    if isinstance(value, yaml.CollectionNode) and not value.flow_style:
        last = value.value[-1]
        line = _stop(*last) if isinstance(last, tuple) else _stop(last, last)
    return max(line, key.start_mark.line + 1)
