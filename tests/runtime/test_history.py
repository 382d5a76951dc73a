"""A second history: an etcd that is another one, empty, or older. No two worlds may commit (real etcd)."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.rendezvous import membership, rules
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.errors import Unreachable
from tests.runtime.etcd_servers import EtcdServer, Proxy
from tests.support import waiting
from tests.support.tiers import core

until = partial(waiting.until, every=0.01)
NewEtcd = Callable[..., EtcdServer]


@dataclass
class Pod:
    """A worker's pod: its way to etcd, what it knows of etcd's data, and its agent."""

    proxy: Proxy
    history: etcd.History
    agent: membership.Rendezvous

    def processes(self, world: membership.World) -> dict[str, str]:
        """The environment of the training processes."""
        shared = {"PET_RDZV_ENDPOINT": self.proxy.endpoint, etcd.HISTORY: self.history.path}
        return {**shared, **self.agent.token(world)}

    def cut_off(self) -> None:
        self.proxy.mode = "silent"

    def lead_to(self, server: EtcdServer) -> None:
        """Etcd's name leads there from now on."""
        self.proxy.target = server.port
        self.proxy.cut()


Make = Callable[..., Pod]
# For a member whose lease has to end in the test. All other leases outlast a machine that stands still.
BRIEF = {"keep_alive_max_attempt": 20}


@pytest.fixture
def pod(prefix: str) -> Iterator[Make]:
    made: list[Pod] = []

    def make(server: EtcdServer, name: str = "m0", run: str = "run", **changes: Any) -> Pod:
        times = {"keep_alive_interval": 0.3, "keep_alive_max_attempt": 200, "join_timeout": 120, **changes}
        settings = rules.RunSettings(run, 1, 4, prefix, last_call_timeout=0.1, settle_timeout=0, **times)
        proxy, history = Proxy(server.port), etcd.History.new()
        client = etcd.Client(etcd.parse_endpoints(proxy.endpoint), timeout=10, history=history)
        identity = membership.Identity(membership.new_base(name), int(name[1:]), "10.0.0.1")
        made.append(Pod(proxy, history, membership.Rendezvous(client, settings, identity)))
        return made[-1]

    yield make
    for each in made:
        each.proxy.close()
        each.agent.leave()


def join(*pods: Pod) -> list[membership.World]:
    """Have them join. The first round of a run waits for them all."""
    for each in pods:
        each.agent.settings = replace(each.agent.settings, first_nodes=len(pods))
    with ThreadPoolExecutor(len(pods)) as pool:
        return list(pool.map(lambda each: each.agent.join(), pods))


def data_of(server: EtcdServer) -> Any:
    return server.folder / "data"


def empty(server: EtcdServer) -> None:
    """Etcd comes back without data."""
    server.stop()
    shutil.rmtree(data_of(server))
    server.start()


def test_a_worker_that_reaches_another_etcd_makes_no_world_there(
    shared_etcd: EtcdServer, new_etcd: NewEtcd, pod: Make
) -> None:
    own, other = shared_etcd, new_etcd("--initial-cluster-token=other").start()
    a, b = pod(own, "m0", **BRIEF), pod(own, "m1")
    before, _ = join(a, b)
    env = a.processes(before)
    a.lead_to(other)
    with pytest.raises(fence.Fenced, match=r"is of another etcd .* which may still answer others"):
        fence.check(env)
    until(b.agent.waiting)
    (world,) = join(b)
    fence.check(b.processes(world))
    patient, a.agent.settings = a.agent.settings, replace(a.agent.settings, join_timeout=6)
    with pytest.raises(Unreachable, match="another etcd"):
        a.agent.join()
    a.agent.settings = patient
    assert not other.request("/v3/kv/range", {"key": "AA==", "range_end": "AA=="}).get("kvs")
    a.lead_to(own)
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(a.agent.join)
        until(b.agent.waiting)
        assert [join(b)[0].size, again.result().size] == [2, 2]


@pytest.mark.parametrize("has_waited", core(False, of=[True, False]))
def test_a_second_run_lets_the_leases_of_the_first_end_when_etcd_has_lost_its_data(
    new_etcd: NewEtcd, pod: Make, has_waited: bool
) -> None:
    server = new_etcd().start()
    slow = {"lock": "release", "keep_alive_interval": 1, "keep_alive_max_attempt": 8}
    first, second = pod(server, run="first", **slow), pod(server, run="second", **slow)
    env = first.processes(*join(first))
    with ThreadPoolExecutor(1) as pool:
        early = [pool.submit(second.agent.join)] if has_waited else []
        until(lambda: second.history.revision or not has_waited)
        first.cut_off()
        empty(server)
        for joining in early or [pool.submit(second.agent.join)]:
            joining.result()
    with pytest.raises(fence.Fenced):
        fence.check(env)
    assert second.history.losses == has_waited


def test_the_token_goes_on_when_etcd_and_all_agents_are_gone(new_etcd: NewEtcd, pod: Make) -> None:
    server = new_etcd().start()
    a = pod(server)
    tokens = [join(a)[0].token for _ in range(3)]
    a.agent.leave()
    empty(server)
    (world,) = join(pod(server))
    assert world.number == 1
    assert [*tokens, world.token] == sorted({*tokens, world.token})


