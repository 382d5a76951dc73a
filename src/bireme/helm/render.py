"""Charts rendered by the real Helm, once per content.

Renders share processes of Helm 4's library where helm-render of hack/tools is there, else each starts Helm.
The same content is rendered once: results are kept in memory and on disk under a key of everything that the
output depends on. pyhelm3's ``template`` is not used: it lacks --kube-version, --api-versions and
--is-upgrade, and it concatenates lists where Helm replaces them.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from bireme.core.errors import BiremeError
from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.helm.output import parse, sentences, split
from bireme.helm.process import NoAnswer, RenderProcess
from bireme.helm.values import ChartValues, SetFlags, files_below, printing_chart
from bireme.helm.yaml import as_json, json_number
from bireme.tools import Toolbox

_FORMAT = 3
_LARGE = 4096


@dataclass(frozen=True)
class RenderRequest:
    """One ``helm template``: ``settings`` on top of ``values``; ``helm`` is "helm" (4) or "helm3"."""

    chart: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    release: str = "release"
    namespace: str = "default"
    kube_version: str | None = None
    api_versions: tuple[str, ...] = ()
    is_upgrade: bool = False
    skips_schema: bool = False
    helm: str = "helm"
    settings: SetFlags = field(default_factory=SetFlags)

    def flags(self) -> list[str]:
        """Helm's arguments except the chart and its values."""
        flags = [self.release, "--namespace", self.namespace, *self.settings.flags()]
        if self.kube_version:
            flags += ["--kube-version", self.kube_version]
        for version in self.api_versions:
            flags += ["--api-versions", version]
        flags += ["--is-upgrade"] if self.is_upgrade else []
        return [*flags, "--skip-schema-validation"] if self.skips_schema else flags

    def asked(self) -> dict[str, Any]:
        """The same for a RenderProcess."""
        return {
            "chart": str(self.chart.absolute()),
            "release": self.release,
            "namespace": self.namespace,
            "kubeVersion": self.kube_version or "",
            "apiVersions": self.api_versions,
            "isUpgrade": self.is_upgrade,
            "skipsSchema": self.skips_schema,
            "jsons": self.settings.jsons,
            "sets": self.settings.sets,
            "strings": self.settings.strings,
        }


@dataclass(frozen=True)
class Render:
    """What a chart rendered to, hooks and helm tests included (see ``Manifest.is_hook``)."""

    request: RenderRequest
    manifests: tuple[Manifest, ...]

    def object(self, identity: str) -> Manifest:
        """The object of that kind and name, as in ``Deployment/web``. Raises BiremeError for none."""
        for each in self.manifests:
            if each.identity == identity:
                return each
        made = ", ".join(each.identity for each in self.manifests)
        raise BiremeError(f"the chart makes no {identity}, only: {made}")


@dataclass(frozen=True)
class Arm:
    """A part of a template that runs as a whole or not at all, and how often it ran.

    The ``file`` is relative to the chart. Arms of one branch share its number, which is 0 for whole
    files and definitions. The ``name`` is the keyword, or what is defined. It holds the ``lines``. One that
    ``refuses`` runs only in renders that fail.
    """

    file: str
    line: int
    branch: int
    name: str
    lines: tuple[int, ...]
    runs: int
    refuses: bool


@dataclass(frozen=True)
class Covered:
    """What one render ran, and the paths of the values that it read: a last key "*" is all below.

    ``reads`` are all of them, ``own_reads`` those of the chart's own templates. ``text`` is what it made, ""
    if it was refused.
    """

    text: str
    arms: tuple[Arm, ...]
    reads: frozenset[tuple[str, ...]]
    own_reads: frozenset[tuple[str, ...]]


class RenderError(BiremeError):
    """The chart refused the values, or is broken: its own sentences; ``raw`` is Helm's standard error."""

    def __init__(self, message: str, raw: str = "") -> None:
        super().__init__(message)
        self.raw = raw

    @property
    def by_rules(self) -> bool:
        """Whether the rules of the chart's validate.yaml refused the values."""
        return re.search(r"execution error at \([^)]*validate\.yaml", self.raw) is not None


