"""The progress of a running job's shards, which its dispatcher tells through the API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.clusters.api import Api, ApiError
from bireme.core.labels import COMPONENT_LABEL
from bireme.core.manifests import Manifest

DISPATCHER = "dispatcher"
_SECONDS = 5.0


@dataclass(frozen=True)
class TrainerWork:
    """A trainer: the shards it works on, how many it has done in all, and its present rate per second."""

    name: str
    in_hand: tuple[str, ...]
    done: int
    per_second: float


@dataclass(frozen=True)
class Shards:
    """One dataset in its current pass, counted from 1. ``failed`` names the shards given up in this pass."""

    dataset: str
    number: int
    passes: int
    todo: int
    pending: int
    done: int
    failed: tuple[str, ...]
    redispatched: int
    is_over: bool
    trainers: tuple[TrainerWork, ...]

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Shards:
        """From the dispatcher's status (docs/dispatcher.md)."""
        trainers = tuple(
            TrainerWork(each["trainer"], tuple(each["inHand"]), each["done"], each["perSecond"])
            for each in status["trainers"]
        )
        return cls(
            status["dataset"], status["pass"] + 1, status["passes"],
            status["todo"], status["pending"], status["done"],
            tuple(status["failedShards"]), sum(status["redispatched"].values()), status["over"], trainers,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for ``-o json``."""
        return {
            "dataset": self.dataset,
            "pass": self.number,
            "passes": self.passes,
            "todo": self.todo,
            "pending": self.pending,
            "done": self.done,
            "failed": list(self.failed),
            "redispatched": self.redispatched,
            "over": self.is_over,
            "trainers": [
                {
                    "name": each.name,
                    "inHand": list(each.in_hand),
                    "done": each.done,
                    "perSecond": each.per_second,
                }
                for each in self.trainers
            ],
        }


def shards(api: Api, namespace: str, manifests: Iterable[Manifest]) -> tuple[Shards, ...]:
    """The datasets of a release's dispatcher; nothing without one, or while it does not answer."""
    services = [
        item
        for item in manifests
        if item.kind == "Service" and item.labels.get(COMPONENT_LABEL) == DISPATCHER
    ]
    found: list[Shards] = []
    for service in services:
        port = service["spec"]["ports"][0]["port"]
        try:
            status = api.proxied(namespace, service.name, port, "v1/status", _SECONDS)
        except ApiError:
            # The differences already tell what is wrong with its pods.
            continue
        found += [Shards.of(each) for each in status.get("datasets", ()) if each["defined"]]
    return tuple(found)
