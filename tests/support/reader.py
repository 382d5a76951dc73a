"""Somebody who types the commands of a document."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bireme.tools import Toolbox
from tests.support.documents import ROOT


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
