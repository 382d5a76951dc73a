"""Workers in networks of their own, between which packets are lost, on real torchrun and etcd."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.runtime.etcd_servers import EtcdServer

pytestmark = pytest.mark.whole

NAMES = ("a", "b", "c")


def ip(*words: str, inside: str = "") -> None:
    """Run ip(8), in a network namespace if one is given."""
    subprocess.run(["ip", *(("-n", inside) if inside else ()), *words], check=True)


class Network:
    """A router between this machine and one network for each worker."""

    HOST, ROUTER = "198.18.0.1", "198.18.0.2"

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex[:6]
        self._hub, self._link = f"hub-{self._id}", f"h{self._id}"
        ip("netns", "add", self._hub)
        ip("link", "add", self._link, "type", "veth", "peer", "name", "host0", "netns", self._hub)
        ip("address", "add", f"{self.HOST}/24", "dev", self._link)
        ip("link", "set", self._link, "up")
        ip("address", "add", f"{self.ROUTER}/24", "dev", "host0", inside=self._hub)
        ip("link", "set", "host0", "up", inside=self._hub)
        ip("route", "add", "198.18.1.0/24", "via", self.ROUTER)
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        subprocess.run(["ip", "netns", "exec", self._hub, "sh", "-c", forward], check=True)
        for number in range(len(NAMES)):
            self._add(number)

    def _name(self, number: int) -> str:
        return f"w{number}-{self._id}"

    def _add(self, number: int) -> None:
        name, port = self._name(number), f"p{number}"
        ip("netns", "add", name)
        ip("link", "add", port, "netns", self._hub, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("address", "add", f"198.18.1.{4 * number + 1}/30", "dev", port, inside=self._hub)
        ip("link", "set", port, "up", inside=self._hub)
        ip("address", "add", f"{self.address(number)}/30", "dev", "eth0", inside=name)
        ip("link", "set", "eth0", "up", inside=name)
        ip("link", "set", "lo", "up", inside=name)
        ip("route", "add", "default", "via", f"198.18.1.{4 * number + 1}", inside=name)

    def address(self, number: int) -> str:
        return f"198.18.1.{4 * number + 2}"

    def enter(self, number: int) -> list[str]:
        """The command that runs another one in a worker's network."""
        return ["ip", "netns", "exec", self._name(number)]

    def cut(self, one: int, other: int, lost: bool = True) -> None:
        """Lose all packets between two workers, or none any more."""
        for way in ((one, other), (other, one)):
            rule = ["-s", self.address(way[0]), "-d", self.address(way[1]), "-j", "DROP"]
            command = ["iptables", "-I" if lost else "-D", "FORWARD", *rule]
            subprocess.run(["ip", "netns", "exec", self._hub, *command], check=True)

    def remove(self) -> None:
        # At once, and with its route: a network goes some time after its name does.
        ip("link", "delete", self._link)
        for number in range(len(NAMES)):
            ip("netns", "delete", self._name(number))
        ip("netns", "delete", self._hub)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.remove()


def start(job: Callable[..., Any], server: EtcdServer, network: Network) -> Any:
    """Three workers that train in a network each."""
    run = job(steps=400, pause=0.3, PET_RDZV_ENDPOINT=server.endpoint, GLOO_SOCKET_IFNAME="eth0")
    for number, name in enumerate(NAMES):
        run.networks[name] = network.enter(number)
        run.start(name, number, PET_LOCAL_ADDR=network.address(number))
    run.wait_for("c", "step", world=3, seconds=120)
    return run


@pytest.mark.parametrize("lost", NAMES)
def test_a_worker_that_reaches_etcd_but_no_other_worker_stays_away_until_it_does(
    job: Callable[..., Any], new_etcd: Callable[..., EtcdServer], network: Network, lost: str
) -> None:
    run = start(job, new_etcd(host=Network.HOST).start(), network)
    place = {name: run.wait_for(name, "start", world=3)["rank"] for name in NAMES}
    number = NAMES.index(lost)
    others = [each for each in range(3) if each != number]
    since = time.time()
    for other in others:
        network.cut(number, other)
    remaining = NAMES[others[0]]
    start_of_two = run.wait_for(remaining, "start", since, 180, world=2)
    print(f"\nrank {place[lost]} was cut off: two go on after {start_of_two['time'] - since:.1f} s")
    step = run.wait_for(remaining, "step", start_of_two["time"], 60)
    time.sleep(20)
    assert not run.notes(remaining, "start", step["time"]), "nobody waits for who could not train"
    for other in others:
        network.cut(number, other, lost=False)
    run.wait_for(lost, "step", time.time(), 180, world=3)
    assert [run.end(name, 300) for name in NAMES] == [0, 0, 0]
    run.check_steps(400)
