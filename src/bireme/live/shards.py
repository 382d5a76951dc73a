"""The progress of a running job's shards, which its dispatcher tells through the API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bireme.core.labels import COMPONENT_LABEL
from bireme.core.manifests import Manifest
from bireme.core.plain import Plain
from bireme.live.pod_http import Ask

DISPATCHER = "dispatcher"


@dataclass(frozen=True)
class TrainerWork(Plain):
    """A trainer: the shards it works on, how many it has done in all, and its present rate per second."""

    name: str
    in_hand: tuple[str, ...]
    done: int
    per_second: float


@dataclass(frozen=True)
class Shards(Plain):
    """One dataset in its current pass, counted from 1. ``failed`` names the shards given up in this pass."""

    names: ClassVar[Mapping[str, str]] = {"number": "pass", "is_over": "over"}

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


def shards(ask: Ask, namespace: str, manifests: Iterable[Manifest]) -> tuple[Shards, ...]:
    """The datasets of a release's dispatcher, whose Service ``ask`` asks; nothing while it is silent."""
    found: list[Shards] = []
    for item in manifests:
        if item.kind == "Service" and item.labels.get(COMPONENT_LABEL) == DISPATCHER:
            status = ask(namespace, item, item["spec"]["ports"][0]["port"], "v1/status") or {}
            found += [Shards.of(each) for each in status.get("datasets", ()) if each["defined"]]
    return tuple(found)
