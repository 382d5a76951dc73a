"""What the harness does when an API server is too busy to answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from bireme.clusters.api import Api, ApiError


class BusyServer(ThreadingHTTPServer):
    """Answers 429 as many times as it is told to, then the object; counts what it is asked."""

    busy = 0
    asked = 0


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, BusyServer)
        server.asked += 1
        is_busy = server.asked <= server.busy
        body = json.dumps(
            {"message": "storage is (re)initializing"} if is_busy else {"kind": "Node"}
        ).encode()
        self.send_response(429 if is_busy else 200)
        self.send_header("Content-Length", str(len(body)))
        if is_busy:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test says what it has to say."""


@pytest.fixture
def server() -> Iterator[BusyServer]:
    server = BusyServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def api(server: BusyServer, tmp_path: Path) -> Api:
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "it",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig))
    return Api(file)


def test_a_busy_server_is_asked_again_when_it_says(api: Api, server: BusyServer) -> None:
    server.busy = 3
    assert api.get("/api/v1/nodes/n") == {"kind": "Node"}
    assert server.asked == 4


def test_a_server_that_stays_busy_is_named_with_its_reason(api: Api, server: BusyServer) -> None:
    server.busy = 1000
    with pytest.raises(ApiError, match=r"storage is \(re\)initializing") as refusal:
        api.get("/api/v1/nodes/n")
    assert refusal.value.status == 429
    assert server.asked == 10
