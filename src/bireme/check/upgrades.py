"""What an upgrade from an earlier version of a chart does, as a real API server and Helm answer it."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from bireme.check.files import values_files
from bireme.check.objects import moments
from bireme.clusters.api import ApiError
from bireme.clusters.base import Cluster
from bireme.clusters.waiting import until
from bireme.core.errors import BiremeError
from bireme.core.findings import Finding
from bireme.core.manifests import Manifest, thaw, without_state
from bireme.core.plain import Plain
from bireme.helm import Charts, Renderer, RenderError, RenderRequest, load, parse
from bireme.helm.values import unpack
from bireme.live import admission
from bireme.live.release import Release, Releases
from bireme.plan.changes import Identity, by_identity
from bireme.plan.object_diff import ObjectDiff, object_diffs
from bireme.plan.workloads import kind_of, pod_templates
from bireme.plan.workloads.model import differing
from bireme.tools import Toolbox

Verdict = Literal[
    "refused", "not upgraded", "removed", "restarts pods", "runs", "added", "kept", "in place", "unchanged"
]

_RELEASE = "release"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD = "CustomResourceDefinition"
# Cluster-scoped kinds whose objects take seconds to disappear.
_SLOW = {"Namespace": "/api/v1/namespaces", "PersistentVolume": "/api/v1/persistentvolumes"}
_MANAGER = "helm"
# Hooks end at once on the cluster of a check, and Helm waits for little else.
_SECONDS = 60
# Helm adds these to each object.
_HOME = "meta.helm.sh/release-namespace"
_MARKS = ("app.kubernetes.io/managed-by", "meta.helm.sh/release-name", _HOME)
_KEEP = "helm.sh/resource-policy"
_AGAIN = "bireme/deleted-again"
_GOING = "deletionTimestamp"
_OR_NONE = "--ignore-not-found"


@dataclass(frozen=True)
class ObjectVerdict(Plain):
    """What the upgrade does to one object. ``why`` names what changes, or is the server's own sentence."""

    optional: ClassVar[tuple[str, ...]] = ("why",)

    object: str
    verdict: Verdict
    why: str = ""

    @property
    def rank(self) -> tuple[int, str]:
        """Its place among others: the worst verdict first, then by what changes."""
        return get_args(Verdict).index(self.verdict), self.why


@dataclass(frozen=True)
class UpgradeVerdict(Plain):
    """One upgrade: ``before`` is the earlier version, ``values`` a file of it, "" for the defaults.

    ``refusal`` is what Helm said when it did not upgrade, ``rollback`` what it said when it did not go back.
    ``untried`` is why the earlier version alone could not be installed. ``diffs`` are those of the rendered
    objects.
    """

    optional: ClassVar[tuple[str, ...]] = ("refusal", "rollback", "untried", "diffs")

    chart: str
    before: str
    values: str
    objects: tuple[ObjectVerdict, ...] = ()
    refusal: str = ""
    rollback: str = ""
    untried: str = ""
    diffs: tuple[ObjectDiff, ...] = ()

    def __str__(self) -> str:
        if self.untried:
            return f"{self._title}: not tried, because the earlier version is refused: {self.untried}"
        told = [self._title]
        changed = [each for each in self.objects if each.verdict != "unchanged"]
        for _, group in groupby(sorted(changed, key=lambda each: each.rank), lambda each: each.rank):
            alike = list(group)
            why = alike[0].why and f" ({alike[0].why})"
            told.append(f"  {alike[0].verdict}{why}: {', '.join(each.object for each in alike)}")
        told += [] if len(told) > 1 or self.refusal else ["  nothing changes"]
        told += [f"  Helm refuses it: {self.refusal}"] if self.refusal else []
        return "\n".join([*told, *([f"  Helm cannot roll back: {self.rollback}"] if self.rollback else [])])

    @property
    def _title(self) -> str:
        return f"{self.chart}: upgrade from {self.before} with {self.values or 'the defaults'}"

    def findings(self) -> Iterator[Finding]:
        """What is refused, object by object where the API server says which, and what is lost."""
        where = f"the upgrade from {self.before} with {self.values or 'the defaults'}"
        refused = [each for each in self.objects if each.verdict == "refused"]
        for each in refused:
            sentence = f"{where} is refused: {each.why}"
            yield Finding("upgrade", sentence, file=self.chart, path=each.object)
        for each in self.objects:
            if each.verdict == "removed" and each.object.startswith("PersistentVolumeClaim/"):
                said, advice = f"{where} removes it, with its data", f"keep it by {_KEEP}: keep"
                yield Finding("upgrade", said, advice, file=self.chart, path=each.object)
            if each.verdict == "not upgraded":
                said = f"{where} leaves the earlier definition: Helm installs crds/ once"
                yield Finding("upgrade", said, each.why, "warning", self.chart, path=each.object)
        if self.refusal and not refused:
            yield Finding("upgrade", f"{where} is refused: {self.refusal}", file=self.chart)
        if self.rollback:
            said = f"after {where} there is no way back: {self.rollback}"
            yield Finding("rollback", said, severity="warning", file=self.chart)


