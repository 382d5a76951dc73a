"""Rank 0 of a round answers no more although its machine does, with real torchrun."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bireme_runtime.elastic.rendezvous import membership
from bireme_runtime.elastic.rendezvous.rules import RunSettings
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer
from tests.support import waiting


def asked(server: socket.socket) -> list[socket.socket]:
    """The connections on which somebody has said something; nothing is answered. Filled in a thread."""
    found: list[socket.socket] = []

    def take() -> None:
        while True:
            connection, _ = server.accept()
            if connection.recv(1):
                found.append(connection)

    threading.Thread(target=take, daemon=True).start()
    return found


@pytest.mark.whole
def test_a_worker_does_not_wait_for_ever_for_a_store_that_is_silent(
    job: Callable[..., Any], shared_etcd: EtcdServer, prefix: str
) -> None:
    client = etcd.Client(etcd.parse_endpoints(shared_etcd.endpoint))
    paused = membership.Rendezvous(
        client, RunSettings("run", 2, 3, prefix), membership.Identity("paused", 0, "127.0.0.1")
    )
    run = job(PET_NNODES="2:3", steps=10)
    worlds: list[membership.World] = []
    joining = threading.Thread(target=lambda: worlds.append(paused.join()))
    joining.start()
    run.start("b", 1)
    joining.join(120)
    assert [(world.rank, world.size) for world in worlds] == [(0, 2)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = asked(server)
        store = f'["127.0.0.1", {server.getsockname()[1]}, 1]'
        assert paused.publish_store(worlds[0], store)
        waiting.until(lambda: connections, what=lambda: run.words("b")[-3000:])
        # As when the lease of a paused worker ends.
        paused.leave()
        run.start("a", 0)
        assert [run.end(name, 120) for name in "ab"] == [0, 0]
    run.check_steps(10)
