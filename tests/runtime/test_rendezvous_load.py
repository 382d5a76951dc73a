"""What many members ask of etcd and are told by it, by etcd's own counters: a share for each, not N²."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bireme_runtime.elastic.rendezvous import membership
from bireme_runtime.elastic.rendezvous.membership import Rendezvous
from bireme_runtime.elastic.rendezvous.rules import RunSettings
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer
from tests.support import waiting

N = 60
# Bytes of etcd's answer to a renewal.
RENEWAL = 38
RENEWALS = (
    'grpc_server_started_total{grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",'
    'grpc_type="bidi_stream"}'
)


class Counters:
    """What etcd has counted since this was made."""

    def __init__(self, server: EtcdServer) -> None:
        self._server, self._start = server, time.monotonic()
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{self._server.endpoint}/metrics", timeout=30) as answer:
            lines = re.findall(r"^([a-z][^# ]*) (\S+)$", answer.read().decode(), re.MULTILINE)
        return {name: float(value) for name, value in lines}

    def _since(self, name: str, now: dict[str, float] | None = None) -> float:
        return (now or self._read()).get(name, 0.0) - self._before.get(name, 0.0)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def reads(self) -> float:
        """Spans of keys that were read, also as parts of transactions."""
        return self._since("etcd_mvcc_range_total")

    @property
    def told(self) -> float:
        """Messages to those who watch."""
        name = 'grpc_server_msg_sent_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",'
        return self._since(name + 'grpc_type="bidi_stream"}')

    @property
    def renewals(self) -> float:
        return self._since(RENEWALS)

    @property
    def sent(self) -> float:
        """Bytes to clients without the answers to renewals, which grow with the time that a test takes."""
        now = self._read()
        sent = self._since("etcd_network_client_grpc_sent_bytes_total", now)
        return sent - RENEWAL * self._since(RENEWALS, now)


@pytest.fixture
def server(new_etcd: Callable[..., EtcdServer]) -> EtcdServer:
    return new_etcd().start()


@pytest.fixture
def members(server: EtcdServer) -> Iterator[list[Rendezvous]]:
    # The leases outlast a machine that stands still.
    settings = RunSettings(
        "run", 1, N, first_nodes=N, join_timeout=120, settle_timeout=0, keep_alive_max_attempt=100
    )
    endpoints = etcd.parse_endpoints(server.endpoint)

    def make(slot: int) -> Rendezvous:
        identity = membership.Identity(membership.new_base(f"job-{slot}"), slot, "10.0.0.1")
        return Rendezvous(etcd.Client(endpoints), settings, identity)

    members = [make(slot) for slot in range(N)]
    yield members
    with ThreadPoolExecutor(N) as pool:
        list(pool.map(Rendezvous.leave, members))


def join(members: list[Rendezvous]) -> list[membership.World]:
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(Rendezvous.join, members))


def settle(server: EtcdServer) -> None:
    """Wait until no member asks for anything any more."""

    def is_still() -> bool:
        counters = Counters(server)
        time.sleep(1)
        return (counters.reads, counters.told) == (0, 0)

    waiting.until(is_still)


def test_a_round_costs_each_member_a_few_messages_and_training_only_the_lease(
    server: EtcdServer, members: list[Rendezvous]
) -> None:
    first = Counters(server)
    assert {world.size for world in join(members)} == {N}
    assert first.told < 25 * N
    # All but the first begin to watch less.
    settle(server)
    idle = Counters(server)
    time.sleep(6)
    assert [each.waiting() for each in members] == [0] * N
    assert (idle.reads, idle.told) == (0, 0)
    assert abs(idle.sent) < 0.1 * RENEWAL * idle.renewals
    # The lease lives for 10 s.
    assert idle.renewals < 1.3 * N * (idle.seconds + 1)
    second = Counters(server)
    with ThreadPoolExecutor(N) as pool:
        # One member's processes fail, and all meet again.
        failed = pool.submit(members[7].join)
        others = [each for each in members if each is not members[7]]
        waiting.until(lambda: all(each.waiting() for each in others))
        worlds = [*pool.map(Rendezvous.join, others), failed.result(timeout=120)]
    assert {(world.number, world.size) for world in worlds} == {(2, N)}
    assert second.told < 8 * N, "of N members that get ready, N members must not hear"
    assert second.reads < 8 * N
    assert second.sent < N * 2_000, "each is told a round in few bytes"


def test_a_lost_member_is_told_to_each_once_and_the_loss_of_half_to_few(
    server: EtcdServer, members: list[Rendezvous]
) -> None:
    join(members)
    settle(server)
    loss = Counters(server)
    lost = members[N // 2]
    lost.leave()
    rest = [each for each in members if each is not lost]
    waiting.until(lambda: all(each.waiting() for each in rest))
    assert loss.told < 3 * N
    assert loss.reads < 3 * N
    assert {world.size for world in join(rest)} == {N - 1}
    settle(server)
    left, rest = rest[: N // 2], rest[N // 2 :]
    loss = Counters(server)
    with ThreadPoolExecutor(N) as pool:
        list(pool.map(Rendezvous.leave, left))
        waiting.until(lambda: all(each.waiting() for each in rest))
        worlds = list(pool.map(Rendezvous.join, rest))
    assert {world.size for world in worlds} == {len(rest)}
    # To tell each of N / 2 of each of N / 2 would be 15 N. The first leave, so that all look for the next.
    assert loss.told < 12 * N