class Upgrades:
    """Upgrades charts on a cluster. Each upgrade has a namespace of its own, which is removed after it.

    With ``stand_ins`` the cluster learns kinds that it does not know, with any fields, as an operator's.
    ``more`` are further values files for each chart.
    """

    def __init__(
        self,
        cluster: Cluster,
        toolbox: Toolbox,
        renderer: Renderer,
        charts: Charts,
        stand_ins: bool = False,
        more: Sequence[Path] = (),
    ) -> None:
        self._releases = Releases(cluster, toolbox)
        self._cluster = cluster
        self._kubectl = str(toolbox.path("kubectl"))
        self._renderer = renderer
        self._charts, self._more = charts, more
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
                files = values_files(before, self._more)
                found += [self._verdict(chart, before, called, file) for file in files]
        return found

    def installs(self, chart: Path) -> list[Finding]:
        """What an API server refuses of ``chart`` with each of its values files: objects, hooks and pods."""
        files = values_files(chart, self._more)
        return [finding for file in files for finding in self._install_findings(chart, file)]

    def _install_findings(self, chart: Path, file: str) -> Iterator[Finding]:
        values, where = load([chart / file] if file else []), f"with {file or 'the defaults'}"
        try:
            with self._installed(chart, values) as release:
                pods = [each["spec"] for item in release.manifests for each in pod_templates(item)]
                account = f"/api/v1/namespaces/{release.namespace}/serviceaccounts/default"
                until(lambda: self._cluster.api.find(account) is not None, 30, "the default ServiceAccount")
                specs = [thaw(each) for each in pods]
                for each in admission.pods(self._cluster.api, specs, set(), release.namespace):
                    said = each.sentence.replace(f"namespace {release.namespace}", "API server")
                    yield Finding("install", f"{said} ({where})", file=str(chart))
        except RenderError:
            return  # The check of the templates says it.
        except BiremeError as error:
            yield Finding("install", f"the install {where} is refused: {error}", file=str(chart))

    @contextmanager
    def _installed(self, chart: Path, values: Mapping[str, Any]) -> Iterator[Release]:
        """A release of ``chart`` in a namespace of its own. Raises BiremeError for what is refused."""
        namespace = f"check-{uuid.uuid4().hex[:12]}"
        rendered = self._renderer.render(RenderRequest(chart, values, _RELEASE, namespace))
        self._learn(chart, rendered.manifests)
        try:
            yield self._releases.install(chart, _RELEASE, namespace, values, _SECONDS, create_namespace=True)
        finally:
            self._releases.uninstall(_RELEASE, namespace, _SECONDS)
            self._cluster.api.delete(f"/api/v1/namespaces/{namespace}")
            until(lambda: not self._left(rendered.manifests, namespace), _SECONDS, "its objects to be gone")

    def _left(self, manifests: Sequence[Manifest], home: str) -> list[str]:
        """The names of objects of a release in namespace ``home`` that are in the way of the next release."""
        api = self._cluster.api
        slow = [api.find(f"{_SLOW[item.kind]}/{item.name}") for item in manifests if item.kind in _SLOW]
        left = [each["metadata"]["name"] for each in slow if each and _GOING in each["metadata"]]
        for about in (each["metadata"] for each in api.items(_CRDS)):
            is_own = about.get("annotations", {}).get(_HOME) == home
            # Helm would refuse a definition that this release keeps to the next one.
            if is_own and (self._stand_ins or _GOING in about):
                left.append(about["name"])
                # An API server that has just learnt the kind may delete it only after another write.
                again = {"metadata": {"annotations": {_AGAIN: uuid.uuid4().hex}}}
                with suppress(ApiError):
                    api.patch(f"{_CRDS}/{about['name']}", again)
                api.delete(f"{_CRDS}/{about['name']}")
        return left

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
        with ExitStack() as stack:
            try:
                release = stack.enter_context(self._installed(before, values))
            except BiremeError as error:
                return UpgradeVerdict(str(chart), called, file, untried=str(error))
            verdict = self._upgraded(release, chart, called, file, values)
            return replace(verdict, objects=(*verdict.objects, *_definitions(before, chart)))

    def _learn(self, chart: Path, manifests: Sequence[Manifest]) -> None:
        """Let the cluster serve the kinds of ``manifests`` that neither it nor the chart defines."""
        texts = "\n".join(file.read_text("utf-8") for file in chart.rglob("crds/*.yaml"))
        texts += "".join(
            f"\nkind: {item['spec']['names']['kind']}" for item in manifests if item.kind == _CRD
        )
        kinds = {(item.api_version, item.kind) for item in manifests if "/" in item.api_version}
        for api_version, kind in sorted(kinds) if self._stand_ins else ():
            path = f"/apis/{api_version}"

            def is_served(path: str = path, kind: str = kind) -> bool:
                served = self._cluster.api.find(path) or {}
                return any(each["kind"] == kind for each in served.get("resources", ()))

            # A definition adds kinds only to a group with a dot.
            is_open = "." in api_version.partition("/")[0]
            if is_open and not is_served() and not re.search(rf"\bkind: {kind}\b", texts):
                made = _stand_in(api_version, kind)
                there = self._cluster.api.find(f"{_CRDS}/{made['metadata']['name']}")
                if there:
                    # One that an earlier version of the chart has in an earlier version.
                    other = made["spec"]["versions"][0] | {"storage": False}
                    versions = [*there["spec"]["versions"], other]
                    path = f"{_CRDS}/{made['metadata']['name']}"
                    self._cluster.api.patch(path, {"spec": {"versions": versions}})
                else:
                    self._cluster.api.create(_CRDS, made)
                until(is_served, 30, f"the kind {kind}")

    def _upgraded(
        self, release: Release, chart: Path, called: str, file: str, values: Mapping[str, Any]
    ) -> UpgradeVerdict:
        asked = RenderRequest(chart, values, _RELEASE, release.namespace, is_upgrade=True)
        try:
            rendered = self._renderer.render(asked).manifests
            wanted = by_identity(rendered, release.namespace)
            self._learn(chart, rendered)
        except RenderError as error:
            return UpgradeVerdict(str(chart), called, file, refusal=str(error))
        home, api = release.namespace, self._cluster.api
        there = by_identity(release.manifests, home)
        before = self._live(there, home)
        refusal = rollback = ""
        try:
            made = self._releases.install(chart, _RELEASE, home, values, _SECONDS)
        except BiremeError as error:
            refusal = str(error)
        else:
            # Unlike a render here, Helm's own has looked up what is on the cluster.
            wanted = by_identity(made.manifests, home)

        both = {key: item for key, item in wanted.items() if key in there}
        after = {} if refusal else self._live(both, home)

        def compared(key: Identity) -> ObjectVerdict:
            item = wanted[key]
            # One that has been gone since, such as a Job with a time to live, is made again.
            if key not in before:
                return ObjectVerdict(item.identity, "added")
            if not refusal and key not in after:
                return ObjectVerdict(item.identity, "removed")
            try:
                new = self._tried(item, home, before[key]) if refusal else after[key]
            except BiremeError as error:
                return ObjectVerdict(item.identity, "refused", str(error))
            return _compared(item, before[key], new)

        objects = api.each(compared, both)
        objects += [ObjectVerdict(wanted[key].identity, "added") for key in wanted.keys() - there.keys()]
        objects += [_removed(there[key]) for key in there.keys() - wanted.keys()]
        for item in rendered:
            if when := [each for each in moments(item) if "upgrade" in each]:
                objects.append(ObjectVerdict(item.identity, "runs", ", ".join(when)))
        if not refusal:
            try:
                self._releases.rollback(_RELEASE, home)
            except BiremeError as error:
                rollback = str(error)
        ordered = tuple(sorted(objects, key=lambda each: each.object))
        diffs = object_diffs(there.values(), wanted.values(), home)
        return UpgradeVerdict(str(chart), called, file, ordered, refusal, rollback, diffs=diffs)

    def _live(self, items: Mapping[Identity, Manifest], home: str) -> dict[Identity, dict[str, Any]]:
        """Those that the API server has, by one kubectl for each namespace."""
        found: dict[Identity, dict[str, Any]] = {}
        for space in {item.namespace or home for item in items.values()}:
            own = [item.thaw() for item in items.values() if (item.namespace or home) == space]
            live = self._asked("get", {"kind": "List", "apiVersion": "v1", "items": own}, space, _OR_NONE)
            for each in live.get("items", [live]):
                about = each["metadata"]
                found[each["kind"], about.get("namespace", space), about["name"]] = without_state(each)
        return found

    def _tried(self, item: Manifest, namespace: str, before: Mapping[str, Any]) -> dict[str, Any]:
        """What the API server would make of the new object. Raises BiremeError with its own words."""
        wanted = item.thaw()
        for field in ("labels", "annotations"):
            marks = {key: mark for key, mark in before["metadata"].get(field, {}).items() if key in _MARKS}
            wanted["metadata"][field] = marks | (wanted["metadata"].get(field) or {})
        flags = ("--server-side", "--dry-run=server", "--force-conflicts", f"--field-manager={_MANAGER}")
        return without_state(self._asked("apply", wanted, item.namespace or namespace, *flags))

    def _asked(self, verb: str, item: Mapping[str, Any], namespace: str, *flags: str) -> dict[str, Any]:
        command = [self._kubectl, "--kubeconfig", str(self._cluster.kubeconfig), verb, *flags]
        command += ["--context", self._cluster.context] if self._cluster.context else []
        command += ["--namespace", namespace, "--output", "json", "--filename", "-"]
        done = subprocess.run(command, input=json.dumps(item), capture_output=True, text=True, check=False)
        if done.returncode:
            raise BiremeError(" ".join(done.stderr.split()))
        found: dict[str, Any] = json.loads(done.stdout or '{"items": []}')
        return found


