"""What an upgrade from an earlier version of a chart does, as a real API server and Helm answer it."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from bireme.clusters.base import Cluster
from bireme.clusters.waiting import until
from bireme.core.errors import BiremeError
from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.core.plain import Plain
from bireme.helm import Charts, Renderer, RenderError, RenderRequest, load
from bireme.helm.values import unpack
from bireme.live.release import Release, Releases
from bireme.plan.changes import by_identity
from bireme.plan.workloads import kind_of
from bireme.plan.workloads.model import differing
from bireme.tools import Toolbox

Verdict = Literal["unchanged", "in place", "restarts pods", "added", "removed", "refused"]

_RELEASE = "release"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_MANAGER = "helm"
# Helm adds these to each object.
_MARKS = ("app.kubernetes.io/managed-by", "meta.helm.sh/release-name", "meta.helm.sh/release-namespace")
_OF_SERVER = ("managedFields", "generation", "resourceVersion", "uid", "creationTimestamp")


@dataclass(frozen=True)
class ObjectVerdict(Plain):
    """What the upgrade does to one object. ``why`` names what changes, or is the server's own sentence."""

    optional: ClassVar[tuple[str, ...]] = ("why",)

    object: str
    verdict: Verdict
    why: str = ""

    def __str__(self) -> str:
        return f"{self.object}: {self.verdict}{self.why and f' ({self.why})'}"


@dataclass(frozen=True)
class UpgradeVerdict(Plain):
    """One upgrade: ``before`` is the earlier version, ``values`` a file of it, "" for the defaults.

    ``refusal`` is what Helm said when it did not upgrade, ``rollback`` what it said when it did not go back.
    ``untried`` is why the earlier version alone could not be installed.
    """

    optional: ClassVar[tuple[str, ...]] = ("refusal", "rollback", "untried")

    chart: str
    before: str
    values: str
    objects: tuple[ObjectVerdict, ...] = ()
    refusal: str = ""
    rollback: str = ""
    untried: str = ""

    def __str__(self) -> str:
        if self.untried:
            return f"{self._title}: not tried, because the earlier version is refused: {self.untried}"
        told = [self._title]
        told += [f"  {each}" for each in self.objects if each.verdict != "unchanged"]
        told += [] if len(told) > 1 or self.refusal else ["  nothing changes"]
        told += [f"  Helm refuses it: {self.refusal}"] if self.refusal else []
        return "\n".join([*told, *([f"  Helm cannot roll back: {self.rollback}"] if self.rollback else [])])

    @property
    def _title(self) -> str:
        return f"{self.chart}: upgrade from {self.before} with {self.values or 'the defaults'}"

    def findings(self) -> Iterator[Finding]:
        """What is refused, object by object where the API server says which."""
        where = f"the upgrade from {self.before} with {self.values or 'the defaults'}"
        refused = [each for each in self.objects if each.verdict == "refused"]
        for each in refused:
            sentence = f"{where} is refused: {each.why}"
            yield Finding("upgrade", sentence, file=self.chart, path=each.object)
        if self.refusal and not refused:
            yield Finding("upgrade", f"{where} is refused: {self.refusal}", file=self.chart)
        if self.rollback:
            said = f"after {where} there is no way back: {self.rollback}"
            yield Finding("rollback", said, severity="warning", file=self.chart)


