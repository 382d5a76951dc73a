"""Sources that the program rclone reads: Google Cloud Storage, Azure, SFTP and others (rclone.org/overview).

rclone lists them, and one process of it serves their objects on loopback, where they are read in ranges as
from a web server. What is copied, continued and verified is decided here, as for every source.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import urllib.parse
import weakref
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from bireme_runtime.process.errors import Unreachable
from bireme_runtime.sources.checksums import Checksum
from bireme_runtime.sources.source import Body, Changed, Entry, SourceError, retry, safe_path, some
from bireme_runtime.sources.web.aws import unix_time
from bireme_runtime.sources.web.http import ConnectionPool, check_status

_STARTS_SECONDS = 60
# Exit codes of rclone after which another attempt does not help (rclone.org/docs/#list-of-exit-codes).
_FINAL = (2, 3, 4, 7)
_UNKNOWN_REMOTE = "didn't find section in config file"
# Nanoseconds: what rclone calls the precision of times that are not kept.
_NO_TIMES = 100 * 365 * 24 * 3600 * 10**9


class RcloneSource:
    """The files below `remote:path`, or one file. RCLONE_CONFIG in `env` is the file with the remote."""

    def __init__(self, remote: str, path: str, env: Mapping[str, str]) -> None:
        self._name = f"rclone://{remote}/{path}"
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", remote) or "]" in path:
            raise SourceError(
                f"{self._name} is not rclone://REMOTE/PATH, with a remote of rclone's configuration"
            )
        program = shutil.which("rclone")
        if program is None:
            raise SourceError(
                f"{self._name} needs the program rclone: set an image that has it beside Python"
            )
        self._program, self._remote, self._place = program, f"{remote}:", f"{remote}:{path}"
        self._env = {**os.environ, **env, "TZ": "UTC"}
        self._base = self._place
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._pool = ConnectionPool()

    def entries(self) -> Iterator[Entry]:
        found = json.loads(retry(lambda: self._output("backend", "features", self._remote)))
        options = ["--no-mimetype"]
        if "md5" in found["Hashes"] and not found["Features"].get("SlowHash"):
            options += ["--hash-type", "md5"]
        if found["Precision"] >= _NO_TIMES:
            options += ["--no-modtime"]
        one = json.loads(retry(lambda: self._output("lsjson", "--stat", *options, self._place)))
        if one is None:
            raise SourceError(f"{self._name} does not exist: check the path")
        if not one["IsDir"]:
            self._base = re.sub(r"[^/:]+$", "", self._place)
            yield _entry(one)
            return
        yield from some(map(_entry, self._listed(options)), f"{self._name} has no files")

    def _listed(self, options: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """What `rclone lsjson` prints, which is one object a line."""
        command = [self._program, "lsjson", "--recursive", "--files-only", *options, self._place]
        with tempfile.TemporaryFile("w+") as errors, contextlib.ExitStack() as stack:
            process = stack.enter_context(
                subprocess.Popen(command, env=self._env, stdout=subprocess.PIPE, stderr=errors, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line.rstrip().rstrip(","))
            code = process.wait()
            errors.seek(0)
            self._check(code, errors.read())

    def _output(self, *arguments: str) -> str:
        command = [self._program, *arguments]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        self._check(done.returncode, done.stderr)
        return done.stdout

    def _check(self, code: int, errors: str) -> None:
        if code == 0:
            return
        words = " ".join((errors.strip().splitlines() or [f"exit code {code}"])[-1].split())[:300]
        sentence = f"{self._name} cannot be listed: {words}"
        if code in _FINAL or _UNKNOWN_REMOTE in errors:
            raise SourceError(sentence)
        raise Unreachable(sentence)

    @contextlib.contextmanager
    def read(self, entry: Entry, start: int, end: int) -> Iterator[Body]:
        server = self._running()
        url = f"{server.url}{urllib.parse.quote(f'[{self._base}]/{entry.key}')}"
        headers = {"range": f"bytes={start}-{end - 1}", "authorization": server.authorization}
        with self._pool.request(url, headers) as answer:
            what = f"{self._name}: {entry.key}"
            if answer.status in (404, 416):
                raise Changed(f"{what} has changed since it was listed")
            check_status(answer, what, (206,))
            # Each answer has the time and size of the object that it comes from.
            size, modified = answer.headers.get("Content-Range", ""), answer.headers.get("Last-Modified")
            if modified is None:
                raise SourceError(f"{self._name} needs a newer rclone in the image, such as 1.76")
            listed = entry.version.partition(" ")[0]
            is_same = not listed or unix_time(listed) == int(parsedate_to_datetime(modified).timestamp())
            if size.rpartition("/")[2] != str(entry.size) or not is_same:
                raise Changed(f"{what} has changed since it was listed")
            yield Body(answer.read, _md5(entry))

    def checksums(self, entry: Entry) -> Iterator[Checksum]:
        return filter(None, iter([_md5(entry)]))

    def _running(self) -> _Server:
        with self._lock:
            if self._server is None or not self._server.is_alive():
                self._server = _Server(self._program, self._env)
            return self._server


class _Server:
    """rclone as a web server on loopback, which ends with this object."""

    def __init__(self, program: str, env: Mapping[str, str]) -> None:
        password = secrets.token_urlsafe()
        self.authorization = f"Basic {base64.b64encode(f'bireme:{password}'.encode()).decode()}"
        self._process = subprocess.Popen(
            [program, "rcd", "--rc-serve", "--rc-addr", "127.0.0.1:0"],
            env={**env, "RCLONE_RC_USER": "bireme", "RCLONE_RC_PASS": password},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        weakref.finalize(self, self._process.kill)
        self.url, self._last = "", ""
        self._is_up = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()
        if not self._is_up.wait(_STARTS_SECONDS) or not self.url:
            self._process.kill()
            raise Unreachable(f"rclone does not start: {self._last[:300]}")

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _follow(self) -> None:
        """Read what it logs, so that it is never kept waiting."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last = line.strip()
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            if found and not self.url:
                self.url = found[0]
                self._is_up.set()
        self._is_up.set()


def _entry(found: Mapping[str, Any]) -> Entry:
    if found["Size"] < 0:
        raise SourceError(
            f"{found['Path']} has no size, so it cannot be checked: rclone cannot copy it either way"
        )
    path = safe_path(found["Path"])
    version = f"{found.get('ModTime') or ''} {found.get('Hashes', {}).get('md5', '')}".rstrip()
    return Entry(path, found["Size"], version, found["Path"])


def _md5(entry: Entry) -> Checksum | None:
    digest = entry.version.partition(" ")[2]
    return Checksum("md5", bytes.fromhex(digest)) if digest else None
