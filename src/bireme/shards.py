"""How far the shards of a running job are: what its dispatcher says, asked through the API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.clusters.api import Api, ApiError
from bireme.labels import COMPONENT_LABEL
from bireme.manifests import Manifest

COMPONENT = "dispatcher"
_SECONDS = 5.0


@dataclass(frozen=True)
class TrainerWork:
    """A trainer, the shards it has in hand, and how many it did, in all and per second of late."""

    name: str
    in_hand: tuple[str, ...]
    done: int
    per_second: float


@dataclass(frozen=True)
class Shards:
    """One dataset in its current pass, counted from 1. ``failed`` are the names that were given up in it."""

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
    def of(cls, said: Mapping[str, Any]) -> Shards:
        """From what the dispatcher says (docs/dispatcher.md)."""
        trainers = tuple(
            TrainerWork(each["trainer"], tuple(each["inHand"]), each["done"], each["perSecond"])
            for each in said["trainers"]
        )
        return cls(
            said["dataset"], said["pass"] + 1, said["passes"], said["todo"], said["pending"], said["done"],
            tuple(said["failedShards"]), sum(said["redispatched"].values()), said["over"], trainers,
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
        item for item in manifests if item.kind == "Service" and item.labels.get(COMPONENT_LABEL) == COMPONENT
    ]
    found: list[Shards] = []
    for service in services:
        port = service["spec"]["ports"][0]["port"]
        try:
            said = api.proxied(namespace, service.name, port, "v1/status", _SECONDS)
        except ApiError:
            # The differences say what ails its pods.
            continue
        found += [Shards.of(each) for each in said.get("datasets", ()) if each["defined"]]
    return tuple(found)