class Renderer:
    """Renders charts with the pinned Helm.

    A Renderer reads each chart tree once: make a new one after a chart changed. Without ``keeps`` it renders
    the same content again.
    """

    def __init__(self, toolbox: Toolbox, paths: Paths, keeps: bool = True) -> None:
        self._toolbox = toolbox
        self._keeps = keeps
        self._folder = paths.cache / "renders"
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Manifest, ...] | RenderError] = {}
        # Large objects read from the disk, by key, and what the disk has for each object, by identity.
        self._read: dict[str, Manifest] = {}
        self._written: dict[int, tuple[Manifest, dict[str, Any] | str]] = {}
        self._tree = cache(tree_digest)
        self._idle: list[RenderProcess] = []
        # Helm writes nothing there for a render, and finds nothing.
        self._home = paths.cache / "no-home"

    def render(self, request: RenderRequest) -> Render:
        """The objects of ``request``. Raises RenderError with the chart's sentence when it refuses them."""
        result = self._result(request)
        if isinstance(result, RenderError):
            raise RenderError(str(result), result.raw)
        return Render(request, result)

    def render_many(self, requests: Sequence[RenderRequest]) -> list[Render | RenderError]:
        """Every request rendered, in order; equal ones once, as many at a time as there are cores.

        Refusals are returned, not raised. Raises BiremeError when Helm itself cannot run.
        """
        keys = [self._key(request) for request in requests]
        distinct = dict(zip(keys, requests, strict=True))
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            done = dict(zip(distinct, pool.map(self._result, distinct.values()), strict=True))
        made = ((request, done[key]) for key, request in zip(keys, requests, strict=True))
        return [each if isinstance(each, RenderError) else Render(request, each) for request, each in made]

    def merged(self, request: RenderRequest) -> RenderRequest:
        """``request`` with its settings merged into its values by Helm. Raises RenderError if Helm fails."""
        if not request.settings.flags():
            return request
        return replace(request, values=self._printed(request, None)["values"], settings=SetFlags())

    def values(self, request: RenderRequest) -> ChartValues:
        """What the templates of ``request`` see as .Values, whether or not a schema or a rule refuses it.

        Chart defaults, those of enabled dependencies, ``global`` and ``import-values``, as Helm puts them
        together. Raises RenderError for values or a chart that Helm cannot read.
        """
        self._tree(request.chart)
        printed = self._printed(request, request.chart)
        return ChartValues.printed(printed["values"], printed["schemas"])

    def text(self, request: RenderRequest) -> str:
        """Helm's own output for ``request``, never from the cache. Raises RenderError."""
        self._tree(request.chart)
        made = self._in_process(request)
        if made is None:
            finished = self._finished(request, "template", *request.flags())
            made = {"text": finished.stdout, "error": finished.stderr if finished.returncode else ""}
        if error := made.get("error"):
            raise RenderError(sentences(error), error)
        return str(made["text"])

    def covered(self, request: RenderRequest) -> Covered | None:
        """What a render of ``request`` runs and reads, refused or not. None where there is no helm-render."""
        made = self._in_process(request, covers=True)
        if made is None:
            return None
        arms = tuple(Arm(**{**each, "lines": tuple(each["lines"])}) for each in made.get("arms", ()))
        if "error" not in made:
            arms = tuple(replace(arm, refuses=arm.refuses and not arm.runs) for arm in arms)
        reads = [(file, tuple(path)) for file, *path in made.get("reads", ())]
        own = frozenset(path for file, path in reads if file.startswith("templates/"))
        return Covered(made["text"], arms, frozenset(path for _, path in reads), own)

    @cached_property
    def render_binary(self) -> Path | None:
        """The program whose processes renders of Helm 4 share, if it is there."""
        return self._toolbox.ready("helm-render", instead_of="helm")

    def _in_process(self, request: RenderRequest, covers: bool = False) -> Mapping[str, Any] | None:
        """What a shared process answers, or None where a process of its own has to say."""
        binary = self.render_binary if request.helm == "helm" else None
        flags = "".join(request.settings.flags())
        # Helm reads --set-file from the working directory, and refuses what no command line can take.
        if binary is None or request.settings.files or len(flags) > 100_000 or not flags.isprintable():
            return None
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or RenderProcess(binary, self._environment() | {"GOGC": "400"})
        try:
            made = process.answer(request.values, covers=covers, **request.asked())
        except NoAnswer:
            return None
        with self._lock:
            self._idle.append(process)
        return made

    def lint(self, request: RenderRequest) -> str:
        """What `helm lint` says of the chart with the values and the Kubernetes version of ``request``."""
        version = ["--kube-version", request.kube_version] if request.kube_version else []
        return self._finished(request, "lint", "--quiet", *version).stdout

    def _finished(self, request: RenderRequest, *command: str) -> subprocess.CompletedProcess[str]:
        binary = self._toolbox.path(request.helm)
        # After "--" a chart path that begins with a dash is not a flag.
        try:
            finished = subprocess.run(
                [str(binary), *command, "--values", "-", "--", str(request.chart)],
                input=as_json(request.values),
                capture_output=True,
                encoding="utf-8",
                # Helm repeats a setting that is no UTF-8.
                errors="backslashreplace",
                env=self._environment(),
                check=False,
            )
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise BiremeError("the --set options are too long together: write a values file") from error
        if finished.returncode < 0:
            raise BiremeError(
                f"{binary} was stopped by signal {-finished.returncode} while reading {request.chart}"
            )
        return finished

    def _result(self, request: RenderRequest) -> tuple[Manifest, ...] | RenderError:
        # --set-file reads files that the cache key does not cover.
        if request.settings.files or not self._keeps:
            return self._run(request)
        key = self._key(request)
        result = self._known.get(key) or self._load(key)
        if result is None:
            result = self._run(request)
            self._save(key, result)
        self._known[key] = result
        return result

    def _run(self, request: RenderRequest) -> tuple[Manifest, ...] | RenderError:
        try:
            return parse(self.text(request))
        except RenderError as error:
            return error

    def _printed(self, request: RenderRequest, chart: Path | None) -> Mapping[str, Any]:
        """The values of ``request`` in ``chart``, or by themselves, and the schemas that are theirs."""
        with tempfile.TemporaryDirectory() as folder:
            printing = printing_chart(Path(folder) / "chart", chart)
            [(_, document)] = split(self.text(replace(request, chart=printing)))
        return {key: _decoded(document[key]) for key in ("values", "schemas")}

    def _environment(self) -> dict[str, str]:
        """An environment without the caller's HELM_* settings, plugins, repositories and kubeconfig."""
        home = str(self._home)
        return {
            "HOME": home,
            "HELM_CACHE_HOME": f"{home}/cache",
            "HELM_CONFIG_HOME": f"{home}/config",
            "HELM_DATA_HOME": f"{home}/data",
            "HELM_PLUGINS": f"{home}/plugins",
            "KUBECONFIG": f"{home}/no-cluster",
            # A render takes milliseconds and little memory: garbage collection would only cost time.
            "GOGC": "off",
        }

    # --- the key ---

    def _key(self, request: RenderRequest) -> str:
        binary = self._toolbox.path(request.helm)
        there = binary.stat()
        parts = [
            str(_FORMAT),
            f"{binary} {there.st_size} {there.st_mtime_ns}",
            self._tree(request.chart),
            as_json(request.values),
            *request.flags(),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    # --- the disk ---

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"

    def _load(self, key: str) -> tuple[Manifest, ...] | RenderError | None:
        try:
            kept = json.loads(self._file(key).read_bytes())
            if "raw" in kept:
                return RenderError(sentences(kept["raw"]), kept["raw"])
            return tuple(map(self._loaded, kept["manifests"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or half-written by an older version: render again

    def _save(self, key: str, result: tuple[Manifest, ...] | RenderError) -> None:
        kept: dict[str, Any]
        if isinstance(result, RenderError):
            kept = {"raw": result.raw}
        else:
            kept = {"manifests": [self._entry(item) for item in result]}
        self._write(key, json.dumps(kept))

    def _entry(self, item: Manifest) -> dict[str, Any] | str:
        """An object on the disk: itself, or the key of a file, which renders that have it in common share."""
        if id(item) not in self._written:
            entry: dict[str, Any] | str = {"source": item.source, "object": item.thaw()}
            text = json.dumps(entry)
            if len(text) >= _LARGE:
                entry = hashlib.sha256(text.encode()).hexdigest()
                self._write(entry, text)
            self._written[id(item)] = item, entry
        return self._written[id(item)][1]

    def _loaded(self, entry: dict[str, Any] | str) -> Manifest:
        if not isinstance(entry, str):
            return Manifest(entry["object"], entry["source"])
        if entry not in self._read:
            self._read[entry] = self._loaded(json.loads(self._file(entry).read_bytes()))
        return self._read[entry]

    def _write(self, key: str, text: str) -> None:
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".part", delete=False) as part:
            part.write(text)
        Path(part.name).replace(file)


def _decoded(text: str) -> Any:
    """JSON in Base64, with numbers as Helm keeps them."""
    return json.loads(
        base64.b64decode(text),
        parse_int=lambda digits: json_number(int(digits)),
        parse_float=lambda digits: json_number(float(digits)),
    )


# --- a chart's files ---


def tree_digest(chart: Path) -> str:
    """SHA-256 over the names and contents of all files of ``chart``, links to dependencies followed.

    Raises BiremeError when it is not a chart, or when charts/ holds a dependency twice.
    """
    if not (chart / "Chart.yaml").is_file():
        raise BiremeError(f"{chart} is not a chart: it has no Chart.yaml")
    digest = hashlib.sha256()
    # Python writes bytecode at any time, and .helmignore leaves it out.
    for file in filter(Path.is_file, files_below(chart, "__pycache__")):
        if file.name == "Chart.yaml" and file.parent.parent.name == "charts" and file.parent != chart:
            _refuse_twice(file.parent)
        name = file.relative_to(chart).as_posix().encode()
        content = hashlib.sha256(file.read_bytes()).digest()
        digest.update(len(name).to_bytes(4, "big") + name + content)
    return digest.hexdigest()


def _refuse_twice(dependency: Path) -> None:
    """Helm would render a packaged copy too, which nobody keeps up to date."""
    charts, name = dependency.parent, dependency.name
    for archive in sorted(charts.glob(f"{name}-*.tgz")):
        if re.fullmatch(r"v?\d.*", archive.name[len(name) + 1 :]):
            raise BiremeError(
                f"{charts} holds {name} twice, as {name} and as {archive.name}: "
                f"remove {archive.name} (helm dependency build leaves such copies)"
            )
