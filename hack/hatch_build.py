"""The build hook of hatchling that puts the charts into the packages of bireme.

charts/ has links to the libraries and to the runtime. Hatchling follows each folder once, so it gets a copy
without links.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CopyCharts(BuildHookInterface[Any]):
    """Adds charts/ to wheels, as bireme/project/charts, and to sdists."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._copy = tempfile.TemporaryDirectory()
        shutil.copytree(
            Path(self.root) / "charts",
            self._copy.name,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.tgz"),
        )
        target = "bireme/project/charts" if self.target_name == "wheel" else "charts"
        build_data["force_include"][self._copy.name] = target

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._copy.cleanup()
