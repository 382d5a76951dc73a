"""What members of a rendezvous lose when etcd restarts, is silent or is cut in two: nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bireme_runtime.elastic import rendezvous
from bireme_runtime.elastic.rendezvous import Rendezvous, Settings
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer
from tests.support import waiting

Start = Callable[..., list[Rendezvous]]


@pytest.fixture
def start(prefix: str) -> Iterator[Start]:
    """Make members with the default lease and join them; each has a client of its own, as in a pod."""
    members: list[Rendezvous] = []

    def start(count: int, *servers: EtcdServer, user: str = "", **changes: Any) -> list[Rendezvous]:
        endpoints = etcd.parse_endpoints(",".join(server.endpoint for server in servers))
        fields = {"prefix": prefix, "join_timeout": 40, "settle_timeout": 0, **changes}
        settings = Settings("run", count, count, **fields)
        for slot in range(count):
            client = etcd.Client(endpoints, etcd.Credentials(user, user[:1]), settings.heartbeat_timeout)
            identity = rendezvous.Identity(rendezvous.new_base(f"m{slot}"), slot, "10.0.0.1")
            members.append(Rendezvous(client, settings, identity))
        join_all(members)
        return members

    yield start
    with ThreadPoolExecutor(max(1, len(members))) as pool:
        list(pool.map(lambda each: each.leave(), members))


def join_all(members: list[Rendezvous]) -> list[rendezvous.World]:
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda each: each.join(), members))


@pytest.mark.parametrize("run", range(5))
def test_a_silent_etcd_among_three_ends_no_lease_and_delays_no_round(
    run: int, three_etcds: list[EtcdServer], start: Start
) -> None:
    members = start(6, *three_etcds, keep_alive_max_attempt=5)
    three_etcds[run % 3].signal(signal.SIGSTOP)
    stopped = time.monotonic()
    with ThreadPoolExecutor(6) as pool:
        failed = pool.submit(members[0].join)
        for each in members[1:]:
            waiting.until(each.waiting, seconds=6, what="a member to see the failure of another", every=0.02)
        worlds = [failed, *[pool.submit(each.join) for each in members[1:]]]
        assert {(each.result().number, each.result().size) for each in worlds} == {(2, 6)}
    assert time.monotonic() - stopped < 8
    time.sleep(max(0.0, 9 - (time.monotonic() - stopped)))
    assert [each.waiting() for each in members] == [0] * 6