def _removed(item: Manifest) -> ObjectVerdict:
    kept = item.annotations.get(_KEEP) == "keep"
    return ObjectVerdict(item.identity, "kept" if kept else "removed")


def _definitions(before: Path, chart: Path) -> Iterator[ObjectVerdict]:
    """The definitions of crds/ that an upgrade does not touch although they differ."""
    old, new = ({item.identity: item for item in _crds(each)} for each in (before, chart))
    for identity in sorted(new):
        if identity in old and old[identity] != new[identity]:
            yield ObjectVerdict(identity, "not upgraded", "kubectl apply --server-side --filename crds/")


def _crds(chart: Path) -> Iterator[Manifest]:
    for file in sorted(chart.glob("crds/**/*.yaml")):
        yield from parse(file.read_text("utf-8"))


def _compared(item: Manifest, old: Mapping[str, Any], new: Mapping[str, Any]) -> ObjectVerdict:
    if old == new:
        return ObjectVerdict(item.identity, "unchanged")
    pods = [each.get("spec", {}).get("template", {}) for each in (old, new)]
    strategy = new.get("spec", {}).get("updateStrategy", {}).get("type")
    restarts = kind_of(item) and pods[0] != pods[1] and strategy != "OnDelete"
    one, other = pods if restarts else (old, new)
    parts = [part for key in ("spec", "metadata") for part in differing(one.get(key), other.get(key))]
    parts += [key for key in differing(one, other) if key not in ("spec", "metadata")]
    return ObjectVerdict(item.identity, "restarts pods" if restarts else "in place", ", ".join(parts))


def _stand_in(api_version: str, kind: str) -> dict[str, Any]:
    """The definition of a kind that takes any fields."""
    group, version = api_version.split("/")
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": _CRD,
        "metadata": {
            "name": f"{plural}.{group}",
            # Groups of k8s.io ask for it.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in of bireme check"},
        },
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BiremeError(f"git {arguments[0]} in {folder}: {' '.join(done.stderr.split())}")
    return done.stdout
