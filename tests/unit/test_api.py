"""What the harness makes of an API server that is busy or silent, and of its lists."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from bireme.clusters.api import Api, ApiError
from bireme.clusters.existing import existing
from tests.support.api_server import Quiet, serving, write_kubeconfig


class BusyServer(ThreadingHTTPServer):
    """Refuses the first ``busy`` requests, then gives the object. Counts the requests."""

    busy = 0
    asked = 0
    status = 429
    words = "storage is (re)initializing"


class Answer(Quiet):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, BusyServer)
        server.asked += 1
        is_busy = server.asked <= server.busy
        body = json.dumps({"message": server.words} if is_busy else {"kind": "Node"}).encode()
        if is_busy:
            self.answer(body, server.status, Retry_After="0")
        else:
            self.answer(body)

    do_POST = do_GET


@pytest.fixture
def server() -> BusyServer:
    return BusyServer(("127.0.0.1", 0), Answer)


@pytest.fixture
def api(server: BusyServer, tmp_path: Path) -> Iterator[Api]:
    with serving(server, tmp_path) as kubeconfig:
        yield Api(kubeconfig)


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


def test_a_server_whose_etcd_chooses_a_leader_is_asked_again_but_for_what_could_be_there_twice(
    api: Api, server: BusyServer
) -> None:
    server.busy, server.status, server.words = 2, 500, "etcdserver: leader changed"
    assert api.get("/api/v1/nodes/n") == {"kind": "Node"}
    assert server.asked == 3
    server.asked = 0
    with pytest.raises(ApiError, match="leader changed"):
        api.create("/api/v1/nodes", {})
    assert server.asked == 1


def test_an_answer_that_breaks_off_is_told_in_a_sentence(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"{")

    monkeypatch.setattr(Answer, "do_GET", cut)
    with pytest.raises(ApiError, match="was lost in the middle"):
        api.get("/api/v1/nodes/n")
    with pytest.raises(ApiError, match="was lost in the middle"):
        api.proxied("default", "pod", 80, "v1/status", 5)


def test_a_server_that_takes_connections_and_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        kubeconfig = write_kubeconfig(tmp_path, port)
        since = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", "from bireme.cli import main; main()", "list"],
            capture_output=True, text=True, timeout=240, check=False,
            env={**os.environ, "HOME": str(tmp_path), "KUBECONFIG": str(kubeconfig)},
        )  # fmt: skip
    assert done.returncode == 1
    assert f"the cluster at http://127.0.0.1:{port} does not answer" in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert time.monotonic() - since < 120


def test_several_kubeconfigs_are_one_as_for_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "token").write_text("secret")
    contexts = [{"name": "dev", "context": {"cluster": "here", "user": "me"}}]
    first = tmp_path / "first"
    first.write_text(json.dumps({"current-context": "dev", "contexts": contexts}))
    cluster = {"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}
    user = {"name": "me", "user": {"tokenFile": "token"}}
    second = tmp_path / "keys" / "second"
    other = {"name": "dev", "context": {"cluster": "elsewhere"}}
    second.write_text(json.dumps({"contexts": [other], "clusters": [cluster], "users": [user]}))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "missing"), str(first), str(second)]))
    with pytest.raises(ApiError, match=r"the cluster at http://127\.0\.0\.1:1 does not answer"):
        existing()


ONE, TWO = {"kind": "Pod", "name": "one"}, {"kind": "Pod", "name": "two"}
LISTS = {
    "/api/v1/namespaces/a/pods": ([ONE], 200),
    "/api/v1/namespaces/b/pods": (None, 200),
    "/api/v1/pods": ([ONE, TWO], 200),
    "/api/v1/secrets": (None, 403),
}


class Lists(Quiet):
    def do_GET(self) -> None:
        items, status = LISTS.get(self.path, (None, 404))
        self.answer(json.dumps({"items": items}).encode(), status)


def test_a_list_may_be_null_and_only_the_statuses_that_are_named_mean_none(tmp_path: Path) -> None:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Lists), tmp_path) as kubeconfig:
        api = Api(kubeconfig)
        assert api.items("/api/v1/namespaces/b/pods") == []
        assert api.items("/api/v1/secrets", unless=(403,)) == []
        with pytest.raises(ApiError):
            api.items("/api/v1/secrets", unless=(404,))
        assert api.among(("a", "b"), "/api/v1", "pods") == [ONE]
        assert api.among((), "/api/v1", "pods") == [ONE, TWO]
