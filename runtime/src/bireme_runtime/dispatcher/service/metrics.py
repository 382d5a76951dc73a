"""The dispatcher's metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("todo", "pending", "done", "failed")
_PREFIX = "bireme_dispatcher_"

Sample = tuple[float, Mapping[str, str]]
"""A value and its labels."""


def text(report: Mapping[str, Any] | None, leads: bool, terms: int, requests: Mapping[str, int]) -> str:
    """The metrics of one replica. `report` is the coordinator's, and None while the replica does not lead."""
    asked = [(count, {"request": verb}) for verb, count in sorted(requests.items())]
    lines = [
        *_family("leader", "1 while this replica leads.", [(int(leads), {})]),
        *_family("terms_total", "How often this replica became the leader.", [(terms, {})]),
        *_family("requests_total", "Requests to this replica.", asked),
        *(_of_leader(report) if report is not None else ()),
    ]
    return "\n".join(lines) + "\n"


def _family(name: str, description: str, samples: Iterable[Sample], kind: str = "") -> Iterator[str]:
    """One metric. Unless another type is given, a name that ends with `_total` is that of a counter."""
    yield f"# HELP {_PREFIX}{name} {description}"
    yield f"# TYPE {_PREFIX}{name} {kind or ('counter' if name.endswith('_total') else 'gauge')}"
    for value, labels in samples:
        words = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        yield f"{_PREFIX}{name}{{{words}}} {value}" if words else f"{_PREFIX}{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_leader(report: Mapping[str, Any]) -> Iterator[str]:
    yield from _family("commit_seconds", "Duration of transactions of etcd.", (), "summary")
    yield f"{_PREFIX}commit_seconds_sum {round(report['commitSeconds'], 6)}"
    yield f"{_PREFIX}commit_seconds_count {report['commits']}"
    yield from _family("reads_total", "How often all state was read from etcd.", [(report["reloads"], {})])
    sets = [(each, {"dataset": each["dataset"]}) for each in report["datasets"]]
    states = [(each[state], {**name, "state": state}) for each, name in sets for state in _STATES]
    yield from _family("shards", "Shards of the pass by state.", states)
    yield from _family("pass", "Number of the pass, from 0.", [(each["pass"], name) for each, name in sets])
    trainers = [(len(each["trainers"]), name) for each, name in sets]
    yield from _family("trainers", "Trainers with a lease.", trainers)
    reasons = [(n, {**name, "reason": why}) for each, name in sets for why, n in each["redispatched"].items()]
    yield from _family("redispatched_total", "Shards that were returned, by reason.", reasons)
    ones = [(one, {**name, "trainer": one["trainer"]}) for each, name in sets for one in each["trainers"]]
    done = [(one["done"], name) for one, name in ones]
    yield from _family("acknowledged_total", "Shards that a trainer has acknowledged.", done)
    rates = [(one["perSecond"], name) for one, name in ones]
    yield from _family("shards_per_second", "Shards per second of a trainer, a moving average.", rates)
