"""What people see: plans, differences, pods, tools and changes as rich tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bireme.cli.options import UNLIMITED
from bireme.core.quantities import counted

if TYPE_CHECKING:
    from bireme.clusters.base import ClusterInfo
    from bireme.live.nccl import Verdict
    from bireme.live.observe import Difference
    from bireme.live.pods import ObservedPod
    from bireme.live.release import Revision
    from bireme.live.shards import Shards
    from bireme.live.summary import ReleaseStatus, Summary
    from bireme.live.timeline import Timeline
    from bireme.live.worker_status import WorkerStatus
    from bireme.plan.object_diff import ObjectDiff
    from bireme.plan.queues import Queued
    from bireme.plan.storage import Storage
    from bireme.plan.topology import Plan
    from bireme.plan.workloads.model import PodPlan, WorkloadPlan
    from bireme.tools import ToolStatus
    from bireme_runtime.elastic.monitor.why import Cause

_SHOWN_FAILURES = 5
_SHOWN_PODS = 12
_SHOWN_CAUSES = 8


class _Fitting:
    """The wide form of a table where its lines fit the console, else the narrow one. Neither cuts a text."""

    def __init__(self, wide: RenderableType, narrow: RenderableType) -> None:
        self._wide, self._narrow = wide, narrow

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update_width(UNLIMITED), self._wide).maximum
        yield self._wide if needed <= options.max_width else self._narrow


def plan_view(plan: Plan, every_pod: bool = False) -> RenderableType:
    """The plan: a line for each workload and its pods, then the totals.

    Long workloads are shortened unless ``every_pod`` is wanted. On a narrow console, what the pods of a role
    ask for stands once above them.
    """
    counted = [workload for workload in plan.workloads if not workload.note]
    table = _pods_table(with_resources=True)
    for workload in counted:
        table.add_row(Text(workload.headline, style="bold"))
        _add_pods(table, workload, every_pod, with_resources=True)
    narrow = Group(*(_narrow_workload(workload, every_pod) for workload in counted))
    uncounted = [Text(each.headline) for each in plan.workloads if each.note]
    moves = "" if re.search("@[0-9a-f]{40}$", plan.source) else " as it is when a pod starts"
    source = f", trains {plan.source}{moves}" if plan.source else ""
    title = Text(f"{plan.release} in namespace {plan.namespace}{source}", style="bold")
    pods = [_Fitting(table, narrow)] if counted else []
    storage = [_storage_view(plan.storage)] if plan.storage else []
    queued = [Text(_queued(each), overflow="fold") for each in plan.queued]
    advice = [Text(f"! {each}", style="yellow") for each in plan.advice]
    return Group(title, *pods, *uncounted, *storage, *queued, *advice, plan.summary)


def _queued(job: Queued) -> str:
    priority = f" with priority {job.priority_class}" if job.priority_class else ""
    takes = f"{counted(job.pods, 'pod')}, {_resources(job.resources)}"
    return f"{job.kind}/{job.name} waits for queue {job.queue}{priority} and takes of its quota: {takes}"


def _narrow_workload(workload: WorkloadPlan, every_pod: bool) -> RenderableType:
    table = _pods_table(with_resources=False)
    _add_pods(table, workload, every_pod, with_resources=False)
    by_role = {pod.role: _resources(pod.resources) for pod in workload.pods}
    each = [Text(f"each {role}: {resources}") for role, resources in by_role.items() if resources]
    return Group(Text(workload.headline, style="bold"), *each, table)


def _pods_table(with_resources: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("pod and host name", overflow="fold")
    for column in ("role", "rank", "world", *(["resources"] if with_resources else []), "node"):
        table.add_column(column, no_wrap=True)
    return table


def _add_pods(table: Table, workload: WorkloadPlan, every_pod: bool, with_resources: bool) -> None:
    for pod in workload.pods if every_pod else _some(workload.pods):
        more = [f"  … {len(workload.pods) - _SHOWN_PODS} more"]
        table.add_row(*(_pod_row(pod, with_resources) if pod else more))


def _storage_view(storage: Iterable[Storage]) -> RenderableType:
    rows = [
        (f"{each.kind}/{each.name}", each.size, ", ".join(each.access_modes), each.storage_class, each.driver)
        for each in storage
    ]
    return _table(["storage", "size", "access", "class", "driver"], rows)


def differences_view(differences: Sequence[Difference]) -> RenderableType:
    """The differences between plan and cluster: a sentence for each, or for all pods of which it is true."""
    alike: dict[tuple[str, str], list[Difference]] = {}
    for each in differences:
        said = each.sentence.replace(each.pod, "", 1) if each.pod else each.sentence
        alike.setdefault((each.workload, said), []).append(each)
    lines = [f"✗ {first.sentence}{_and_others(others)}" for first, *others in alike.values()]
    left = len(lines) - _SHOWN_CAUSES
    more = [f"✗ and {left} more, which -o json has"] if left > 0 else []
    return Group(*(Text(line, style="red") for line in [*lines[:_SHOWN_CAUSES], *more]))


def _and_others(others: Sequence[Difference]) -> str:
    if len(others) > 1:
        return f" (also {len(others)} more pods, up to {others[-1].pod})"
    return f" (also {others[0].pod})" if others else ""


def diff_view(diffs: Sequence[ObjectDiff]) -> RenderableType:
    """The lines that go and come, object by object."""
    colours = {"+": "green", "-": "red", "@": "cyan"}
    lines = [
        Text(line, style=style, overflow="fold")
        for each in diffs
        for line, style in (
            (each.object, "bold"),
            *((line, colours.get(line[:1], "")) for line in each.lines),
        )
    ]
    return Group(*(lines or [Text("nothing changes")]))


def pods_view(pods: Sequence[ObservedPod], every_pod: bool = False) -> RenderableType:
    """The live pods: a table, or on a narrow console a line each.

    Of many pods, those alike share a line. With ``every_pod`` none does, and each has its reason.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    lines: list[Text] = []
    for column in ("pod", "role", "phase", "ready", "node", *(["why"] if every_pod else [])):
        table.add_column(column, no_wrap=True)
    alike: dict[object, list[ObservedPod]] = {}
    for pod in pods:
        is_folded = len(pods) > _SHOWN_PODS and not every_pod
        state = (pod.workload, pod.role, pod.phase, pod.terminating, pod.ready)
        alike.setdefault(state if is_folded else pod.name, []).append(pod)
    for first, *others in alike.values():
        phase = "Terminating" if first.terminating else first.phase
        nodes = {pod.node for pod in (first, *others) if pod.node}
        node = f"{len(nodes)} nodes" if len(nodes) > 1 else next(iter(nodes), "")
        name = f"{first.name} … {others[-1].name} ({len(others) + 1})" if others else first.name
        why = [first.reason] if every_pod else []
        table.add_row(name, first.role, phase, "yes" if first.ready else "no", node, *why)
        state_words = f"{first.role}, {phase}, {'ready' if first.ready else 'not ready'}"
        lines.append(Text(f"{name}: {state_words}{f', on {node}' if node else ''}", overflow="fold"))
        lines += [Text(f"  {each}", overflow="fold") for each in why if each]
    return _Fitting(table, Group(*lines))


