"""What an upgrade would do to a live release, said beforehand: scale, update, replace, refuse, or nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bireme.labels import GENERATED_ANNOTATION, IMMUTABLE_ANNOTATION
from bireme.manifests import Manifest

Action = Literal["nothing", "scale", "update", "replace", "refuse", "add", "remove"]
Identity = tuple[str, str | None, str]

_RUN = re.compile(r"^(?P<base>.+)-r(?P<run>\d+)$")

# The fields of ``spec`` that Kubernetes lets an update change. Completions move with parallelism, and only in
# an Indexed Job (KEP-3715); everything else of a Job's or StatefulSet's spec is immutable.
_MUTABLE: Mapping[str, frozenset[str]] = {
    "Job": frozenset(
        {
            "activeDeadlineSeconds",
            "backoffLimit",
            "completions",
            "parallelism",
            "suspend",
            "ttlSecondsAfterFinished",
        }
    ),
    "StatefulSet": frozenset(
        {
            "minReadySeconds",
            "ordinals",
            "persistentVolumeClaimRetentionPolicy",
            "replicas",
            "revisionHistoryLimit",
            "template",
            "updateStrategy",
        }
    ),
    "PersistentVolumeClaim": frozenset({"resources", "volumeAttributesClassName"}),
}
_IMMUTABLE: Mapping[str, frozenset[str]] = {
    "Deployment": frozenset({"selector"}),
    "DaemonSet": frozenset({"selector"}),
}
_RUNS = frozenset({"Job", "MPIJob"})
_WORKLOADS = frozenset({*_RUNS, "StatefulSet", "Deployment", "DaemonSet"})


@dataclass(frozen=True)
class Change:
    """What happens to one object: ``parts`` change in it; ``before`` and ``after`` count its pods."""

    object: str
    action: Action
    what: str
    parts: tuple[str, ...] = ()
    before: int | None = None
    after: int | None = None

    @property
    def sentence(self) -> str:
        """The change as people read it."""
        return f"{self.object}: {self.what}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for ``-o json``."""
        return {
            "object": self.object,
            "action": self.action,
            "what": self.what,
            "parts": list(self.parts),
            "before": self.before,
            "after": self.after,
        }


