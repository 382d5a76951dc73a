"""Workers that reach etcd, but not each other. with_torch/test_partitions.py has a real network."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from bireme_runtime.elastic.agent import torch_handler
from bireme_runtime.elastic.rendezvous import membership
from bireme_runtime.elastic.rendezvous.membership import Rendezvous, World
from bireme_runtime.elastic.rendezvous.rules import RunSettings
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.errors import Unreachable
from tests.runtime.etcd_servers import EtcdServer
from tests.support import waiting


@dataclass
class Job:
    """Members a, b and c; ``cut`` has those that reach nobody. Stores have the names of their members."""

    members: dict[str, Rendezvous]
    cut: set[str] = field(default_factory=set)

    def join(self, *names: str) -> dict[str, World]:
        with ThreadPoolExecutor(len(names)) as pool:
            worlds = list(pool.map(lambda name: self.members[name].join(), names))
        for name, world in zip(names, worlds, strict=True):
            if world.rank == 0:
                assert self.members[name].publish_store(world, name)
        return dict(zip(names, worlds, strict=True))

    def until_called(self, *names: str) -> None:
        """Wait until these members know that their round has to end."""
        waiting.until(lambda: all(self.members[name].waiting() for name in names))


@pytest.fixture
def make(shared_etcd: EtcdServer, prefix: str) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(first: int = 3, read_timeout: float = 60) -> Job:
        settings = RunSettings(
            "run", 1, 3, prefix, "", 600, 0, first, settle_timeout=0, read_timeout=read_timeout,
            keep_alive_max_attempt=60,
        )  # fmt: skip
        job = Job({})

        def member(name: str, slot: int) -> Rendezvous:
            client = etcd.Client(etcd.parse_endpoints(shared_etcd.endpoint))
            reaches = lambda address: address == name or not job.cut & {address, name}  # noqa: E731
            identity = membership.Identity(name, slot, name)
            return Rendezvous(client, settings, identity, None, lambda: True, reaches)

        job.members.update({name: member(name, slot) for slot, name in enumerate("abc")})
        jobs.append(job)
        return job

    yield make
    for job in jobs:
        for member in job.members.values():
            member.leave()


def test_who_does_not_reach_rank_0_leaves_and_joins_when_it_does(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_UNREACHED_SECONDS", 1.0)
    job = make()
    worlds = job.join("a", "b", "c")
    job.cut = {"c"}
    job.members["c"].unreached(worlds["c"])
    job.until_called("a", "b", "c")
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(job.join, "c")
        assert {world.size for world in job.join("a", "b").values()} == {2}
        with pytest.raises(TimeoutError):
            back.result(timeout=3)
        assert not job.members["a"].waiting(), "nobody waits for who could not train"
        job.cut = set()
        job.until_called("a", "b")
        assert {world.size for world in job.join("a", "b").values()} == {3}
        assert back.result(timeout=120)["c"].size == 3


def test_rank_0_leaves_when_most_do_not_reach_it(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    # They notice at different times.
    monkeypatch.setattr(membership, "_UNREACHED_SECONDS", 60.0)
    job = make()
    worlds = job.join("a", "b", "c")
    job.cut = {"a"}
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: job.members[name].unreached(worlds[name]), "bc"))
        job.until_called("a", "b", "c")
        back = pool.submit(job.join, "a")
        assert {world.size for world in job.join("b", "c").values()} == {2}
        job.cut = set()
        job.until_called("b", "c")
        again = job.join("b", "c")
        assert (again["b"].rank, back.result(timeout=120)["a"].rank) == (0, 2)


def test_who_reaches_nobody_does_not_interrupt_the_others_and_ends(make: Callable[..., Job]) -> None:
    job = make(first=2, read_timeout=3)
    job.join("a", "b")
    job.cut = {"c"}
    with pytest.raises(Unreachable, match="reaches etcd but not rank 0 of round 1"):
        job.join("c")
    assert not job.members["a"].waiting()


def test_a_store_that_has_ended_is_no_lost_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        tether = torch_handler.Tether(host, port)
        assert not tether.lost()
        connection, _ = server.accept()
        connection.close()
        waiting.until(lambda: tether.lost() or tether.closed)
    assert not torch_handler.Tether(host, port).lost()
    assert torch_handler.reaches(f'["{host}", {port}, 1]'), "the machine answers, if with a refusal"