def test_the_token_goes_on_beyond_what_members_know_although_their_clock_is_behind(
    new_etcd: NewEtcd, pod: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = new_etcd().start()
    # After the loss it waits until no lease of the lost data can live.
    a = pod(server, **BRIEF)
    (before,) = join(a)
    monkeypatch.setattr(time, "time", lambda: 1.0)
    assert join(a)[0].token == before.token + 1
    empty(server)
    until(a.agent.waiting)
    (after,) = join(a)
    assert (after.number, after.token > before.token) == (3, True)


@pytest.mark.whole
def test_a_run_that_had_finished_ends_although_etcd_is_older(
    new_etcd: NewEtcd, pod: Make, tmp_path: Path, prefix: str
) -> None:
    server = new_etcd().start()
    a, b = pods = [pod(server, name, keep_alive_max_attempt=60) for name in ("m0", "m1")]
    join(a, b)
    server.stop()
    shutil.copytree(data_of(server), tmp_path / "older")
    server.start()
    client = etcd.Client(etcd.parse_endpoints(server.endpoint), timeout=60)

    def has_finished() -> bool:
        assert not b.agent.all_finished()
        return any('"finished": true' in kv.value for kv in client.range(f"{prefix}run/members/m1").keys)

    until(has_finished)
    server.stop()
    shutil.rmtree(data_of(server))
    shutil.copytree(tmp_path / "older", data_of(server))
    server.start()

    def train(each: Pod) -> str:
        deadline = time.monotonic() + 100
        try:
            while not each.agent.all_finished():
                assert time.monotonic() < deadline, "it neither ends nor joins"
                if each.agent.waiting():
                    each.agent.join()
                time.sleep(0.05)
        except membership.RunOver as over:
            return over.outcome
        return rules.SUCCESS

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(train, each) for each in pods]
        assert [end.result(120) for end in ends] == ["success", "success"]


def test_a_client_notices_younger_data_and_those_of_a_restored_snapshot(new_etcd: NewEtcd) -> None:
    server = new_etcd().start()
    client = etcd.Client(etcd.parse_endpoints(server.endpoint), timeout=60)
    for _ in range(5):
        client.put("/a", "b")
    assert client.history.losses == 0
    before = fence.now()
    empty(server)
    with contextlib.suppress(etcd.EtcdError):
        client.get("/a")
    client.get("/a")
    assert (client.history.losses, client.history.revision) == (1, 1)
    assert client.history.seconds < fence.now() - before


def test_a_snapshot_that_the_chart_restores_is_noticed_by_its_revisions() -> None:
    history = etcd.History()
    history.heard("etcd", {"cluster_id": "7", "revision": "50"}, (0, 0))
    history.heard("etcd", {"cluster_id": "7", "revision": "51"}, (0, 50))
    assert history.losses == 0
    history.heard("etcd", {"cluster_id": "7", "revision": "1000000040"}, (0, 51))
    assert (history.losses, history.revision) == (1, 1_000_000_040)


def test_an_answer_that_was_under_way_while_others_came_is_no_loss() -> None:
    history = etcd.History()
    history.heard("etcd", {"cluster_id": "7", "revision": "50"}, (0, 0))
    history.heard("etcd", {"cluster_id": "7", "revision": "60"}, (0, 50))
    history.heard("etcd", {"cluster_id": "7", "revision": "55"}, (0, 50))
    # A renewal is answered by a server that may lag behind.
    history.heard("etcd", {"cluster_id": "7", "revision": "40"})
    assert (history.losses, history.revision) == (0, 60)


def test_an_answer_that_was_under_way_while_a_loss_was_noted_changes_nothing() -> None:
    history = etcd.History()
    history.heard("etcd", {"cluster_id": "7", "revision": "50"}, history.known)
    asked = history.known
    history.heard("etcd", {"cluster_id": "7", "revision": "2"}, asked)
    assert history.known == (1, 2)
    for late in ("2", "50", "1000000040"):
        history.heard("etcd", {"cluster_id": "7", "revision": late}, asked)
    assert history.known == (1, 2)
    history.heard("etcd", {"cluster_id": "7", "revision": "3"}, history.known)
    assert history.known == (1, 3)


def test_a_client_keeps_to_the_cluster_that_it_knows(shared_etcd: EtcdServer, new_etcd: NewEtcd) -> None:
    own, other = shared_etcd, new_etcd("--initial-cluster-token=other").start()
    proxy = Proxy(own.port)
    client = etcd.Client(etcd.parse_endpoints(proxy.endpoint), timeout=5)
    client.put("/a", "b")
    lease = client.lease_grant(60)
    proxy.target = other.port
    proxy.cut()
    for request in (
        lambda: client.put("/a", "c"),
        lambda: client.lease_keepalive(lease),
        lambda: next(iter(client.watch("/", 1))),
    ):
        with pytest.raises(etcd.AnotherCluster, match="is of another etcd"):
            request()
    both = etcd.Client(etcd.parse_endpoints(f"{proxy.endpoint},{own.endpoint}"), history=client.history)
    assert [both.get("/a").value for _ in range(3)] == ["b"] * 3  # type: ignore[union-attr]
    proxy.close()


def test_the_life_of_a_lease_counts_from_the_question_and_not_from_the_answer(
    shared_etcd: EtcdServer, pod: Make
) -> None:
    each = pod(shared_etcd, keep_alive_interval=1, keep_alive_max_attempt=600)
    join(each)
    each.proxy.mode = "silent"
    # Renewals are made every second, and each waits a hundred for its answer.
    time.sleep(4)
    deadlines, end = list[float](), fence.now()
    each.agent.board.extend = deadlines.append  # type: ignore[assignment, method-assign]
    each.proxy.mode = "pass"
    until(lambda: deadlines)
    assert deadlines[0] - fence.KILL_SHARE * 600 < end
