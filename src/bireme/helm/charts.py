"""Charts by what users call them: a folder, an archive, oci://…, or a name of the collection."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from bireme.core.errors import BiremeError, suggestion
from bireme.core.paths import Paths
from bireme.helm.values import unpack
from bireme.tools import Toolbox
from bireme.tools.store import make_once


class Charts:
    """Finds charts. Archives are unpacked once, into a folder of the cache that their content names."""

    def __init__(self, paths: Paths, toolbox: Toolbox) -> None:
        self._paths = paths
        self._toolbox = toolbox

    def names(self) -> list[str]:
        """The charts of the collection, without the libraries."""
        files = sorted(self._paths.charts.glob("*/Chart.yaml"))
        return [file.parent.name for file in files if "type: library" not in file.read_text("utf-8")]

    def find(self, called: str, plain_http: bool = False) -> Path:
        """The folder of a chart. A chart in the working directory hides one of the collection.

        Raises BiremeError when there is none, or when an archive or a registry does not give one.
        """
        path = Path(called)
        if called.startswith("oci://"):
            return self._pull(called, plain_http)
        if called.endswith(".tgz") and path.is_file():
            return self._unpack(path)
        if (path / "Chart.yaml").is_file():
            return path
        if called in self.names():
            return self._paths.charts / called
        if path.exists() or "/" in called:
            return path  # whoever reads it says what is wrong with it
        raise BiremeError(
            f"there is no chart {called}: name a folder, an archive, oci://… or a chart of the collection; "
            f"{suggestion(called, self.names())}"
        )

    def _pull(self, reference: str, plain_http: bool) -> Path:
        with tempfile.TemporaryDirectory() as folder:
            command = [str(self._toolbox.path("helm")), "pull", reference, "--destination", folder]
            command += ["--plain-http"] if plain_http else []
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            archives = list(Path(folder).glob("*.tgz"))
            if done.returncode or len(archives) != 1:
                reason = " ".join(done.stderr.split()).removeprefix("Error: ")
                raise BiremeError(f"{reference} cannot be pulled: {reason}")
            return self._unpack(archives[0])

    def _unpack(self, archive: Path) -> Path:
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        home = self._paths.cache / "charts" / digest
        make_once(home, lambda folder: unpack(archive, folder))
        folders = [file.parent for file in home.glob("*/Chart.yaml")]
        if len(folders) != 1:
            raise BiremeError(f"{archive.name} is not a packaged chart: it has no Chart.yaml in one folder")
        return folders[0]
