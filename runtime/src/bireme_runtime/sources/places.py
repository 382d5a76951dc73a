"""The source at a URL, with the environment that is its own."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from bireme_runtime.sources.rclone import RcloneSource
from bireme_runtime.sources.source import FolderSource, Source, SourceError, shown
from bireme_runtime.sources.web import HttpSource, S3Source

_KEYS = frozenset(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "BIREME_S3_ANONYMOUS"))


def env_of(env: Mapping[str, str], number: int) -> Mapping[str, str]:
    """The environment for a source: its own variables, BIREME_SOURCE_N_NAME, count before NAME."""
    prefix = f"BIREME_SOURCE_{number}_"
    own = {name[len(prefix) :]: value for name, value in env.items() if name.startswith(prefix)}
    # Credentials come as a whole: half of one's own and half of another's are none.
    shared = env if not _KEYS & own.keys() else {k: v for k, v in env.items() if k not in _KEYS}
    return {**shared, **own}


def open_source(url: str, env: Mapping[str, str]) -> Source:
    """The source at s3://…, http(s)://…, rclone://REMOTE/PATH or file:///FOLDER. Raises SourceError."""
    scheme, _, rest = url.partition("://")
    if scheme == "s3":
        # Keys may contain # and ?, which a parser of URLs takes for the end of the path.
        bucket, _, prefix = rest.partition("/")
        if not re.fullmatch(r"[A-Za-z0-9._-]+", bucket):
            raise SourceError(
                f"{url} is not s3://BUCKET/PREFIX: instead of an ARN, give the bucket's name, or the alias "
                "of the access point, which ends with -s3alias"
            )
        if bucket.endswith("--x-s3"):
            raise SourceError(
                f"s3://{bucket} is a directory bucket (S3 Express), which has other credentials and tags: "
                "name the bucket from which it was filled"
            )
        return S3Source(bucket, prefix.lstrip("/"), env)
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
