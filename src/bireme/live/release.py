"""Helm releases on a cluster: pyhelm3 behind a small synchronous facade.

docs/adr/0004-pyhelm3-and-pytest-helm-charts.md lists the calls that bypass pyhelm3, with the reasons.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import yaml

from bireme.clusters.base import Cluster
from bireme.core.errors import BiremeError, suggestion
from bireme.core.manifests import Manifest
from bireme.core.plain import Plain
from bireme.helm import as_json, parse, sentences
from bireme.tools import Toolbox

if TYPE_CHECKING:
    from pyhelm3 import Command

T = TypeVar("T")


@dataclass(frozen=True)
class Revision(Plain):
    """One revision of a release: ``status`` is Helm's (``deployed``, ``failed``, ``pending-install`` …).

    ``chart`` is ``<name>-<version>``; ``updated`` is Helm's timestamp.
    """

    names: ClassVar[Mapping[str, str]] = {"number": "revision"}

    release: str
    namespace: str
    number: int
    status: str
    chart: str
    updated: str

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Revision:
        """From what Helm prints of it."""
        number = int(said["revision"])
        return cls(said["name"], said["namespace"], number, said["status"], said["chart"], said["updated"])

    @property
    def chart_name(self) -> str:
        """The chart without its version."""
        return self._named[0]

    @property
    def chart_version(self) -> str:
        """The version of the chart."""
        return self._named[1]

    @property
    def _named(self) -> tuple[str, str]:
        found = re.fullmatch(r"(.+?)-(\d+\.\d+\.\d+.*)", self.chart)
        return (found[1], found[2]) if found else (self.chart, "")

    def version_here(self, charts: Path) -> str | None:
        """The version that its chart has in the collection ``charts``; None if it is not there."""
        file = charts / self.chart_name / "Chart.yaml"
        if not file.is_file():
            return None
        return str(yaml.safe_load(file.read_text(encoding="utf-8"))["version"])


@dataclass(frozen=True)
class Release:
    """The latest revision of a release. Each of its facts is read from Helm once, when it is asked for.

    ``text``: its objects, where the caller has them; ``notes``: what the chart printed when it was
    installed just now.
    """

    releases: Releases
    name: str
    namespace: str
    text: str | None = None
    notes: str = ""

    @cached_property
    def manifests(self) -> tuple[Manifest, ...]:
        """Its objects as Helm applied them, without hooks. Raises NoRelease."""
        if self.text is not None:
            return parse(self.text)
        command = ["get", "manifest", self.name, "--namespace", self.namespace]
        return parse(self._asked(self.releases._command.run(command)).decode())

    @cached_property
    def values(self) -> dict[str, Any]:
        """The values that the user gave. Raises NoRelease."""
        return self._asked(self.releases._command.get_values(self.name, namespace=self.namespace))

    @cached_property
    def revision(self) -> Revision:
        """Its number, chart and status. Raises NoRelease."""
        found = self.releases.current(self.name, self.namespace)
        if found is None:
            raise self.releases.missing(self.name, self.namespace)
        return found

    def _asked(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return _run(call, self.name, self.namespace)
        except NoRelease as error:
            raise self.releases.missing(self.name, self.namespace) from error


class NoRelease(BiremeError):
    """There is no release of that name in that namespace."""


class Releases:
    """The Helm releases of one cluster.

    ``helm``: which Helm of the toolbox runs, ``helm`` or ``helm3``. Every method raises BiremeError with the
    message of Helm or of the chart.
    """

    def __init__(self, cluster: Cluster, toolbox: Toolbox, helm: str = "helm") -> None:
        self._cluster = cluster
        self._toolbox = toolbox
        self._helm = helm

    def install(
        self,
        chart: Path,
        release: str,
        namespace: str,
        values: Mapping[str, Any],
        timeout: float = 300,
        create_namespace: bool = False,
    ) -> Release:
        """Install a chart, or upgrade its release.

        ``values`` are all the user's values: none of the last revision's are kept.
        Does not wait for pods; ``timeout`` in seconds is for Helm's own requests and hooks.
        """
        if not (chart / "Chart.yaml").is_file():
            raise BiremeError(f"{chart} is not a chart: it has no readable Chart.yaml")
        command = ["upgrade", release, chart, "--install", "--namespace", namespace, "--output", "json"]
        command += ["--timeout", _duration(timeout), "--values", "-"]
        command += ["--create-namespace"] if create_namespace else []
        made = json.loads(_run(self._command.run(command, as_json(values).encode()), release, namespace))
        notes = (made["info"].get("notes") or "").strip() if made["version"] == 1 else ""
        return Release(self, release, namespace, made["manifest"], notes)

    def rollback(self, release: str, namespace: str, timeout: float = 300) -> None:
        """Go back to the revision before the latest, without a wait for pods."""
        command = ["rollback", release, "--namespace", namespace, "--timeout", _duration(timeout)]
        _run(self._command.run(command), release, namespace)

    def uninstall(self, release: str, namespace: str, timeout: float = 300) -> bool:
        """Uninstall a release, without a wait for its objects to be gone; False when there was none."""
        uninstall = self._command.uninstall(release, namespace=namespace, timeout=_duration(timeout))
        try:
            _run(uninstall, release, namespace)
        except NoRelease:
            return False
        return True

    def read(self, release: str, namespace: str) -> Release:
        """The release of that name, which Helm is asked about when a fact of it is needed."""
        return Release(self, release, namespace)

    def revisions(self, release: str, namespace: str) -> tuple[Revision, ...]:
        """The revisions that Helm keeps, the oldest first; none when there is no such release."""
        try:
            history = _run(self._command.history(release, namespace=namespace), release, namespace)
        except NoRelease:
            return ()
        return tuple(Revision.of({"name": release, "namespace": namespace, **each}) for each in history)

    def current(self, release: str, namespace: str) -> Revision | None:
        """The latest revision, or None when there is no such release."""
        revisions = self.revisions(release, namespace)
        return max(revisions, key=lambda revision: revision.number, default=None)

    def missing(self, release: str, namespace: str) -> NoRelease:
        """That there is no such release, and which one may be meant."""
        try:
            there = self.list()
        except BiremeError:  # whoever may not list all namespaces
            there = ()
        homes = [each.namespace for each in there if each.release == release]
        names = [each.release for each in there if each.namespace == namespace]
        hint = "bireme list shows the releases"
        if homes:
            hint = f"it is in namespace {' and in '.join(homes)}, so add --namespace {homes[0]}"
        elif names:
            hint = suggestion(release, names)
        return NoRelease(f"there is no release {release} in namespace {namespace}: {hint}")

    def list(self, namespace: str | None = None) -> tuple[Revision, ...]:
        """The latest revision of every release in a namespace, or in all of them, by name."""
        listed = self._command.list(
            namespace=namespace,
            all_namespaces=namespace is None,
            include_failed=True,
            include_pending=True,
            include_uninstalling=True,
        )
        return tuple(map(Revision.of, _run(listed, "", namespace or "")))

    @cached_property
    def _command(self) -> Command:
        # Imported here, because importing pydantic would slow down `bireme --help`.
        from pyhelm3 import Command

        # It logs every failure that it also raises; without a handler Python would print them.
        logging.getLogger("pyhelm3").addHandler(logging.NullHandler())
        return Command(
            executable=str(self._toolbox.path(self._helm)),
            kubeconfig=self._cluster.kubeconfig,
            kubecontext=self._cluster.context,
        )


def _run(call: Coroutine[Any, Any, T], release: str, namespace: str) -> T:
    """Run a call of pyhelm3; Helm's errors become readable sentences."""
    from pyhelm3.errors import Error, ReleaseNotFoundError

    try:
        return asyncio.run(call)
    except ReleaseNotFoundError as error:
        raise NoRelease(f"there is no release {release} in namespace {namespace}") from error
    except Error as error:
        raise BiremeError(_sentence(error.stderr.decode(errors="replace"), release, namespace)) from error


def _sentence(stderr: str, release: str, namespace: str) -> str:
    message = sentences(stderr)
    if f'namespaces "{namespace}" not found' in message:
        return f"there is no namespace {namespace}: make it with kubectl create namespace {namespace}"
    if "another operation" in message and "in progress" in message:
        return (
            f"another Helm is at work on {release}, or was interrupted there ({message}); "
            f"if it was, helm rollback {release} or bireme uninstall {release} clears the way"
        )
    if "conflict with" in message:
        return (
            f"{message}: somebody else has changed these fields; helm upgrade {release} CHART --reuse-values "
            f"--force-conflicts --namespace {namespace} takes them back"
        )
    return message


def _duration(seconds: float) -> str:
    # With a unit: pyhelm3 would pass on a bare number, which Helm refuses.
    return f"{max(1, round(seconds))}s"
