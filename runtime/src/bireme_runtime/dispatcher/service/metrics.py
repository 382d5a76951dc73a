"""The dispatcher's metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("todo", "pending", "done", "failed")


class _Page:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def family(self, name: str, metric_type: str, description: str) -> None:
        self.lines += [f"# HELP {name} {description}", f"# TYPE {name} {metric_type}"]

    def sample(self, name: str, value: float, **labels: str) -> None:
        text = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        self.lines.append(f"{name}{{{text}}} {value}" if text else f"{name} {value}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def text(report: Mapping[str, Any] | None, leads: bool, terms: int, requests: Mapping[str, int]) -> str:
    """The metrics of one replica. `report` is the coordinator's, and None while the replica does not lead."""
    page = _Page()
    page.family("bireme_dispatcher_leader", "gauge", "1 while this replica leads.")
    page.sample("bireme_dispatcher_leader", int(leads))
    page.family("bireme_dispatcher_terms_total", "counter", "How often this replica became the leader.")
    page.sample("bireme_dispatcher_terms_total", terms)
    page.family("bireme_dispatcher_requests_total", "counter", "Requests to this replica.")
    for verb, count in sorted(requests.items()):
        page.sample("bireme_dispatcher_requests_total", count, request=verb)
    if report is not None:
        _coordinator_families(page, report)
    return "\n".join(page.lines) + "\n"


def _coordinator_families(page: _Page, report: Mapping[str, Any]) -> None:
    page.family("bireme_dispatcher_commit_seconds", "summary", "Duration of transactions of etcd.")
    page.sample("bireme_dispatcher_commit_seconds_sum", round(report["commitSeconds"], 6))
    page.sample("bireme_dispatcher_commit_seconds_count", report["commits"])
    page.family("bireme_dispatcher_reads_total", "counter", "How often all state was read from etcd.")
    page.sample("bireme_dispatcher_reads_total", report["reloads"])
    datasets = report["datasets"]
    page.family("bireme_dispatcher_shards", "gauge", "Shards of the pass by state.")
    for each in datasets:
        for state in _STATES:
            page.sample("bireme_dispatcher_shards", each[state], dataset=each["dataset"], state=state)
    page.family("bireme_dispatcher_pass", "gauge", "Number of the pass, from 0.")
    for each in datasets:
        page.sample("bireme_dispatcher_pass", each["pass"], dataset=each["dataset"])
    page.family("bireme_dispatcher_trainers", "gauge", "Trainers with a lease.")
    for each in datasets:
        page.sample("bireme_dispatcher_trainers", len(each["trainers"]), dataset=each["dataset"])
    page.family("bireme_dispatcher_redispatched_total", "counter", "Shards that were returned, by reason.")
    for each in datasets:
        for reason, count in each["redispatched"].items():
            name = "bireme_dispatcher_redispatched_total"
            page.sample(name, count, dataset=each["dataset"], reason=reason)
    _trainers(page, datasets)


def _trainers(page: _Page, datasets: list[Mapping[str, Any]]) -> None:
    trainers = [(each["dataset"], trainer) for each in datasets for trainer in each["trainers"]]
    page.family("bireme_dispatcher_acknowledged_total", "counter", "Shards that a trainer has acknowledged.")
    for dataset, trainer in trainers:
        name = "bireme_dispatcher_acknowledged_total"
        page.sample(name, trainer["done"], dataset=dataset, trainer=trainer["trainer"])
    page.family(
        "bireme_dispatcher_shards_per_second", "gauge", "Shards per second of a trainer, a moving average."
    )
    for dataset, trainer in trainers:
        name = "bireme_dispatcher_shards_per_second"
        page.sample(name, trainer["perSecond"], dataset=dataset, trainer=trainer["trainer"])
