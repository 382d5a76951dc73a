"""The source at a URL, with the environment that is its own."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from bireme_runtime.dataset.claim.rclone import RcloneSource
from bireme_runtime.dataset.settings import StagingSettings
from bireme_runtime.sources.source import FolderSource, Source, SourceError, shown
from bireme_runtime.sources.web.http import HttpSource
from bireme_runtime.sources.web.s3 import s3_source

_KEYS = frozenset(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "BIREME_S3_ANONYMOUS"))


def env_of(env: Mapping[str, str], number: int) -> Mapping[str, str]:
    """The environment for a source: its own variables, BIREME_SOURCE_N_NAME, count before NAME."""
    prefix = f"BIREME_SOURCE_{number}_"
    own = {name[len(prefix) :]: value for name, value in env.items() if name.startswith(prefix)}
    # Credentials come as a whole: half of one's own and half of another's are none.
    shared = env if not _KEYS & own.keys() else {k: v for k, v in env.items() if k not in _KEYS}
    return {**shared, **own}


def sources_of(settings: StagingSettings, env: Mapping[str, str]) -> list[Source]:
    """The sources of a dataset. Raises SourceError."""
    urls = (wanted["url"] for wanted in settings.sources)
    return [open_source(url, env_of(env, number)) for number, url in enumerate(urls)]


def open_source(url: str, env: Mapping[str, str]) -> Source:
    """The source at s3://…, http(s)://…, rclone://REMOTE/PATH or file:///FOLDER. Raises SourceError."""
    scheme, _, rest = url.partition("://")
    if scheme == "s3":
        return s3_source(url, env)
    if scheme in ("http", "https"):
        return HttpSource(url, env.get("BIREME_TOKEN", ""))
    if scheme == "rclone":
        remote, _, path = rest.partition("/")
        return RcloneSource(remote, path, env)
    if scheme == "file":
        return FolderSource(Path(urllib.parse.unquote(rest)))
    raise SourceError(
        f"{shown(url)} is neither s3://BUCKET/PREFIX nor https://HOST/FILE nor rclone://REMOTE/PATH "
        "nor a claim"
    )
