"""A trace on a cluster with static jobs and with elastic ones: figures, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from bireme.autoscale.simulation import Outcome, Settings, simulate
from bireme.autoscale.trace import TracedJob
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
    text,
)
from bireme.live.timeline import lasted

STATIC, ELASTIC = "static", "elastic"


@dataclass(frozen=True)
class Comparison:
    """What became of the same trace both ways, and its name."""

    trace: str
    settings: Settings
    outcomes: Mapping[str, Outcome]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; times are in seconds, shares between 0 and 1."""
        return {
            "trace": self.trace,
            "settings": asdict(self.settings),
            **{way: figures(outcome) for way, outcome in self.outcomes.items()},
        }


def compare(name: str, trace: Sequence[TracedJob], settings: Settings) -> Comparison:
    """Simulate ``trace`` with static gang scheduling, then with elastic jobs."""
    ways = ((STATIC, False), (ELASTIC, True))
    return Comparison(name, settings, {way: simulate(trace, settings, elastic) for way, elastic in ways})


def figures(outcome: Outcome) -> dict[str, Any]:
    """The figures of an outcome."""
    return {
        "jobs": outcome.jobs,
        "utilisation": round(outcome.utilisation, 4),
        "usefulWork": round(outcome.useful, 4),
        "waitingSeconds": _spread(outcome.waiting),
        "finishingSeconds": _spread(outcome.finishing),
        "preempted": outcome.preempted,
        "grown": outcome.grown,
        "shrunk": outcome.shrunk,
        "nodesLost": outcome.failures,
        "restartedByNodes": outcome.restarted,
        "seconds": round(outcome.end),
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "mean": round(fmean(ordered), 1),
        "median": round(median(ordered), 1),
        "p90": round(ordered[min(len(ordered) * 9 // 10, len(ordered) - 1)], 1),
    }


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """The figures for people: a name, and the static and the elastic cluster's."""
    both = [figures(comparison.outcomes[way]) for way in (STATIC, ELASTIC)]

    def percent(key: str) -> list[str]:
        return [f"{each[key] * 100:.1f} %" for each in both]

    def seconds(key: str, part: str) -> list[str]:
        return [lasted(each[key][part]) for each in both]

    return [
        ("places in use", *percent("utilisation")),
        ("useful work", *percent("usefulWork")),
        ("wait for the first worker, mean", *seconds("waitingSeconds", "mean")),
        ("wait for the first worker, nine of ten at most", *seconds("waitingSeconds", "p90")),
        ("from submission to end, mean", *seconds("finishingSeconds", "mean")),
        ("from submission to end, median", *seconds("finishingSeconds", "median")),
        ("jobs stopped for more urgent ones", *(str(each["preempted"]) for each in both)),
        ("times that jobs grew", *(str(each["grown"]) for each in both)),
        ("times that jobs shrank", *(str(each["shrunk"]) for each in both)),
        ("restarts by lost nodes", *(str(each["restartedByNodes"]) for each in both)),
        ("nodes lost", *(str(each["nodesLost"]) for each in both)),
    ]


def svg(comparison: Comparison) -> str:
    """Busy places and waiting jobs over time, both ways, as an SVG document."""
    settings = comparison.settings
    title = f"{comparison.trace} on {settings.nodes} nodes with {settings.places} workers each"
    # After the last submission the cluster only empties.
    end = max(min(outcome.window for outcome in comparison.outcomes.values()), 1.0)
    legend = Block(
        (
            text(0, 14, title, "title"),
            *(
                f'<rect x="{200 * number}" y="26" width="12" height="12" rx="2" fill="{FILLS[number]}"/>'
                for number in range(2)
            ),
            *(
                text(200 * number + 18, 36, f"{way} jobs", "soft")
                for number, way in enumerate((STATIC, ELASTIC))
            ),
        ),
        56,
    )
    capacity = settings.nodes * settings.places
    queues = {way: outcome.queued for way, outcome in comparison.outcomes.items()}
    longest = max((count for points in queues.values() for when, count in points if when <= end), default=0)
    busy = {way: outcome.busy for way, outcome in comparison.outcomes.items()}
    return document(
        title,
        [
            legend,
            heading("places in use"),
            _plot(busy, end, capacity),
            heading("jobs that wait"),
            _plot(queues, end, max(longest, 1)),
            Block((text(PLOT_LEFT, 14, "0", "soft"), text(PLOT_RIGHT, 14, lasted(end), "end soft")), 30),
            *(
                line(f"{name}: {static} static, {elastic} elastic")
                for name, static, elastic in rows(comparison)[:5]
            ),
        ],
    )


def _plot(curves: Mapping[str, Sequence[tuple[float, int]]], end: float, most: float) -> Block:
    lines = frame(most, ",d")
    for number, way in enumerate((STATIC, ELASTIC)):
        points = [
            (round(PLOT_LEFT + when / end * (PLOT_RIGHT - PLOT_LEFT), 1), height(count, most))
            for when, count in curves[way]
            if when <= end
        ]
        lines += curve(points, FILLS[number])
    return Block(tuple(lines), PLOT_HEIGHT + 12)