def bandwidth_view(verdict: Verdict) -> RenderableType:
    """The network that was used, and the bus bandwidth beside the expected one."""
    report, asked = verdict.report, verdict.asked
    cards = f", {report.interfaces} interfaces" if report.interfaces is not None else ""
    lines = [
        f"provider {' and '.join(report.providers) or 'not named in the log'}{cards}: "
        f"{'EFA' if report.is_efa else 'not EFA'}",
        f"{report.ranks or '?'} ranks on {report.hosts or '?'} hosts, "
        f"{report.sizes[0].bytes} to {report.sizes[-1].bytes} bytes, {report.wrong} wrong values",
    ]
    if asked:
        lines.append(f"asked for: {asked.nodes} × {asked.type or 'any node'}, {asked.efa} EFA each")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("bus bandwidth, GB/s")
    for column in ("measured", "expected", "line rate"):
        table.add_column(column, justify="right")
    line_rate = _figure(verdict.line_rate)
    table.add_row("average", _figure(report.average), _figure(verdict.expected_average), "")
    table.add_row("maximum", _figure(report.maximum), _figure(verdict.expected_maximum), line_rate)
    remarks = [Text(f"! {remark}", style="yellow") for remark in verdict.remarks]
    return Group(*map(Text, lines), table, *remarks)


def _figure(gigabytes: float | None) -> str:
    return "–" if gigabytes is None else f"{gigabytes:.2f}"


def tools_view(tools: Iterable[ToolStatus]) -> RenderableType:
    """Every pinned tool: its pin, where it was found, its version, and its path where there is room."""
    rows = [
        (each.name, each.pin, each.source, each.version or "", str(each.path or each.note or ""))
        for each in tools
    ]
    columns = ["tool", "pin", "found", "version", "path"]
    narrow = _table(columns[:4], [row[:4] for row in rows])
    return _Fitting(_table(columns, rows), Group(narrow, Text("-o wide shows the paths too")))


