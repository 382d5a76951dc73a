"""The plan as a picture: nodes with their accelerators, each filled by the world rank that uses it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

from bireme.topology import NodePlan, Plan
from bireme.workloads import PodPlan, WorkloadPlan

_WIDTH = 960
_MARGIN = 24
_COLUMNS = 4
_GAP = 12
_BOX = (_WIDTH - 2 * _MARGIN - (_COLUMNS - 1) * _GAP) // _COLUMNS
_SLOT = 22
_SLOTS_PER_ROW = 8
_LINE = 17
_SHOWN_NODES = 16
_SHOWN_PODS = 3
_SHOWN_ASIDE = 8

# One fill per workload, dark enough for white digits on light and dark pages.
_FILLS = ("#2f6db5", "#b3541e", "#3d7f45", "#8250a8", "#9a6b00", "#b0396b")
_STYLE = """
    text { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
    .page { fill: #ffffff } .node { fill: #f6f8fa; stroke: #8c959f } .free { fill: none; stroke: #8c959f }
    .title { font-size: 16px; font-weight: 600 } .head { font-weight: 600 } .soft { fill: #57606a }
    .rank { font-size: 10px; fill: #ffffff; text-anchor: middle }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .page { fill: #0d1117 } .node { fill: #161b22; stroke: #6e7681 }
      .free { stroke: #6e7681 } .soft { fill: #9da7b1 } .rank { fill: #ffffff }
    }
"""


@dataclass(frozen=True)
class _Block:
    """A piece of the picture: its lines of SVG, with y from its own top, and its height in pixels."""

    lines: tuple[str, ...]
    height: int


def svg(plan: Plan) -> str:
    """``plan`` as an SVG document of its own, readable on light and dark pages.

    Nodes are grouped by instance type. Each accelerator is a square with the world rank that trains on it, if
    the plan knows the processes per pod. Pods that are bound to no type follow. Long plans are shortened.
    """
    fills = {
        workload.name: _FILLS[number % len(_FILLS)]
        for number, workload in enumerate(
            sorted(plan.workloads, key=lambda each: not _accelerators(each.pods))
        )
    }
    owners = {pod.name: fills[workload.name] for workload in plan.workloads for pod in workload.pods}
    blocks = [_title(plan, fills)]
    for instance_type, group in groupby(plan.placement, key=lambda node: node.type):
        nodes = list(group)
        blocks.append(_heading(f"{len(nodes)} × {instance_type}"))
        blocks += _rows([_node(node, number, owners) for number, node in enumerate(nodes[:_SHOWN_NODES])])
        if len(nodes) > _SHOWN_NODES:
            blocks.append(_line(f"… {len(nodes) - _SHOWN_NODES} more"))
    placed = {pod.name for node in plan.placement for pod in node.pods}
    aside = [pod for pod in plan.pods if pod.name not in placed]
    if aside:
        blocks.append(_heading("wherever there is room"))
        blocks += _rows([_aside(pod, owners[pod.name]) for pod in aside[:_SHOWN_ASIDE]])
        if len(aside) > _SHOWN_ASIDE:
            blocks.append(_line(f"… {len(aside) - _SHOWN_ASIDE} more"))
    blocks.append(_line(_totals(plan), "head"))
    return _document(plan, blocks)


def _document(plan: Plan, blocks: Iterable[_Block]) -> str:
    body: list[str] = []
    top = _MARGIN
    for block in blocks:
        body += [
            f'  <g transform="translate({_MARGIN} {top})">',
            *(f"    {line}" for line in block.lines),
            "  </g>",
        ]
        top += block.height
    height = top + _MARGIN // 2
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img">'
    )
    title = f"  <title>{escape(f'Plan of {plan.release}: {_totals(plan)}')}</title>"
    page = f'  <rect class="page" width="{_WIDTH}" height="{height}" rx="8"/>'
    return "\n".join([head, title, f"  <style>{_STYLE}  </style>", page, *body, "</svg>"]) + "\n"


def _text(x: int, y: int, text: str, style: str = "") -> str:
    css = f' class="{style}"' if style else ""
    return f'<text x="{x}" y="{y}"{css}>{escape(text)}</text>'


def _square(x: int, y: int, fill: str | None) -> str:
    paint = f'fill="{fill}"' if fill else 'class="free"'
    return f'<rect x="{x}" y="{y}" width="{_SLOT - 3}" height="{_SLOT - 3}" rx="3" {paint}/>'


def _line(text: str, style: str = "soft") -> _Block:
    return _Block((_text(0, 14, text, style),), 26)


def _heading(text: str) -> _Block:
    return _Block((_text(0, 20, text, "head"),), 30)


def _title(plan: Plan, fills: dict[str, str]) -> _Block:
    lines = [_text(0, 14, f"{plan.release} in namespace {plan.namespace}", "title")]
    for number, workload in enumerate(plan.workloads):
        y = 26 + number * (_SLOT + 2)
        lines += [_square(0, y, fills[workload.name]), _text(_SLOT + 4, y + 14, _caption(workload))]
    return _Block(tuple(lines), 30 + len(plan.workloads) * (_SLOT + 2))


def _caption(workload: WorkloadPlan) -> str:
    if workload.note:
        types = "" if workload.instance_types is None else f" of {len(workload.instance_types)} types"
        return f"{workload.kind} {workload.name}: {workload.note}{types}"
    pods = "pod" if workload.replicas == 1 else "pods"
    text = f"{workload.kind} {workload.name}: {workload.replicas} {workload.role} {pods}"
    if workload.min_replicas != workload.max_replicas:
        text += f", elastic from {workload.min_replicas} to {workload.max_replicas}"
    return f"{text}, suspended" if workload.suspended else text


def _rows(boxes: Sequence[_Block]) -> Iterator[_Block]:
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
        yield _Block(tuple(lines), height + _GAP)


def _node(node: NodePlan, number: int, owners: dict[str, str]) -> _Block:
    """One node: its accelerators in rows, then its pods by name."""
    slots: list[tuple[str | None, str]] = []
    for pod in node.pods:
        slots += [(owners[pod.name], rank) for rank in _world_ranks(pod)]
    slots += [(None, "")] * max(0, node.accelerators - len(slots))
    efa = sum(pod.efa for pod in node.pods)
    lines = [_text(10, 20, f"node {number + 1}" + (f", {efa} EFA" if efa else ""), "soft")]
    for place, (fill, rank) in enumerate(slots):
        x, y = 10 + place % _SLOTS_PER_ROW * (_SLOT + 2), 30 + place // _SLOTS_PER_ROW * (_SLOT + 2)
        lines.append(_square(x, y, fill))
        if rank:
            lines.append(_text(x + (_SLOT - 3) // 2, y + 13, rank, "rank"))
    top = 30 + math.ceil(len(slots) / _SLOTS_PER_ROW) * (_SLOT + 2)
    names = [pod.name for pod in node.pods[:_SHOWN_PODS]]
    if len(node.pods) > _SHOWN_PODS:
        names.append(f"… {len(node.pods) - _SHOWN_PODS} more")
    lines += [_text(10, top + 13 + place * _LINE, _short(name)) for place, name in enumerate(names)]
    return _Block(tuple(lines), top + len(names) * _LINE + 8)


def _aside(pod: PodPlan, fill: str) -> _Block:
    asks = ", ".join(f"{amount} {name}" for name, amount in pod.resources.items()) or "no requests"
    lines = (
        _square(10, 9, fill),
        _text(10 + _SLOT + 4, 23, _short(pod.name)),
        _text(10, 45, _short(asks), "soft"),
    )
    return _Block(lines, 56)


def _short(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:29]}…"


def _world_ranks(pod: PodPlan) -> list[str]:
    """The world rank on each accelerator of ``pod``; "" where it has not one process per accelerator."""
    if pod.rank is None or pod.processes != pod.accelerators:
        return [""] * pod.accelerators
    return [str(pod.rank * pod.processes + local) for local in range(pod.processes)]


def _accelerators(pods: Iterable[PodPlan]) -> int:
    return sum(pod.accelerators for pod in pods)


def _totals(plan: Plan) -> str:
    totals = plan.totals
    nodes = ", ".join(f"{count} × {name}" for name, count in totals.nodes.items())
    counts = f"{totals.pods} pods, {totals.accelerators} accelerators, {totals.efa} EFA interfaces"
    return f"{counts} on {nodes}" if nodes else counts