class Upgrades:
    """Upgrades charts on a cluster. Each upgrade has a namespace of its own, which is removed after it.

    With ``stand_ins`` the cluster learns kinds that it does not know, with any fields, as an operator's.
    """

    def __init__(
        self, cluster: Cluster, toolbox: Toolbox, renderer: Renderer, charts: Charts, stand_ins: bool = False
    ) -> None:
        self._releases = Releases(cluster, toolbox)
        self._cluster = cluster
        self._kubectl = str(toolbox.path("kubectl"))
        self._renderer = renderer
        self._charts = charts
        self._stand_ins = stand_ins

    def verdicts(self, chart: Path, earlier: Sequence[str]) -> list[UpgradeVerdict]:
        """Each upgrade to ``chart`` from each of its ``earlier`` versions, with each values file of these.

        An earlier version is a folder, an archive, oci://…, or git:REVISION of the repository that the chart
        is in. Raises BiremeError where there is none.
        """
        found = []
        with tempfile.TemporaryDirectory(prefix="bireme-check-") as scratch:
            for number, called in enumerate(earlier):
                before = self._find(chart, called, Path(scratch) / str(number))
                files = sorted(
                    file.relative_to(before).as_posix() for file in before.glob("ci/*-values.yaml")
                )
                found += [self._verdict(chart, before, called, file) for file in ("", *files)]
        return found

    def _find(self, chart: Path, called: str, scratch: Path) -> Path:
        if not called.startswith("git:"):
            return self._charts.find(called)
        scratch.mkdir()
        archive = scratch / "tree.tar"
        top = _git(chart, "rev-parse", "--show-toplevel").strip()
        _git(Path(top), "archive", "--format=tar", f"--output={archive}", called.removeprefix("git:"))
        unpack(archive, scratch / "tree")
        before = scratch / "tree" / chart.resolve().relative_to(Path(top).resolve())
        if not (before / "Chart.yaml").is_file():
            raise BiremeError(f"{called} has no chart {chart}: name a revision that has it")
        return before

    def _verdict(self, chart: Path, before: Path, called: str, file: str) -> UpgradeVerdict:
        values = load([before / file] if file else [])
        namespace = f"check-{uuid.uuid4().hex[:12]}"
        old = RenderRequest(before, values, _RELEASE, namespace)
        try:
            self._learn(before, self._renderer.render(old).manifests)
            release = self._releases.install(before, _RELEASE, namespace, values, create_namespace=True)
        except BiremeError as error:
            return UpgradeVerdict(str(chart), called, file, untried=str(error))
        else:
            return self._upgraded(release, chart, called, file, values)
        finally:
            self._releases.uninstall(_RELEASE, namespace, wait=True)
            self._cluster.api.delete(f"/api/v1/namespaces/{namespace}")

    def _learn(self, chart: Path, manifests: Iterable[Manifest]) -> None:
        """Let the cluster serve the kinds of ``manifests`` that neither it nor the chart's crds/ defines."""
        texts = "\n".join(file.read_text("utf-8") for file in chart.rglob("crds/*.yaml"))
        kinds = {(item.api_version, item.kind) for item in manifests if "/" in item.api_version}
        for api_version, kind in sorted(kinds) if self._stand_ins else ():
            path = f"/apis/{api_version}"

            def is_served(path: str = path, kind: str = kind) -> bool:
                served = self._cluster.api.find(path) or {}
                return any(each["kind"] == kind for each in served.get("resources", ()))

            if not is_served() and not re.search(rf"\bkind: {kind}\b", texts):
                self._cluster.api.create(_CRDS, _stand_in(api_version, kind))
                until(is_served, 30, f"the kind {kind}")

    def _upgraded(
        self, release: Release, chart: Path, called: str, file: str, values: Mapping[str, Any]
    ) -> UpgradeVerdict:
        asked = RenderRequest(chart, values, _RELEASE, release.namespace, is_upgrade=True)
        try:
            wanted = by_identity(self._renderer.render(asked).manifests)
            self._learn(chart, wanted.values())
        except RenderError as error:
            return UpgradeVerdict(str(chart), called, file, refusal=str(error))
        there = by_identity(release.manifests)
        objects = [
            ObjectVerdict(item.identity, "added" if key not in there else "removed")
            for key, item in (wanted | there).items()
            if (key in wanted) != (key in there)
        ]
        both = [item for key, item in wanted.items() if key in there]
        objects += self._cluster.api.each(lambda item: self._compared(item, release.namespace), both)
        refusal = rollback = ""
        try:
            self._releases.install(chart, _RELEASE, release.namespace, values)
            self._releases.rollback(_RELEASE, release.namespace)
        except BiremeError as error:
            after = self._releases.current(_RELEASE, release.namespace)
            refusal, rollback = (str(error), "") if after and after.number == 2 else ("", str(error))
        ordered = tuple(sorted(objects, key=lambda each: each.object))
        return UpgradeVerdict(str(chart), called, file, ordered, refusal, rollback)

    def _compared(self, item: Manifest, namespace: str) -> ObjectVerdict:
        """What the API server makes of the new object, without making it."""
        wanted = item.thaw()
        place = ("--namespace", item.namespace or namespace, "--output", "json", "--filename", "-")
        live = json.loads(self._run("get", *place, given=json.dumps(wanted)).stdout)
        [old] = live.get("items", [live])
        for field in ("labels", "annotations"):
            marks = {key: mark for key, mark in old["metadata"].get(field, {}).items() if key in _MARKS}
            wanted["metadata"][field] = marks | (wanted["metadata"].get(field) or {})
        flags = ("--server-side", "--dry-run=server", "--force-conflicts", f"--field-manager={_MANAGER}")
        made = self._run("apply", *flags, *place, given=json.dumps(wanted))
        if made.returncode:
            return ObjectVerdict(item.identity, "refused", " ".join(made.stderr.split()))
        new = json.loads(made.stdout)
        for each in (old, new):
            each.pop("status", None)
            for key in _OF_SERVER:
                each["metadata"].pop(key, None)
        if old == new:
            return ObjectVerdict(item.identity, "unchanged")
        pods = [each.get("spec", {}).get("template", {}) for each in (old, new)]
        strategy = new.get("spec", {}).get("updateStrategy", {}).get("type")
        if kind_of(item) and pods[0] != pods[1] and strategy != "OnDelete":
            parts = [
                part for key in ("spec", "metadata") for part in differing(*(pod.get(key) for pod in pods))
            ]
            return ObjectVerdict(item.identity, "restarts pods", ", ".join(parts))
        parts = [*differing(old.get("spec"), new.get("spec")), *differing(old["metadata"], new["metadata"])]
        parts += [key for key in differing(old, new) if key not in ("spec", "metadata")]
        return ObjectVerdict(item.identity, "in place", ", ".join(parts))

    def _run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [self._kubectl, "--kubeconfig", str(self._cluster.kubeconfig), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def _stand_in(api_version: str, kind: str) -> dict[str, Any]:
    """The definition of a kind that takes any fields."""
    group, version = api_version.split("/")
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BiremeError(f"git {arguments[0]} in {folder}: {' '.join(done.stderr.split())}")
    return done.stdout
