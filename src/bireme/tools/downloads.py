"""Official binaries over HTTP, checked against the checksums their projects publish."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from bireme.core.errors import BiremeError
from bireme.core.progress import step
from bireme.tools.pins import Tool

_CONNECT_SECONDS = 2.5
_READ_SECONDS = 30.0
_CHUNK = 1 << 18
_UNREACHABLE = (OSError, http.client.HTTPException)


class NotOffered(Exception):
    """The host has no such file, or stopped answering: the tool must come from elsewhere."""


class Downloads:
    """Fetches release files, from their own hosts or from one mirror of them all.

    With ``mirror``, https://HOST/PATH is requested as MIRROR/HOST/PATH. Hosts are probed once per process and
    all at the same time, so that a machine without internet waits for one short timeout only.
    """

    def __init__(self, mirror: str | None = None) -> None:
        if mirror and not mirror.startswith(("http://", "https://")):
            raise BiremeError(
                f"BIREME_MIRROR={mirror} is not a URL: begin it with http:// or https://, or unset it"
            )
        self._mirror = mirror.rstrip("/") if mirror else None
        self._answers: dict[str, bool] = {}

    def offered(self, tools: Iterable[Tool]) -> frozenset[str]:
        """The hosts that answer among those the ``tools`` are released on; takes up to 2.5 seconds."""
        hosts = {_host(self._at(tool.release.url)) for tool in tools if tool.release}
        self._probe(hosts - self._answers.keys())
        return frozenset(host for host in hosts if self._answers[host])

    def offers(self, tool: Tool) -> bool:
        """Whether ``tool`` has an official release on a host that answers."""
        return tool.release is not None and bool(self.offered([tool]))

    def fetch(self, tool: Tool, target: Path, console: Console) -> None:
        """Write the official binary of ``tool`` to ``target``, verified and executable.

        Raises NotOffered when there is no answer, BiremeError when its checksum is not the published one.
        """
        release = tool.release
        if release is None:
            raise NotOffered(f"{tool.name} publishes no checksums")
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

    def _probe(self, hosts: Iterable[str]) -> None:
        answers = self._answers
        threads = []
        for host in hosts:
            answers[host] = False

            def probe(host: str = host) -> None:
                answers[host] = _answers(host)

            # Daemon threads: a name server that never answers must delay neither the probe nor the exit.
            thread = threading.Thread(target=probe, daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join(_CONNECT_SECONDS)

    def _text(self, url: str) -> str:
        try:
            with urllib.request.urlopen(url, timeout=_READ_SECONDS) as answer:
                text: str = answer.read().decode()
                return text
        except (*_UNREACHABLE, UnicodeDecodeError) as error:
            raise NotOffered(f"{url}: {error}") from error

    def _save(self, url: str, file: Path, tool: Tool, console: Console) -> str:
        digest, done = hashlib.sha256(), 0
        try:
            with (
                urllib.request.urlopen(url, timeout=_READ_SECONDS) as answer,
                file.open("wb") as out,
                step(console, f"downloading {tool.label}", detail=lambda: f"{done / 1e6:.0f} MB"),
            ):
                while chunk := answer.read(_CHUNK):
                    out.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
        except _UNREACHABLE as error:
            raise NotOffered(f"{url}: {error}") from error
        return digest.hexdigest()


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _answers(host: str) -> bool:
    try:
        urllib.request.urlopen(
            urllib.request.Request(host + "/", method="HEAD"), timeout=_CONNECT_SECONDS
        ).close()
    except urllib.error.HTTPError:
        return True
    except _UNREACHABLE:
        return False
    return True


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
            while chunk := content.read(_CHUNK):
                out.write(chunk)
    archive.unlink()