@dataclass(frozen=True)
class Changes:
    """All that an upgrade would do, workloads first."""

    changes: tuple[Change, ...]

    @property
    def is_refused(self) -> bool:
        """Whether Kubernetes, or the chart before it, would refuse the upgrade as a whole."""
        return any(change.action == "refuse" for change in self.changes)

    @property
    def replaces_a_run(self) -> bool:
        """Whether a Job gives way to the Job of another run."""
        return any(change.action == "replace" for change in self.changes)

    def sentences(self) -> list[str]:
        """One sentence for each workload, and for each other object that changes."""
        said = [
            change.sentence
            for change in self.changes
            if change.action != "nothing" or change.object.partition("/")[0] in _WORKLOADS
        ]
        return said or ["nothing changes"]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for ``-o json``."""
        return {"refused": self.is_refused, "changes": [change.to_json() for change in self.changes]}


def changes(current: Iterable[Manifest], desired: Iterable[Manifest]) -> Changes:
    """What upgrading a release from ``current`` (its live manifests) to ``desired`` would do.

    Only manifests are looked at, not the cluster: a Job's run is replaced here even while it still trains,
    where the chart asks to stop it first. Hooks are left out.
    """
    live, wanted = _by_identity(current), _by_identity(desired)
    found = [_compare(live[identity], wanted[identity]) for identity in live.keys() & wanted.keys()]
    found += _come_and_go(
        [live[identity] for identity in live.keys() - wanted.keys()],
        [wanted[identity] for identity in wanted.keys() - live.keys()],
    )
    return Changes(tuple(sorted(found, key=_order)))


def _order(change: Change) -> tuple[bool, str]:
    return change.object.partition("/")[0] not in _WORKLOADS, change.object


def _by_identity(manifests: Iterable[Manifest]) -> dict[Identity, Manifest]:
    # The name alone does not do: an upgrade may move an object to another namespace.
    return {(item.kind, item.namespace, item.name): item for item in manifests if not item.is_hook}


def _come_and_go(gone: list[Manifest], come: list[Manifest]) -> Iterator[Change]:
    ended = {base: (job, run) for job in gone if (base := _base(job)) and (run := _run(job))}
    for new in come:
        old = ended.pop(_base(new) or "", None)
        if old is None:
            yield Change(new.identity, "add", "added")
            continue
        gone.remove(old[0])
        before, after = f"r{old[1]}", f"r{_run(new)}"
        what = f"replace: run {before} → {after}; {before} must be stopped first (suspend=true)"
        yield Change(new.identity, "replace", what, (), _pods(old[0]), _pods(new))
    for old_one in gone:
        yield Change(old_one.identity, "remove", "removed")


def _base(job: Manifest) -> str | None:
    found = _RUN.match(job.name) if job.kind in _RUNS else None
    return found["base"] if found else None


def _run(job: Manifest) -> int | None:
    found = _RUN.match(job.name)
    return int(found["run"]) if found else None


def _compare(live: Manifest, wanted: Manifest) -> Change:
    parts = _refused_parts(live, wanted)
    if parts:
        return Change(wanted.identity, "refuse", _refusal(live, parts), parts, _pods(live), _pods(wanted))
    changed = _changed_parts(live, wanted)
    before, after = _pods(live), _pods(wanted)
    said = []
    if before != after:
        said.append(f"scale in place {before} → {after}")
    if changed:
        said.append(f"update in place ({', '.join(changed)})")
    action: Action = "scale" if before != after else "update" if changed else "nothing"
    return Change(wanted.identity, action, ", ".join(said) or "nothing", changed, before, after)


def _refusal(live: Manifest, parts: tuple[str, ...]) -> str:
    verb = "changes" if len(parts) == 1 else "change"
    why = f"refused: {', '.join(parts)} {verb}, and Kubernetes does not change that in place"
    run = _run(live) if live.kind in _RUNS else None
    if run is not None:
        following = f"(bireme install --replace stops run r{run} and starts run r{run + 1})"
        return f"{why}; needs run={run + 1} {following}"
    return f"{why}; keep that as it is, or uninstall the release and install it anew"


def _refused_parts(live: Manifest, wanted: Manifest) -> tuple[str, ...]:
    """What would have to change although Kubernetes does not change it, by the names people know it by."""
    kept, new = _digests(live), _digests(wanted)
    if kept is not None and new is not None:
        return tuple(sorted(part for part in kept.keys() | new.keys() if kept.get(part) != new.get(part)))
    if live.kind in {"ConfigMap", "Secret"} and live.get("immutable"):
        return tuple(key for key in ("data", "binaryData", "stringData") if live.get(key) != wanted.get(key))
    differing = _differing(live.get("spec"), wanted.get("spec"))
    if live.kind in _MUTABLE:
        return tuple(part for part in differing if part not in _MUTABLE[live.kind]) + _fixed_completions(
            live, wanted
        )
    return tuple(part for part in differing if part in _IMMUTABLE.get(live.kind, ()))


def _fixed_completions(live: Manifest, wanted: Manifest) -> tuple[str, ...]:
    if live.kind != "Job" or live["spec"].get("completions") == wanted["spec"].get("completions"):
        return ()
    spec = wanted["spec"]
    is_elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get(
        "parallelism"
    )
    return () if is_elastic else ("completions",)


def _digests(manifest: Manifest) -> Mapping[str, str] | None:
    try:
        found = json.loads(manifest.annotations[IMMUTABLE_ANNOTATION])
    except (KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _changed_parts(live: Manifest, wanted: Manifest) -> tuple[str, ...]:
    """What differs and can change: metadata, and the top-level fields but for the number of pods."""
    parts = list(_differing(live.metadata, wanted.metadata))
    is_workload = live.kind in _WORKLOADS
    for field in _differing(live, wanted):
        if field == "spec" and is_workload:
            parts += [part for part in _differing(_spec(live), _spec(wanted)) if part not in _COUNTS]
        elif field not in {"metadata", wanted.annotations.get(GENERATED_ANNOTATION)}:
            parts.append(field)
    return tuple(_SAID.get(part, part) for part in parts)


_COUNTS = {"replicas", "completions", "parallelism"}
_SAID = {
    "ttlSecondsAfterFinished": "ttl",
    "activeDeadlineSeconds": "deadline",
    "template": "pods, one by one",
    # mpi-operator makes what is missing and leaves what is there as it is.
    "launcher": "a launcher not made yet",
    "worker": "workers made from now on",
}


def _spec(manifest: Manifest) -> Mapping[str, Any]:
    """The spec's fields; an MPIJob's on one level, as a Job has them."""
    spec: Mapping[str, Any] = manifest.get("spec") or {}
    if manifest.kind != "MPIJob":
        return spec
    replicas = spec.get("mpiReplicaSpecs") or {}
    worker = dict(replicas.get("Worker") or {})
    count = worker.pop("replicas", 1) if worker else 0
    own = {key: value for key, value in spec.items() if key not in {"mpiReplicaSpecs", "runPolicy"}}
    both = {"replicas": count, "worker": worker, "launcher": replicas.get("Launcher")}
    return {**own, **(spec.get("runPolicy") or {}), **both}


def _differing(one: Any, other: Any) -> list[str]:
    one, other = one or {}, other or {}
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _pods(manifest: Manifest) -> int | None:
    spec = _spec(manifest)
    if manifest.kind == "Job":
        return int(spec.get("parallelism", 1))
    return int(spec.get("replicas", 1)) if manifest.kind in {"MPIJob", "StatefulSet", "Deployment"} else None
