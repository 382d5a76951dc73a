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
        *_family("leader", "gauge", "1 while this replica leads.", [(int(leads), {})]),
        *_family("terms_total", "counter", "How often this replica became the leader.", [(terms, {})]),
        *_family("requests_total", "counter", "Requests to this replica.", asked),
        *(_of_leader(report) if report is not None else ()),
    ]
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, description: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {description}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
    for value, labels in samples:
        words = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        yield f"{_PREFIX}{name}{{{words}}} {value}" if words else f"{_PREFIX}{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_leader(report: Mapping[str, Any]) -> Iterator[str]:
    yield from _family("commit_seconds", "summary", "Duration of transactions of etcd.", ())
    yield f"{_PREFIX}commit_seconds_sum {round(report['commitSeconds'], 6)}"
    yield f"{_PREFIX}commit_seconds_count {report['commits']}"
    reads = "How often all state was read from etcd."
    yield from _family("reads_total", "counter", reads, [(report["reloads"], {})])
    sets = [(each, {"dataset": each["dataset"]}) for each in report["datasets"]]
    states = [(each[state], {**name, "state": state}) for each, name in sets for state in _STATES]
    yield from _family("shards", "gauge", "Shards of the pass by state.", states)
    yield from _family(
        "pass", "gauge", "Number of the pass, from 0.", [(each["pass"], name) for each, name in sets]
    )
    trainers = [(len(each["trainers"]), name) for each, name in sets]
    yield from _family("trainers", "gauge", "Trainers with a lease.", trainers)
    reasons = [(n, {**name, "reason": why}) for each, name in sets for why, n in each["redispatched"].items()]
    yield from _family("redispatched_total", "counter", "Shards that were returned, by reason.", reasons)
    each_trainer = [
        (one, {**name, "trainer": one["trainer"]}) for each, name in sets for one in each["trainers"]
    ]
    done = "Shards that a trainer has acknowledged."
    yield from _family(
        "acknowledged_total", "counter", done, [(one["done"], name) for one, name in each_trainer]
    )
    rate = "Shards per second of a trainer, a moving average."
    yield from _family(
        "shards_per_second", "gauge", rate, [(one["perSecond"], name) for one, name in each_trainer]
    )