def clusters_view(clusters: Iterable[ClusterInfo]) -> RenderableType:
    """The clusters that Bireme made."""
    rows = []
    for info in clusters:
        nodes = ", ".join(f"{name}={count}" for name, count in info.nodes.items())
        rows.append((info.name, info.provider, info.kubernetes, nodes, str(info.kubeconfig)))
    if not rows:
        return Text("there is no cluster: start one with: bireme up")
    return _table(["cluster", "provider", "kubernetes", "nodes", "kubeconfig"], rows)


def releases_view(releases: Sequence[Summary]) -> RenderableType:
    """The releases on a cluster."""
    if not releases:
        return Text("there are no releases: bireme install makes one")
    rows = []
    for each in releases:
        workers = "" if each.planned is None else f"{each.ready}/{each.planned}"
        gpus = str(each.accelerators or "")
        named = each.revision.release, each.revision.namespace, each.revision.chart
        rows.append((*named, each.phase, workers, each.queue, gpus, each.age))
    return _table(["release", "namespace", "chart", "phase", "workers", "queue", "GPUs", "age"], rows)


def history_view(revisions: Iterable[Revision]) -> RenderableType:
    """The revisions of a release, the oldest first."""
    rows = [(str(each.number), each.status, each.chart, each.updated[:19]) for each in revisions]
    return _table(["revision", "status", "chart", "updated"], rows)


def key_view(found: Mapping[str, Any]) -> RenderableType:
    """What is known of a key of a chart's values."""
    words = {"keys": ", ".join(found.get("keys", ()))} if "keys" in found else {}
    facts = [(key, words.get(key) or value) for key, value in found.items() if key not in ("key", "text")]
    lines = [f"{key}: {each if isinstance(each, str) and each else json.dumps(each)}" for key, each in facts]
    return Group(*map(Text, [*filter(None, (found["key"], found["text"])), *lines]))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _some(pods: Sequence[PodPlan]) -> Sequence[PodPlan | None]:
    """All pods, or the first and the last of many with None between."""
    if len(pods) <= _SHOWN_PODS + 1:
        return pods
    return [*pods[: _SHOWN_PODS - 1], None, pods[-1]]


def _pod_row(pod: PodPlan, with_resources: bool) -> list[str]:
    rank = "" if pod.rank is None else str(pod.rank)
    world = ""
    if pod.rank is not None and pod.processes:
        first = pod.rank * pod.processes
        world = f"{first}–{first + pod.processes - 1}" if pod.processes > 1 else str(first)
    host = f" ({pod.hostname or 'no host name'})" if pod.hostname != pod.name else ""
    return [
        f"  {pod.name}{host}",
        pod.role,
        rank,
        world,
        *([_resources(pod.resources)] if with_resources else []),
        pod.nodes.name.replace(" or ", "\nor "),
    ]


def _resources(resources: Mapping[str, str]) -> str:
    return " ".join(f"{name.rsplit('/', 1)[-1]}={amount}" for name, amount in resources.items())


def outcome_view(outcome: ReleaseStatus, every_pod: bool = False) -> RenderableType:
    """What differs from the plan and why, then the live pods; or these, then that all is as planned."""
    from bireme.live.queue_position import sentence

    # Nodes that a DaemonSet is for may come later: that alone is no difference.
    mark, style = ("✗", "red") if outcome.differences else ("!", "yellow")
    causes = [Text(f"{mark} {each}", style=style) for each in outcome.causes]
    notes = [Text(outcome.notes)] if outcome.notes else []
    unknown = [each for each in outcome.plan.workloads if not each.is_known]
    remarks = [Text(f"! {each.headline}", style="yellow") for each in unknown]
    units = {each.name: each.unit for each in outcome.plan.workloads}
    statuses = (worker_status_view(each, units.get(each.job, 1)) for each in outcome.worker_statuses)
    positions = (Text(sentence(each)) for each in outcome.queue_positions if each.state != "waiting")
    runs = (*positions, *statuses, *map(shards_view, outcome.shards))
    said = (*runs, *notes, *remarks, *_lacks(outcome.pods), *_last_words(outcome.pods))
    said += tuple(map(Text, outcome.failures))
    there = [*([pods_view(outcome.pods, every_pod)] if outcome.pods else []), *said]
    if outcome.differences:
        return Group(*causes, differences_view(outcome.differences), *there)
    return Group(*there, *causes, Text(f"✓ as planned: {outcome.plan.summary}", style="green"))


