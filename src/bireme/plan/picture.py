"""The plan as a picture: nodes with their accelerators, each filled by the world rank that uses it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from bireme.core.drawing import FILLS, MARGIN, WIDTH, Block, document, heading, line, short, text
from bireme.plan.topology import NodePlan, Plan
from bireme.plan.workloads.model import PodPlan

_COLUMNS = 4
_GAP = 12
_BOX = (WIDTH - 2 * MARGIN - (_COLUMNS - 1) * _GAP) // _COLUMNS
_SLOT = 22
_SLOTS_PER_ROW = 8
_LINE = 17
_SHOWN_NODES = 16
_SHOWN_PODS = 3
_SHOWN_ASIDE = 8


def svg(plan: Plan) -> str:
    """``plan`` as an SVG document of its own, readable on light and dark pages.

    Nodes are grouped by instance type. Each accelerator is a square with the world rank that trains on it, if
    the plan knows the processes per pod. Pods that are bound to no type follow. Long plans are shortened.
    """
    fills = {
        workload.name: FILLS[number % len(FILLS)]
        for number, workload in enumerate(
            sorted(plan.workloads, key=lambda each: not any(pod.accelerators for pod in each.pods))
        )
    }
    owners = {pod.name: fills[workload.name] for workload in plan.workloads for pod in workload.pods}
    blocks = [_title(plan, fills)]
    for instance_type, group in groupby(plan.placement, key=lambda node: node.type):
        nodes = list(group)
        blocks.append(heading(f"{len(nodes)} × {instance_type}"))
        blocks += _rows([_node(node, number, owners) for number, node in enumerate(nodes[:_SHOWN_NODES])])
        if len(nodes) > _SHOWN_NODES:
            blocks.append(line(f"… {len(nodes) - _SHOWN_NODES} more"))
    placed = {pod.name for node in plan.placement for pod in node.pods}
    aside = [pod for pod in plan.pods if pod.name not in placed]
    if aside:
        blocks.append(heading("wherever there is room"))
        blocks += _rows([_aside(pod, owners[pod.name]) for pod in aside[:_SHOWN_ASIDE]])
        if len(aside) > _SHOWN_ASIDE:
            blocks.append(line(f"… {len(aside) - _SHOWN_ASIDE} more"))
    blocks.append(line(plan.summary, "head"))
    return document(f"Plan of {plan.release}: {plan.summary}", blocks)


def _square(x: int, y: int, fill: str | None) -> str:
    paint = f'fill="{fill}"' if fill else 'class="free"'
    return f'<rect x="{x}" y="{y}" width="{_SLOT - 3}" height="{_SLOT - 3}" rx="3" {paint}/>'


def _title(plan: Plan, fills: dict[str, str]) -> Block:
    lines = [text(0, 14, f"{plan.release} in namespace {plan.namespace}", "title")]
    for number, workload in enumerate(plan.workloads):
        y = 26 + number * (_SLOT + 2)
        lines += [_square(0, y, fills[workload.name]), text(_SLOT + 4, y + 14, short(workload.headline, 120))]
    return Block(tuple(lines), 30 + len(plan.workloads) * (_SLOT + 2))


def _rows(boxes: Sequence[Block]) -> Iterator[Block]:
    """Boxes side by side, ``_COLUMNS`` in a row, each row as high as its highest."""
    for start in range(0, len(boxes), _COLUMNS):
        row = boxes[start : start + _COLUMNS]
        height = max(box.height for box in row)
        lines: list[str] = []
        for column, box in enumerate(row):
            lines.append(f'<g transform="translate({column * (_BOX + _GAP)} 0)">')
            lines.append(f'  <rect class="node" width="{_BOX}" height="{height}" rx="6"/>')
            lines += [f"  {line}" for line in box.lines]
            lines.append("</g>")
        yield Block(tuple(lines), height + _GAP)


def _node(node: NodePlan, number: int, owners: dict[str, str]) -> Block:
    """One node: its accelerators in rows, then its pods by name."""
    slots: list[tuple[str | None, str]] = []
    for pod in node.pods:
        slots += [(owners[pod.name], rank) for rank in _world_ranks(pod)]
    slots += [(None, "")] * max(0, node.accelerators - len(slots))
    efa = sum(pod.efa for pod in node.pods)
    lines = [text(10, 20, f"node {number + 1}" + (f", {efa} EFA" if efa else ""), "soft")]
    for place, (fill, rank) in enumerate(slots):
        x, y = 10 + place % _SLOTS_PER_ROW * (_SLOT + 2), 30 + place // _SLOTS_PER_ROW * (_SLOT + 2)
        lines.append(_square(x, y, fill))
        if rank:
            lines.append(text(x + (_SLOT - 3) // 2, y + 13, rank, "rank"))
    top = 30 + math.ceil(len(slots) / _SLOTS_PER_ROW) * (_SLOT + 2)
    names = [pod.name for pod in node.pods[:_SHOWN_PODS]]
    if len(node.pods) > _SHOWN_PODS:
        names.append(f"… {len(node.pods) - _SHOWN_PODS} more")
    lines += [text(10, top + 13 + place * _LINE, short(name)) for place, name in enumerate(names)]
    return Block(tuple(lines), top + len(names) * _LINE + 8)


def _aside(pod: PodPlan, fill: str) -> Block:
    asks = ", ".join(f"{amount} {name}" for name, amount in pod.resources.items()) or "no requests"
    lines = (
        _square(10, 9, fill),
        text(10 + _SLOT + 4, 23, short(pod.name)),
        text(10, 45, short(asks), "soft"),
    )
    return Block(lines, 56)


def _world_ranks(pod: PodPlan) -> list[str]:
    """The world rank on each accelerator of ``pod``; "" where it has not one process per accelerator."""
    if pod.rank is None or pod.processes != pod.accelerators:
        return [""] * pod.accelerators
    return [str(pod.rank * pod.processes + local) for local in range(pod.processes)]
