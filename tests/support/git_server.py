"""A git repository of the tests' own, which Flux and others fetch by HTTP."""

from __future__ import annotations

import base64
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_SERVICE = "git-upload-pack"


@dataclass(frozen=True)
class Repository:
    """A repository with one branch, main: ``folder`` on this machine, ``url`` for those who fetch."""

    folder: Path
    url: str

    def commit(self, message: str, files: Mapping[str, str]) -> str:
        """Write files, by their names in the repository, and commit all that changed; returns the commit."""
        for name, content in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "-m", message)
        return git(self.folder, "rev-parse", "HEAD").strip()

    def revert(self) -> str:
        """Take the last commit back; returns the commit that does so."""
        git(self.folder, "revert", "--no-edit", "HEAD")
        return git(self.folder, "rev-parse", "HEAD").strip()


@contextmanager
def serving(folder: Path, password: str = "") -> Iterator[Repository]:
    """An empty repository in ``folder``, served while the block runs, with a password to team."""
    git(folder.parent, "init", "--quiet", "--initial-branch", "main", str(folder))
    for key, value in {"user.name": "A team", "user.email": "team@example.com"}.items():
        git(folder, "config", key, value)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if not self._is_known():
                return
            if asked.path != "/jobs.git/info/refs" or parse_qs(asked.query).get("service") != [_SERVICE]:
                self.send_error(404)
                return
            head = f"# service={_SERVICE}\n"
            refs = _upload_pack(folder, ["--advertise-refs"], b"")
            self._answer("advertisement", f"{len(head) + 4:04x}{head}0000".encode() + refs)

        def do_POST(self) -> None:
            if not self._is_known():
                return
            request = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer("result", _upload_pack(folder, [], request))

        def _is_known(self) -> bool:
            known = f"Basic {base64.b64encode(f'team:{password}'.encode()).decode()}"
            if password and self.headers.get("Authorization") != known:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return False
            return True

        def _answer(self, kind: str, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", f"application/x-{_SERVICE}-{kind}")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: who fetches when is of no interest."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield Repository(folder, f"http://127.0.0.1:{server.server_port}/jobs.git")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def git(folder: Path, *words: str) -> str:
    """What git prints. Raises CalledProcessError."""
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def _upload_pack(folder: Path, options: list[str], request: bytes) -> bytes:
    # As git's own server does it (gitprotocol-http): each request is answered by a process of its own.
    command = ["git", "upload-pack", "--stateless-rpc", *options, str(folder)]
    return subprocess.run(command, input=request, check=True, capture_output=True).stdout