def _last_words(pods: Sequence[ObservedPod]) -> Iterable[Text]:
    """The lines that a failed pod left, such as a traceback; of the first one that left some."""
    said = [pod for pod in pods if "\n" in pod.last_words]
    for pod in said[:1]:
        yield Text(f"{pod.name} said last:", style="bold")
        yield Text(indent(pod.last_words, "  "))


def _lacks(pods: Sequence[ObservedPod]) -> Iterable[Text]:
    """What pods do without, a sentence each."""
    live = [pod for pod in pods if pod.is_live]
    for lack, count in Counter(pod.lack for pod in live if pod.lack).items():
        yield Text(f"! {count} of {len(live)} pods: {lack}", style="yellow")


def worker_status_view(status: WorkerStatus, unit: int = 1) -> RenderableType:
    """A run in one line, for what it waits, and who failed first in the last rounds.

    ``unit``: its workers train in multiples of that.
    """
    units = f" in units of {unit}" if unit > 1 else ""
    line = f"{status.job}: round {status.round}, {status.world} workers{units}"
    if status.pace:
        line += f", {status.pace}"
    causes = ", ".join(f"{cause} {count}" for cause, count in sorted(status.restarts.items()))
    if causes:
        line += f"; restarts: {causes}; {status.lost_steps} steps made again"
    lines = [Text(line, style="bold")]
    if status.spares:
        lines.append(Text(f"  spare: {', '.join(status.spares)}"))
    if status.snapshot:
        lines.append(Text(f"newest snapshot: {status.snapshot}"))
    if status.waits:
        lines.append(Text(f"waits for {status.waits}", style="yellow"))
    lines += [Text(f"  {each}") for each in status.failures[-_SHOWN_FAILURES:]]
    lines += [Text(f"  {each}", style="yellow") for each in status.events[-_SHOWN_FAILURES:]]
    if status.nodes:
        counts = ", ".join(f"{node} {count}" for node, count in status.nodes.items())
        lines.append(Text(f"  first failures by node: {counts}"))
    return Group(*lines)


def timeline_view(run: Timeline) -> RenderableType:
    """The worlds of a run in a table."""
    from bireme.live.timeline import clock, lasted

    columns = ["round", "began (UTC)", "lasted", "workers", "step", "per second", "lost", "why"]
    rows = []
    for world in run.worlds:
        step = str(world.steps[-1][1]) if world.steps else ""
        lost = f"{world.lost_steps} steps, {world.lost_seconds:.0f} s" if world.lost_seconds else ""
        if world.blocked_seconds:
            lost += f"{lost and ', '}{world.blocked_seconds:.1f} s in snapshots"
        times = clock(world.begin), lasted(world.end - world.begin)
        pace = step, f"{world.steps_per_second:.2f}", lost
        rows.append((str(world.round), *times, str(len(world.seats)), *pace, world.why))
    return Group(Text(run.summary, style="bold"), _table(columns, rows))


def cause_view(cause: Cause, silent: Sequence[str]) -> RenderableType:
    """Why a run makes no step, what shows it, and what to do."""
    sure = "" if cause.certain else "probably: "
    shown = [Text(f"  {each}") for each in cause.evidence]
    quiet = [Text(f"no answer: {', '.join(silent[:_SHOWN_PODS])}", style="yellow")] if silent else []
    return Group(Text(sure + cause.sentence, style="bold"), *shown, Text(f"→ {cause.remedy}"), *quiet)


def shards_view(shards: Shards) -> RenderableType:
    """A dataset's pass in one line, its trainers in a table, and what was given up."""
    counts = f"{shards.todo} todo, {shards.pending} pending, {shards.done} done, {len(shards.failed)} failed"
    state = "over" if shards.is_over else f"pass {shards.number} of {shards.passes}"
    line = f"shards of {shards.dataset}: {state}: {counts}, {shards.redispatched} dispatched again"
    rows = [
        (each.name, str(each.done), f"{each.per_second:.2f}", ", ".join(each.in_hand))
        for each in shards.trainers
    ]
    table = _table(["trainer", "done", "per second", "has in hand"], rows)
    given_up = [Text(f"given up: {name}", style="red") for name in shards.failed]
    return Group(Text(line, style="bold"), *([table] if shards.trainers else []), *given_up)
