"""Where the project's files, its cache and its state live."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bireme.core.errors import BiremeError


@dataclass(frozen=True)
class Paths:
    """The directories everything else starts from.

    ``root`` holds charts/, values/, schemas/ and hack/; ``cache`` can be deleted at any time; ``state``
    holds what a running cluster needs.
    """

    root: Path
    cache: Path
    state: Path

    @property
    def charts(self) -> Path:
        """The chart collection."""
        return self.root / "charts"

    @property
    def values(self) -> Path:
        """Instance and workload values files."""
        return self.root / "values"

    @property
    def schemas(self) -> Path:
        """JSON Schema sources."""
        return self.root / "schemas"

    @property
    def hack(self) -> Path:
        """Pinned tools and cluster recipes."""
        return self.root / "hack"

    @classmethod
    def discover(cls, environ: Mapping[str, str] = os.environ, start: Path | None = None) -> Paths:
        """Find the project: a checkout around ``start`` (default: the working directory), else one around
        this package, else the files inside an installed package.

        Raises BiremeError when there is none of them.
        """
        origin = (start or Path.cwd()).resolve()
        package = Path(__file__).resolve().parents[1]
        for folder in [origin, *origin.parents, *package.parents, package / "project"]:
            if (folder / "values/instances").is_dir() and (folder / "hack/tools").is_dir():
                return cls(folder, _base(environ, "CACHE", ".cache"), _base(environ, "STATE", ".local/state"))
        raise BiremeError(
            f"no Bireme checkout around {origin}: run bireme inside a clone, "
            "the folder that holds values/instances and hack/tools"
        )


def _base(environ: Mapping[str, str], purpose: str, fallback: str) -> Path:
    own = environ.get(f"BIREME_{purpose}")
    if own:
        return Path(own).resolve()
    xdg = environ.get(f"XDG_{purpose}_HOME")
    return (Path(xdg) if xdg else Path(environ.get("HOME", "~")).expanduser() / fallback) / "bireme"
