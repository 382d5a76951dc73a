"""Official binaries over HTTP, checked against the checksums their projects publish."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from rich.console import Console

from bireme.core.errors import BiremeError
from bireme.core.progress import step
from bireme.tools.pins import Tool

# For an answer, and for each piece of a file.
_SECONDS = 5.0
_CHUNK = 1 << 18


class NotOffered(Exception):
    """The host has no such file, or stopped answering: the tool must come from elsewhere."""


class Downloads:
    """Fetches release files, from their own hosts or from one mirror of them all.

    With ``mirror``, https://HOST/PATH is requested as MIRROR/HOST/PATH. A host that does not answer is asked
    once per process, so that a machine without internet waits for one short timeout each.
    """

    def __init__(self, mirror: str | None = None) -> None:
        if mirror and not mirror.startswith(("http://", "https://")):
            raise BiremeError(
                f"BIREME_MIRROR={mirror} is not a URL: begin it with http:// or https://, or unset it"
            )
        self._mirror = mirror.rstrip("/") if mirror else None
        self._silent: set[str] = set()

    def fetch(self, tool: Tool, target: Path, console: Console) -> None:
        """Write the official binary of ``tool`` to ``target``, verified and executable.

        Raises NotOffered when there is no answer, BiremeError when its checksum is not the published one.
        """
        release = tool.release
        if release is None:
            raise NotOffered
        file = target.with_name("download")
        url = self._at(release.url)
        published = _published_sum(self._text(self._at(release.checksums)), url, release.checksums)
        actual = self._save(url, file, tool, console)
        if actual != published:
            file.unlink()
            raise BiremeError(
                f"{url} is not what was published: its SHA-256 is {actual}, "
                f"{release.checksums} has {published}; the download was deleted, "
                "try again, or report it to the operator of the mirror or proxy in between"
            )
        if release.member is None:
            file.rename(target)
        else:
            _unpack(file, release.member, target, url)
        target.chmod(0o755)

    def _at(self, url: str) -> str:
        return f"{self._mirror}/{url.split('://', 1)[1]}" if self._mirror else url

    @contextlib.contextmanager
    def _open(self, url: str) -> Iterator[IO[bytes]]:
        """The answer to a request. Raises NotOffered when there is none, or when it ends too early."""
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import urlopen

        host, answer = urlsplit(url).netloc, None
        if host in self._silent:
            raise NotOffered
        try:
            with urlopen(url, timeout=_SECONDS) as answer:
                yield answer
        except (OSError, HTTPException) as error:
            if answer is None and not isinstance(error, HTTPError):
                self._silent.add(host)
            raise NotOffered(f"{url}: {error}") from error

    def _text(self, url: str) -> str:
        with self._open(url) as answer:
            return answer.read().decode(errors="replace")

    def _save(self, url: str, file: Path, tool: Tool, console: Console) -> str:
        digest, done = hashlib.sha256(), 0
        with (
            self._open(url) as answer,
            file.open("wb") as out,
            step(console, f"downloading {tool.label}", detail=lambda: f"{done / 1e6:.0f} MB"),
        ):
            while chunk := answer.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
        return digest.hexdigest()


def _published_sum(checksums: str, url: str, source: str) -> str:
    """The sum of the file at ``url`` in a list of ``<sum>  <name>`` lines, or the only sum of a bare file."""
    name = url.rsplit("/", 1)[1]
    lines = [line.split() for line in checksums.splitlines() if line.strip()]
    if len(lines) == 1 and len(lines[0]) == 1:
        return lines[0][0].lower()
    for line in lines:
        if len(line) == 2 and line[1].lstrip("*") == name:
            return line[0].lower()
    raise BiremeError(
        f"{source} has no checksum for {name}: the release is not what hack/tools/tools.toml expects"
    )


def _unpack(archive: Path, member: str, target: Path, url: str) -> None:
    with tarfile.open(archive) as tar:
        try:
            content = tar.extractfile(member)
        except KeyError:
            content = None
        if content is None:
            raise BiremeError(f"{url} holds no {member}: correct the member in hack/tools/tools.toml")
        with content, target.open("wb") as out:
            shutil.copyfileobj(content, out)
    archive.unlink()
