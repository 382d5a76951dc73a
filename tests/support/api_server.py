"""A stand-in for an API server: it answers as a test's handler does, over real HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml


class Quiet(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test says what it has to say."""

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        """Send this body."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(server: ThreadingHTTPServer, folder: Path) -> Iterator[Path]:
    """Serve while the block runs; yields a kubeconfig for it, in ``folder``."""
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield write_kubeconfig(folder, server.server_port)
    server.shutdown()
    server.server_close()


def write_kubeconfig(folder: Path, port: int) -> Path:
    """A kubeconfig, in ``folder``, for a server at this port of this machine."""
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "it",
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig))
    return file
