"""`bireme autoscale --once`, which a cron job starts anew each time, and the Lease of the controllers."""

from __future__ import annotations

import json
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bireme.autoscale import lease
from bireme.cli import cli
from tests.support.api_server import Quiet, serving


class Cluster(ThreadingHTTPServer):
    """An API server that has only a Lease, and fails the first list of Jobs."""

    lease: dict[str, Any] | None = None
    asked_for_jobs = 0


class Answer(Quiet):
    server: Cluster

    def do_GET(self) -> None:
        is_lease = "/leases/" in self.path
        if "/jobs" in self.path:
            self.server.asked_for_jobs += 1
            if self.server.asked_for_jobs == 1:
                self.answer(json.dumps({"message": "out of order"}).encode(), 500)
                return
        found = self.server.lease if is_lease else {"items": []}
        self.answer(json.dumps(found or {"message": "there is none"}).encode(), 200 if found else 404)

    def keep(self) -> None:
        self.server.lease = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.lease["metadata"]["resourceVersion"] = str(self.server.lease["spec"])
        self.answer(json.dumps(self.server.lease).encode())

    do_POST = do_PUT = keep


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(lease, "SECONDS", 1)
    return Cluster(("127.0.0.1", 0), Answer)


def once(kubeconfig: Path) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["autoscale", "--once", "--kubeconfig", str(kubeconfig)])
    return done.exit_code, f"{done.output}{done.exception or ''}"


def test_a_pass_that_fails_leaves_the_lease_to_the_next(cluster: Cluster, tmp_path: Path) -> None:
    with serving(cluster, tmp_path) as kubeconfig:
        code, said = once(kubeconfig)
        assert (code, "out of order" in said) == (1, True)
        assert cluster.lease is not None
        assert cluster.lease["spec"]["holderIdentity"] == ""
        code, said = once(kubeconfig)
        assert (code, "nothing changes" in said) == (0, True), said


def test_a_pass_waits_until_the_lease_of_one_that_has_died_is_over(cluster: Cluster, tmp_path: Path) -> None:
    with serving(cluster, tmp_path) as kubeconfig:
        once(kubeconfig)
        assert cluster.lease is not None
        cluster.lease["spec"]["holderIdentity"] = "died"
        code, said = once(kubeconfig)
    assert (code, "nothing changes" in said) == (0, True), said
