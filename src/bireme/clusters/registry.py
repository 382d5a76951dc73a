"""The cluster providers by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from bireme.clusters.base import Provider
from bireme.errors import BiremeError
from bireme.paths import Paths

if TYPE_CHECKING:
    from rich.console import Console

    from bireme.tools import Toolbox

PROVIDERS = ("embedded", "kind", "existing")


def provider(name: str, paths: Paths, toolbox: Toolbox, console: Console | None = None) -> Provider:
    """The provider called ``name``. Raises BiremeError with the names there are."""
    # Imported when it is asked for: a command needs one of them, and most commands need none.
    if name == "embedded":
        from bireme.clusters.embedded import EmbeddedProvider

        return EmbeddedProvider(paths, toolbox, console)
    if name == "kind":
        from bireme.clusters.kind import KindProvider

        return KindProvider(paths, toolbox, console)
    if name == "existing":
        from bireme.clusters.existing import ExistingProvider

        return ExistingProvider()
    close = difflib.get_close_matches(name, PROVIDERS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(PROVIDERS)}"
    raise BiremeError(f"unknown cluster provider {name!r}: {hint}")
