"""What members of a rendezvous lose when etcd restarts, is silent or is cut in two: nothing."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.rendezvous import membership
from bireme_runtime.elastic.rendezvous.membership import Rendezvous
from bireme_runtime.elastic.rendezvous.rules import RunSettings
from bireme_runtime.etcd import check
from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.server import backup
from bireme_runtime.process.errors import Unreachable
from tests.runtime.etcd_servers import EtcdServer, NewEtcd
from tests.runtime.test_etcd import protected
from tests.support import waiting
from tests.support.tiers import core

Start = Callable[..., list[Rendezvous]]


@pytest.fixture
def start(prefix: str) -> Iterator[Start]:
    """Make members with the default lease and join them; each has a client of its own, as in a pod."""
    members: list[Rendezvous] = []

    def start(
        count: int, *servers: EtcdServer, user: str = "", spread: float = 0.0, **changes: Any
    ) -> list[Rendezvous]:
        endpoints = etcd.parse_endpoints(",".join(server.endpoint for server in servers))
        fields = {"prefix": prefix, "join_timeout": 120, "settle_timeout": 0, **changes}
        settings = RunSettings("run", count, count, **fields)
        for slot in range(count):
            client = etcd.Client(endpoints, etcd.Credentials(user, user[:1]), settings.heartbeat_timeout)
            identity = membership.Identity(membership.new_base(f"m{slot}"), slot, "10.0.0.1")
            members.append(Rendezvous(client, settings, identity))
        join_all(members, spread)
        return members

    yield start
    with ThreadPoolExecutor(max(1, len(members))) as pool:
        list(pool.map(lambda each: each.leave(), members))


def join_all(members: list[Rendezvous], spread: float = 0.0) -> None:
    """Join them, one after another within so many seconds, as pods start."""
    with ThreadPoolExecutor(len(members)) as pool:
        joining = []
        for each in members:
            joining.append(pool.submit(each.join))
            time.sleep(spread / len(members))
        for world in joining:
            world.result()


@pytest.mark.parametrize("run", core(*range(3), of=range(5)))
def test_a_silent_etcd_among_three_ends_no_lease_and_delays_no_round(
    run: int, three_etcds: list[EtcdServer], start: Start
) -> None:
    members = start(6, *three_etcds, keep_alive_max_attempt=20)
    leases = [each._registration for each in members]
    three_etcds[run % 3].signal(signal.SIGSTOP)
    stopped, asked = time.monotonic(), fence.now()
    with ThreadPoolExecutor(6) as pool:
        failed = pool.submit(members[0].join)
        for each in members[1:]:
            waiting.until(each.waiting, what="a member to see the failure of another", every=0.02)
        worlds = [failed, *[pool.submit(each.join) for each in members[1:]]]
        assert {(each.result().number, each.result().size) for each in worlds} == {(2, 6)}
    assert time.monotonic() - stopped < 50, "a watch of a silent etcd ends after a minute"
    waiting.until(lambda: all(each and each.renewed > asked for each in leases), what="all to renew")
    assert [each.waiting() for each in members] == [0] * 6
    assert [each._registration for each in members] == leases


@pytest.mark.parametrize("count", core(30, of=[30, 100]))
def test_with_users_a_restart_of_etcd_for_3_s_costs_no_member_its_lease(
    count: int, new_etcd: NewEtcd, start: Start
) -> None:
    server = new_etcd().start()
    protected(server)
    members = start(count, server, user="ann", prefix="/m/", spread=15, keep_alive_max_attempt=30)
    leases = [each._registration for each in members]
    server.stop()
    time.sleep(3)
    server.start()
    again = fence.now()

    def all_have_renewed() -> bool:
        assert [each.waiting() for each in members] == [0] * count
        return all(each and each.renewed > again for each in leases)

    waiting.until(all_have_renewed, every=0.5)
    assert [each._registration for each in members] == leases


def test_where_etcd_is_out_of_space_a_member_says_what_to_do_and_then_writes_succeed(
    new_etcd: NewEtcd, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    server = new_etcd("--quota-backend-bytes=1000000").start()
    client = etcd.Client(etcd.parse_endpoints(server.endpoint))
    sentence = r"^etcd is out of space \(NOSPACE alarm\): compact and defragment, or raise the quota, then"
    # etcd knows how much space it uses some time later.
    with pytest.raises(etcd.OutOfSpace, match=sentence):
        [client.put("a", "x" * 20_000) for _ in range(5000)]
    with pytest.raises(Unreachable, match=sentence):
        start(1, server, join_timeout=10)
    assert check.main([server.endpoint], {}) == 1
    assert "etcdctl alarm disarm" in capsys.readouterr().out
    revision = client.range("a").revision
    client.call("/v3/kv/compaction", {"revision": revision, "physical": True})
    backup.defragment(client, lambda url: etcd.client_from(url, {}), print)
    client.put("a", "x")
    assert check.main([server.endpoint], {}) == 0


def test_pauses_between_attempts_differ(prefix: str) -> None:
    attempts: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as nobody:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = nobody.accept()
                    attempts.append(time.monotonic())
                    connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        client = etcd.Client(etcd.parse_endpoints(f"127.0.0.1:{nobody.getsockname()[1]}"))
        identity = membership.Identity("a", 0, "10.0.0.1")
        member = Rendezvous(client, RunSettings("run", 1, 1, prefix, join_timeout=120), identity)
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(member.join)

            def short() -> bool:
                pauses = [after - before for before, after in pairwise(attempts)]
                # An attempt may be two connections. A pause never ends early, so they are of several lengths.
                return any(0.05 < pause < 0.15 for pause in pauses) and any(pause > 0.2 for pause in pauses)

            waiting.until(short, 100, lambda: str(attempts))
            member.leave()
            with pytest.raises(Unreachable):
                joining.result()


def test_a_watch_on_a_member_without_a_majority_ends(three_etcds: list[EtcdServer], prefix: str) -> None:
    client = etcd.Client(etcd.parse_endpoints(three_etcds[0].endpoint))
    watch = client.watch(prefix, 0, idle_timeout=20)
    for server in three_etcds[1:]:
        server.signal(signal.SIGSTOP)
    with pytest.raises(etcd.Unavailable, match="no leader"):
        list(watch)
