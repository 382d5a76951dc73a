"""Somebody who types the commands of a document."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.support.documents import ROOT, Block


class Reader:
    """Types commands in a folder that looks like the clone, with the pinned helm and kubectl.

    ``variables`` are further ones of the environment. What is in ``programs`` is found before other programs.
    """

    def __init__(self, folder: Path, toolbox: Toolbox, variables: Mapping[str, str]) -> None:
        self.clone, self.programs = folder / "clone", folder / "bin"
        self.clone.mkdir()
        self.programs.mkdir()
        for entry in ROOT.iterdir():
            (self.clone / entry.name).symlink_to(entry)
        found = [Path(sys.executable).parent, toolbox.path("helm").parent, toolbox.path("kubectl").parent]
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(self.programs), *map(str, found), os.environ["PATH"]]),
            "COLUMNS": "200",
            **variables,
        }

    def types(self, text: str) -> subprocess.CompletedProcess[str]:
        """What the command prints, to wherever it does, and how it ends."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.clone,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )


class Newcomer:
    """Pastes blocks of commands into shells in ``clone``, with a new HOME and the tools of the cache."""

    def __init__(self, clone: Path, home: Path, paths: Paths) -> None:
        self.clone, self.home = clone, home
        home.mkdir()
        path = [
            folder
            for folder in os.environ["PATH"].split(os.pathsep)
            if Path(sys.prefix) not in Path(folder, "x").parents
        ]
        self.environment = {
            "HOME": str(home),
            "PATH": os.pathsep.join([str(Path(sys.base_prefix) / "bin"), *path]),
            "LANG": "C.UTF-8",
            "BIREME_CACHE": str(paths.cache),
        } | {key: value for key, value in os.environ.items() if key.startswith(("SSL_", "PIP_"))}

    def pastes(self, block: Block, *programs: Path) -> str:
        """All that a shell prints with ``programs`` first on PATH. Commands end as their document says."""
        commands = [each for each in block.commands if not each.needs]
        lines = [
            line for number, each in enumerate(commands) for line in (each.text, f'echo "<{number}:$?>"')
        ]
        path = os.pathsep.join([*map(str, programs), self.environment["PATH"]])
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            cwd=self.clone,
            env=self.environment | {"PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        codes = re.findall(r"^<(\d+):(\d+)>$", done.stdout, re.MULTILINE)
        assert codes == [(str(number), str(each.code)) for number, each in enumerate(commands)], done.stdout
        return done.stdout
