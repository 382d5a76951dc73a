"""What an upgrade will do to each object of a live release: scale, update, replace, refuse, or nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bireme.core.labels import GENERATED_ANNOTATION, IMMUTABLE_ANNOTATION
from bireme.core.manifests import Manifest
from bireme.core.plain import Plain
from bireme.plan.workloads import kind_of, plan_of
from bireme.plan.workloads.model import WorkloadKind, differing

Action = Literal["nothing", "scale", "update", "replace", "refuse", "add", "remove"]
Identity = tuple[str, str, str]

_RUN = re.compile(r"^(?P<base>.+)-r(?P<run>\d+)$")
# The fields of a claim's ``spec`` that Kubernetes lets an update change.
_CLAIM = "PersistentVolumeClaim"
_MUTABLE_OF_CLAIM = frozenset({"resources", "volumeAttributesClassName"})


@dataclass(frozen=True)
class Change(Plain):
    """What happens to one object: ``parts`` change in it; ``before`` and ``after`` count its pods.

    An object that makes pods ``is_workload``: people read about it also when nothing changes.
    """

    hidden = ("is_workload",)

    object: str
    action: Action
    what: str
    parts: tuple[str, ...] = ()
    before: int | None = None
    after: int | None = None
    is_workload: bool = False

    @property
    def sentence(self) -> str:
        """The change as one line for people."""
        return f"{self.object}: {self.what}"


@dataclass(frozen=True)
class Changes:
    """All that an upgrade will do, workloads first."""

    changes: tuple[Change, ...]

    @property
    def is_refused(self) -> bool:
        """Whether Kubernetes, or the chart before it, will refuse the upgrade as a whole."""
        return any(change.action == "refuse" for change in self.changes)

    def sentences(self) -> list[str]:
        """One sentence for each workload, and for each other object that changes."""
        shown = [each.sentence for each in self.changes if each.action != "nothing" or each.is_workload]
        return shown or ["nothing changes"]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for ``-o json``."""
        return {"refused": self.is_refused, "changes": [change.to_json() for change in self.changes]}


def changes(current: Iterable[Manifest], desired: Iterable[Manifest], home: str = "default") -> Changes:
    """What upgrading a release in namespace ``home`` from ``current`` (its manifests) to ``desired`` will do.

    Only manifests are compared, the cluster is not asked: a run counts as replaced even while it trains,
    although the chart refuses that until it is stopped. Hooks are left out.
    """
    live, wanted = by_identity(current, home), by_identity(desired, home)
    found = [_compare(live[identity], wanted[identity]) for identity in live.keys() & wanted.keys()]
    found += _come_and_go(
        [live[identity] for identity in live.keys() - wanted.keys()],
        [wanted[identity] for identity in wanted.keys() - live.keys()],
    )
    return Changes(tuple(sorted(found, key=lambda each: (not each.is_workload, each.object))))


def by_identity(manifests: Iterable[Manifest], home: str = "default") -> dict[Identity, Manifest]:
    """The objects of a release in namespace ``home`` by kind, namespace and name, without hooks."""
    # With the namespace: an upgrade may move an object to another one.
    return {(item.kind, item.namespace or home, item.name): item for item in manifests if not item.is_hook}


def _come_and_go(gone: list[Manifest], come: list[Manifest]) -> Iterator[Change]:
    ended = {_run(job)[0]: (job, _run(job)[1]) for job in gone if _run(job)[1]}
    for new in come:
        old = ended.pop(_run(new)[0], None)
        is_workload = kind_of(new) is not None
        if old is None:
            yield Change(new.identity, "add", "added", is_workload=is_workload)
            continue
        gone.remove(old[0])
        before, after = f"r{old[1]}", f"r{run_number(new)}"
        what = f"replace: run {before} → {after}; {before} must be stopped first (job.suspend=true)"
        yield Change(new.identity, "replace", what, (), _pods(old[0]), _pods(new), is_workload)
    for each in gone:
        yield Change(each.identity, "remove", "removed", is_workload=kind_of(each) is not None)


def run_number(manifest: Manifest) -> int | None:
    """The run in which a job's name ends (3 for imagenet-r3); None for other names and objects."""
    return _run(manifest)[1]


def _run(manifest: Manifest) -> tuple[str, int | None]:
    """The name of a job without its run, and that. Nothing for other names and objects."""
    kind = kind_of(manifest)
    found = _RUN.match(manifest.name) if kind and kind.suspension else None
    return (found["base"], int(found["run"])) if found else ("", None)


def _compare(live: Manifest, wanted: Manifest) -> Change:
    kind = kind_of(live)
    before, after, name = _pods(live), _pods(wanted), wanted.identity
    parts = _refused_parts(live, wanted, kind)
    if parts:
        return Change(name, "refuse", _refusal(live, parts), parts, before, after, kind is not None)
    changed = _changed_parts(live, wanted, kind)
    what = []
    if before != after:
        what.append(f"scale in place {before} → {after}")
    if changed:
        what.append(f"update in place ({', '.join(changed)})")
    action: Action = "scale" if before != after else "update" if changed else "nothing"
    return Change(name, action, ", ".join(what) or "nothing", changed, before, after, kind is not None)


def _refusal(live: Manifest, parts: tuple[str, ...]) -> str:
    verb = "changes" if len(parts) == 1 else "change"
    why = f"refused: {', '.join(parts)} {verb}, and Kubernetes does not change that in place"
    run = run_number(live)
    if run is not None:
        following = f"(bireme install --replace stops run r{run} and starts run r{run + 1})"
        return f"{why}; needs run={run + 1} {following}"
    return f"{why}; keep that as it is, or uninstall the release and install it again"


def _refused_parts(live: Manifest, wanted: Manifest, kind: WorkloadKind | None) -> tuple[str, ...]:
    """What differs although Kubernetes does not change it in place, by the names that people use."""
    kept, new = _digests(live), _digests(wanted)
    if kept is not None and new is not None:
        return tuple(differing(kept, new))
    if live.kind in {"ConfigMap", "Secret"} and live.get("immutable"):
        return tuple(key for key in ("data", "binaryData", "stringData") if live.get(key) != wanted.get(key))
    if live.kind == _CLAIM:
        changed = differing(live.get("spec"), wanted.get("spec"))
        return tuple(part for part in changed if part not in _MUTABLE_OF_CLAIM)
    return kind.refused(live, wanted) if kind else ()


def _digests(manifest: Manifest) -> Mapping[str, str] | None:
    try:
        found = json.loads(manifest.annotations[IMMUTABLE_ANNOTATION])
    except (KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _changed_parts(live: Manifest, wanted: Manifest, kind: WorkloadKind | None) -> tuple[str, ...]:
    """What differs and can change: metadata, and the top-level fields except the number of pods."""
    parts = differing(live.metadata, wanted.metadata)
    for field in differing(live, wanted):
        if field == "spec" and kind:
            parts += differing(kind.parts(live), kind.parts(wanted))
        elif field not in {"metadata", wanted.annotations.get(GENERATED_ANNOTATION)}:
            parts.append(field)
    return tuple(parts)


def _pods(manifest: Manifest) -> int | None:
    """How many pods the object makes; None where a plan does not count them."""
    plan = plan_of(manifest, {})
    return plan.replicas if plan and not plan.note else None
