"""The rendezvous under random joins, leaves, deaths, partitions, lost leases, lost answers and etcd restarts.

BIREME_FUZZ_SECONDS (6) says for how long, BIREME_FUZZ_SEED (by chance) in which order.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from bireme_runtime.elastic.rendezvous import membership, rules
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer, Proxy

SECONDS = float(os.environ.get("BIREME_FUZZ_SECONDS", "6"))
MIN, MAX, MOST = 2, 4, 6


@dataclass
class Agent:
    """A simulated torchrun: joins, trains, checks for waiting members, sometimes fails."""

    slot: int
    settings: rules.RunSettings
    proxy: Proxy
    chance: random.Random
    worlds: list[membership.World] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        client = etcd.Client(etcd.parse_endpoints(self.proxy.endpoint), timeout=0.7)
        identity = membership.Identity(membership.new_base(f"m{self.slot}"), self.slot, f"10.0.0.{self.slot}")
        self.member = membership.Rendezvous(client, self.settings, identity)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.over.is_set():
                world = self.member.join()
                self.worlds.append(world)
                if world.rank == 0:
                    self.member.publish_store(world, f"store of {world.number}")
                elif self.member.store_of(world) not in (None, f"store of {world.number}"):
                    self.troubles.append(f"the store of another round than {world.number}")
                while not (self.over.is_set() or self.member.waiting() or self.chance.random() < 0.002):
                    time.sleep(0.01)
        except Exception as error:
            if not self.over.is_set():
                self.troubles.append(repr(error))

    def end(self, gracefully: bool) -> None:
        self.over.set()
        if not gracefully:
            self.proxy.mode = "refuse"
            self.proxy.cut()
            return
        self.member.leave()
        self.thread.join(5)


class Fuzz:
    """Agents and random events."""

    def __init__(self, server: EtcdServer, prefix: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server = server
        self.settings = rules.RunSettings(
            "run", MIN, MAX, prefix, join_timeout=60, last_call_timeout=0.1, settle_timeout=0.2,
            close_timeout=2, keep_alive_interval=0.3, keep_alive_max_attempt=7,
        )  # fmt: skip
        self.live: list[Agent] = []
        self.dead: list[Agent] = []
        self.client = etcd.Client(etcd.parse_endpoints(server.endpoint))
        self.deeds: list[str] = []

    def add(self) -> None:
        if len(self.live) < MOST:
            slot = self.chance.randrange(100)
            agent = Agent(slot, self.settings, Proxy(self.server.port), random.Random(self.chance.random()))
            self.live.append(agent)

    def leave(self) -> None:
        self._end(gracefully=True)

    def die(self) -> None:
        self._end(gracefully=False)

    def _end(self, gracefully: bool) -> None:
        if len(self.live) > MIN:
            agent = self.live.pop(self.chance.randrange(len(self.live)))
            self.dead.append(agent)
            agent.end(gracefully)

    def lose_lease(self) -> None:
        if self.live:
            base = self.chance.choice(self.live).member.identity.base
            for lease in membership.leases_of(self.client, self.settings.root, base):
                self.client.lease_revoke(lease)

    def disturb(self) -> None:
        """A part of the network fails for a moment, or for longer than a lease."""
        mode = self.chance.choice(["lose answers", "silent", "refuse"])
        seconds = self.chance.choice([0.05, 0.3, 2.6])
        proxies = [agent.proxy for agent in self.live if self.chance.random() < 0.5]
        for proxy in proxies:
            proxy.mode = mode
            if mode != "lose answers":
                proxy.cut()
        time.sleep(seconds)
        for proxy in proxies:
            proxy.mode = "pass"
            proxy.cut()

    def restart_etcd(self) -> None:
        self.server.stop()
        time.sleep(self.chance.uniform(0, 0.5))
        self.server.start()

    def go_on(self, seconds: float) -> None:
        for _ in range(3):
            self.add()
        deeds = [self.add, self.leave, self.die, self.lose_lease, self.disturb, self.restart_etcd]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (deed,) = self.chance.choices(deeds, weights=[8, 4, 4, 3, 3, 1])
            self.deeds.append(deed.__name__)
            deed()
            time.sleep(self.chance.choice([0, 0.02, 0.2, 0.5]))

    def settle(self) -> None:
        """Without further failures, all members end in one world, or as spares beside a full one."""
        while len(self.live) < MIN:
            self.add()
        deadline = time.monotonic() + 120
        while not self._settled():
            assert time.monotonic() < deadline, "no world of all members came about"
            time.sleep(0.05)

    def _settled(self) -> bool:
        rounds = self.history()
        if not rounds or len(rounds[-1].bases) != min(len(self.live), MAX):
            return False
        number, bases = rounds[-1].number, set(rounds[-1].bases)
        placed = [agent for agent in self.live if agent.member.identity.base in bases]
        joined = [agent for agent in placed if agent.worlds and agent.worlds[-1].number == number]
        return len(joined) == len(bases) and not any(agent.member.waiting() for agent in joined)

    def history(self) -> list[rules.Round]:
        """All rounds, from etcd's history."""
        rounds: list[rules.Round] = []
        latest = self.client.get(self.settings.root + "round")
        watch = self.client.watch(self.settings.root + "round", 1, idle_timeout=5)
        for _, events in watch if latest else ():
            rounds += [rules.round_of(event.kv.value, 0) for event in events]
            if events and latest and events[-1].kv.mod_revision >= latest.mod_revision:
                watch.close()
        watch.close()
        return rounds

    def stop(self) -> None:
        for agent in self.live + self.dead:
            agent.over.set()
            agent.proxy.mode = "refuse"
            agent.proxy.cut()
        for agent in self.live + self.dead:
            agent.member.leave()
            agent.proxy.close()


def check(fuzz: Fuzz) -> None:
    rounds = fuzz.history()
    assert [each.number for each in rounds] == list(range(1, len(rounds) + 1)), "one world for each round"
    for each in rounds:
        assert MIN <= len(each.members) <= MAX
        assert len(set(each.bases)) == len(each.members)
    for before, after in pairwise(rounds):
        survivors = [base for base in before.bases if base in after.bases]
        assert list(after.bases[: len(survivors)]) == survivors, (
            "survivors keep their order, newcomers follow"
        )
    taken: dict[tuple[int, int], str] = {}
    for agent in fuzz.live + fuzz.dead:
        assert not agent.troubles, agent.troubles
        numbers = [world.number for world in agent.worlds]
        assert numbers == sorted(set(numbers)), "nobody is placed in a round twice"
        for world in agent.worlds:
            agreed = rounds[world.number - 1]
            base = agent.member.identity.base
            assert (agreed.bases.index(base), len(agreed.bases)) == (world.rank, world.size)
            assert taken.setdefault((world.number, world.rank), base) == base, "each rank is taken once"


@pytest.mark.whole
def test_each_round_has_one_world_and_another_round_always_follows(
    new_etcd: Callable[..., EtcdServer], prefix: str
) -> None:
    seed = int(os.environ.get("BIREME_FUZZ_SEED", random.randrange(10**6)))
    fuzz = Fuzz(new_etcd().start(), prefix, seed)
    try:
        fuzz.go_on(SECONDS)
        fuzz.settle()
        check(fuzz)
    except BaseException:
        print(f"BIREME_FUZZ_SEED={seed} BIREME_FUZZ_SECONDS={SECONDS}", fuzz.deeds, sep="\n")
        raise
    finally:
        fuzz.stop()
    print(f"{len(fuzz.history())} rounds, {len(fuzz.deeds)} deeds, seed {seed}")
