"""A run as a picture: its worlds, workers, steps and throughput over time, and why each world began."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from bireme.core.drawing import (
    FILLS,
    PLOT_HEIGHT,
    PLOT_LEFT,
    PLOT_RIGHT,
    Block,
    curve,
    document,
    frame,
    heading,
    height,
    line,
    short,
    text,
)
from bireme.live.timeline import Timeline, World, clock, lasted

_ROW = 20
_SHOWN_WORKERS = 24
_SHOWN_WORLDS = 20
_TICKS = 5
_COLOURS = dict(zip(("began", "lost", "joined", "hang", "restarted", "failed"), FILLS, strict=True))
_MEANINGS = {
    "began": "the run began",
    "failed": "a rank failed",
    "hang": "no step for too long",
    "lost": "a worker was lost",
    "joined": "a worker joined",
    "restarted": "started again",
}
# Pixels that a label needs, so that two do not overlap.
_NUMBER, _NAME, _SENTENCE = 22, 22, 118


@dataclass(frozen=True)
class _Axis:
    """Time from left to right."""

    begin: float
    end: float

    def at(self, when: float) -> float:
        share = (when - self.begin) / (self.end - self.begin)
        return round(PLOT_LEFT + min(1.0, max(0.0, share)) * (PLOT_RIGHT - PLOT_LEFT), 1)


def svg(run: Timeline) -> str:
    """``run`` as an SVG document of its own, readable on light and dark pages. Long runs are shortened."""
    if not run.worlds:
        return document(run.summary, [line(run.summary, "head")])
    axis = _Axis(run.worlds[0].begin, max(run.now, run.worlds[0].begin + 1))
    title = text(0, 14, short(run.job, 80), "title"), text(0, 34, short(run.summary, _SENTENCE), "soft")
    blocks = [Block(title, 50), _worlds(run, axis), _legend(run)]
    blocks += [heading("workers"), *_workers(run, axis)]
    if any(world.steps for world in run.worlds):
        blocks += [heading("steps"), _steps(run, axis), heading("steps per second"), _rates(run, axis)]
    blocks += [_times(axis), heading("why each world began"), *_reasons(run, axis)]
    return document(run.summary, blocks)


def _colour(world: World) -> str:
    return _COLOURS.get(world.cause, FILLS[0])


def _bar(axis: _Axis, begin: float, end: float, y: float, height: float, fill: str, said: str) -> str:
    x = axis.at(begin)
    # Less a pixel, so that two worlds of one colour are two.
    width = max(1.0, round(axis.at(end) - x - 1, 1))
    x = min(x, PLOT_RIGHT - width)
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}">'
        f"<title>{escape(said, quote=False)}</title></rect>"
    )


def _worlds(run: Timeline, axis: _Axis) -> Block:
    """One bar for each world, with its round where there is room."""
    lines = [text(0, 14, "worlds", "head")]
    for world in run.worlds:
        said = (
            f"round {world.round}: {len(world.seats)} workers, {lasted(world.end - world.begin)}; {world.why}"
        )
        lines.append(_bar(axis, world.begin, world.end, 0, 18, _colour(world), said))
        left, right = axis.at(world.begin), axis.at(world.end)
        if right - left >= _NUMBER:
            lines.append(text((left + right) / 2, 13, str(world.round), "rank"))
    return Block(tuple(lines), 26)


def _legend(run: Timeline) -> Block:
    """The colour of each cause that the run has, with its meaning."""
    lines, x = [], float(PLOT_LEFT)
    for cause in dict.fromkeys(world.cause for world in run.worlds if world.cause in _COLOURS):
        lines.append(f'<rect x="{x:g}" y="2" width="10" height="10" rx="2" fill="{_COLOURS[cause]}"/>')
        lines.append(text(x + 16, 12, _MEANINGS[cause], "soft"))
        x += 34 + 7.2 * len(_MEANINGS[cause])
    return Block(tuple(lines), 20)


def _workers(run: Timeline, axis: _Axis) -> Iterator[Block]:
    """A row for each worker on each of its nodes; those that came or went first, if there are too many."""
    rows: dict[tuple[str, str], list[int]] = {}
    for number, world in enumerate(run.worlds):
        for seat in world.seats:
            rows.setdefault((seat.worker, seat.node), []).append(number)
    names = sorted(rows, key=_order)
    if len(names) > _SHOWN_WORKERS:
        unsteady = sorted(names, key=lambda each: (len(rows[each]) == len(run.worlds), _order(each)))
        names = sorted(unsteady[:_SHOWN_WORKERS], key=_order)
    for worker, node in names:
        who = f"{worker} on {node.partition('.')[0]}" if node else worker
        lines = [text(0, 12, short(who, _NAME))]
        for number in rows[worker, node]:
            world = run.worlds[number]
            said = f"worker {who} in round {world.round}"
            lines.append(_bar(axis, world.begin, world.end, 1, _ROW - 6, _colour(world), said))
        yield Block(tuple(lines), _ROW)
    if len(rows) > len(names):
        yield line(f"… {len(rows) - len(names)} more")


def _order(row: tuple[str, str]) -> tuple[int, str, str]:
    return (int(row[0]) if row[0].isdigit() else 1 << 30, *row)


def _steps(run: Timeline, axis: _Axis) -> Block:
    """The step of each world over time; what restarts have cost in another colour."""
    most = max(step for world in run.worlds for _, step in world.steps) or 1
    lines = frame(most, ",d")
    before: tuple[float, int] | None = None
    for world in run.worlds:
        points = [(axis.at(when), height(step, most)) for when, step in world.steps]
        if before and world.steps:
            x, y = axis.at(before[0]), height(before[1], most)
            lines.append(
                f'<line class="lost" stroke-width="1.5" stroke-dasharray="3 2" x1="{x:g}" y1="{y:g}"'
                f' x2="{points[0][0]:g}" y2="{points[0][1]:g}"/>'
            )
        lines += curve(points, _colour(world))
        before = world.steps[-1] if world.steps else before
    return Block(tuple(lines), PLOT_HEIGHT + 12)


def _rates(run: Timeline, axis: _Axis) -> Block:
    """Steps per second between the samples of each world."""
    curves: list[tuple[str, list[tuple[float, float]]]] = []
    for world in run.worlds:
        pairs = zip(world.steps, world.steps[1:], strict=False)
        rates = [(b[0], max(0.0, (b[1] - a[1]) / (b[0] - a[0]))) for a, b in pairs if b[0] > a[0]]
        curves.append((_colour(world), rates))
    most = max((rate for _, rates in curves for _, rate in rates), default=0.0) or 1.0
    lines = frame(most, ".2f")
    for colour, rates in curves:
        lines += curve([(axis.at(when), height(rate, most)) for when, rate in rates], colour)
    return Block(tuple(lines), PLOT_HEIGHT + 12)


def _times(axis: _Axis) -> Block:
    """The time that has passed at some points, and when the first one was."""
    lines = [text(0, 14, f"{clock(axis.begin)}", "soft")]
    for tick in range(1, _TICKS + 1):
        when = axis.begin + (axis.end - axis.begin) * tick / _TICKS
        style = "end soft" if tick == _TICKS else "middle soft"
        lines.append(text(axis.at(when), 14, f"+{lasted(when - axis.begin)}", style))
    return Block(tuple(lines), 26)


def _reasons(run: Timeline, axis: _Axis) -> Iterator[Block]:
    if len(run.worlds) > _SHOWN_WORLDS:
        yield line(f"… {len(run.worlds) - _SHOWN_WORLDS} earlier")
    for world in run.worlds[-_SHOWN_WORLDS:]:
        why = world.why
        if world.lost_steps or world.lost_seconds >= 0.5:
            why = f"{world.lost_steps} steps and {lasted(world.lost_seconds)} lost: {why}"
        full = f"+{lasted(world.begin - axis.begin)}, round {world.round}: {why}"
        parts = wrap(full, _SENTENCE, max_lines=2, placeholder=" …", subsequent_indent="  ")
        words = "".join(text(0, 13 + 16 * place, part) for place, part in enumerate(parts))
        said = f"<title>{escape(full, quote=False)}</title>"
        yield Block((f"<g>{words}{said}</g>",), 16 * len(parts) + 4)
