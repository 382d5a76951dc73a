"""A request against the release that is there: whose values count, and what the first line says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bireme.cli.options import App, where
from bireme.helm import RenderRequest, scripts

if TYPE_CHECKING:
    from bireme.clusters.base import Cluster


@dataclass(frozen=True)
class Upgrade:
    """A request with the values that it will have, for one cluster.

    ``differing`` is a sentence about the values that differ from the release's, "" without any.
    """

    cluster: Cluster
    request: RenderRequest
    differing: str


def begun(
    app: App, /, cluster: Cluster, request: RenderRequest, reuses: bool, output: str, must_exist: bool = True
) -> Upgrade:
    """Say what is done where and with whose values; the values of the release stay if it ``reuses`` them.

    Raises NoRelease where the release ``must_exist`` and does not.
    """
    from bireme.live.release import NoRelease

    place = where(cluster, request.namespace)
    installed = app.releases(cluster).read(request.release, request.namespace)
    try:
        old = installed.values
    except NoRelease:
        if must_exist or reuses:
            raise
        _say(app, output, f"install of {request.release}: {place}")
        return Upgrade(cluster, request, "")
    if reuses:
        request = replace(request, values=scripts.applied(old, dict(request.values), whole=True))
    request = app.renderer.merged(request)
    gone, changed = _differing(old, request.values)
    rule = "its values stay" if reuses else "only the values given here count"
    dropped = f", {', '.join(gone)} of the release not (--reuse-values keeps them)" if gone else ""
    _say(app, output, f"upgrade of {request.release}: {place}; {rule}{dropped}")
    differing = [*(f"{key} (not given now)" for key in gone), *changed]
    return Upgrade(cluster, request, f"values that differ: {', '.join(differing)}" if differing else "")


def _say(app: App, output: str, line: str) -> None:
    if output not in ("json", "yaml"):
        app.err.print(line, soft_wrap=True)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The keys that only ``old`` has, and those whose values differ or are new, as people write them."""
    gone, changed = [], []
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key), new.get(key)
        if key not in new:
            gone.append(key)
        elif isinstance(one, Mapping) and isinstance(other, Mapping):
            below = _differing(one, other)
            gone += [f"{key}.{each}" for each in below[0]]
            changed += [f"{key}.{each}" for each in below[1]]
        elif one != other:
            changed.append(key)
    return gone, changed
