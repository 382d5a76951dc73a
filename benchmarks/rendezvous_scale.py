"""What the members of a rendezvous cost etcd: a round of all of them, the loss of one, and nothing at all.

Members are threads of a few processes; they speak the real protocol to one real etcd, set up as charts/etcd
does. The first round is timed from the start of the processes, the second from the call of one member. On a
busy machine seconds say little, and members lose their leases unless these live longer (--lease). With
--halve half of the members leave at once, and the next round of the others is timed from there. Beside the
seconds stand those of CPU of etcd and of all members together, which in a cluster have machines of their own,
and beside the idle cost what a renewal each second costs.

    python benchmarks/rendezvous_scale.py [--members 300] [--processes N] [--lease 10] [--idle 20] [--users]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
from figures import CONSOLE, machine

from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.tools import Toolbox
from bireme_runtime.elastic.rendezvous import membership, rules
from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.server import auth
from bireme_runtime.process.log import log_of
from tests.runtime.etcd_servers import EtcdServer

# After a round, before doing nothing is measured: members still hear of it.
SETTLE_SECONDS = 10
PATIENCE_SECONDS = 600
# As charts/etcd configures it, and with the durable writes that tests do without.
ETCD = (
    "--unsafe-no-fsync=false",
    "--quota-backend-bytes=2147483648",
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=5m",
    # Its passwords are random, so that no guess needs to be slow.
    "--bcrypt-cost=4",
)
LOGIN_MS = 3
USER = etcd.Credentials("trainer", secrets.token_hex(16))
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Order:
    """What all members did: seconds until the last one had, and CPU seconds of etcd and of the members."""

    seconds: float
    etcd_cpu: float
    members_cpu: float


@dataclass(frozen=True)
class Result:
    """Seconds; CPU in cores, or in core seconds."""

    members: int
    lease: int
    users: bool
    first_round: Order
    second_round: Order
    loss: Order
    idle_cores: float
    idle_members_cores: float
    one_renewal_ms: float
    memory_mib: float
    load_average: float

    @property
    def baseline_cores(self) -> float:
        """What one renewal of each member each second would cost."""
        return self.members * self.one_renewal_ms / 1000


def cpu_seconds(processes: Iterable[int | None]) -> float:
    """The CPU time that these processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in processes]
    return sum(int(each[11]) + int(each[12]) for each in fields) / _TICKS


def memory_mib(server: EtcdServer) -> float:
    assert server.process is not None
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def at_once(tasks: Sequence[Callable[[], object]]) -> None:
    """Carry out each in a thread of its own. Raises the first error of one."""
    errors: list[Exception] = []

    def carry_out(task: Callable[[], object]) -> None:
        try:
            task()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=carry_out, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def until_noticed(members: Iterable[membership.Rendezvous]) -> None:
    """Wait until each of them knows that its round has to end. One thread asks for all."""
    left = list(members)
    while left := [each for each in left if not each.waiting()]:
        time.sleep(0.1)


def run_members(
    endpoint: str,
    credentials: etcd.Credentials,
    slots: range,
    total: int,
    least: int,
    lease: int,
    orders: Connection,
) -> None:
    """Carry out orders with a thread for each slot.

    Answers each with the time at which all had done it, or with what went wrong.
    """
    settings = rules.RunSettings(
        "run", least, total, first_nodes=total, join_timeout=PATIENCE_SECONDS, settle_timeout=0,
        keep_alive_max_attempt=lease,
    )  # fmt: skip

    def make(slot: int) -> membership.Rendezvous:
        # A member without CPU must not give up on answers that came long ago.
        timeout = max(settings.heartbeat_timeout, lease / 6)
        client = etcd.Client(etcd.parse_endpoints(endpoint), credentials, timeout, login_ms=LOGIN_MS)
        client.expect(total)
        identity = membership.Identity(membership.new_base(f"bench-r1-{slot}"), slot, "10.123.45.67")
        return membership.Rendezvous(client, settings, identity)

    threading.stack_size(256 * 1024)
    members = [make(slot) for slot in slots]
    while True:
        order, slot = orders.recv()
        here = [each for each in members if each.identity.slot == slot]
        rest = [each for each in members if each not in here]
        try:
            if order == "join":
                at_once([each.join for each in members])
            elif order == "fail":
                failed = threading.Thread(target=at_once, args=([each.join for each in here],))
                failed.start()
                until_noticed(rest)
                at_once([each.join for each in rest])
                failed.join()
            elif order == "leave":
                for each in here:
                    each.leave()
                members = rest
                until_noticed(members)
            elif order == "halve":
                at_once([each.leave for each in members if each.identity.slot % 2])
                members = [each for each in members if not each.identity.slot % 2]
                until_noticed(members)
                at_once([each.join for each in members])
            orders.send(time.monotonic())
        except Exception as error:
            orders.send(f"{type(error).__name__}: {error}")


class Members:
    """The processes of the members."""

    def __init__(
        self,
        server: EtcdServer,
        credentials: etcd.Credentials,
        members: int,
        least: int,
        processes: int,
        lease: int,
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._server = server
        self._pipes: list[Connection] = []
        self._children: list[Any] = []
        for number in range(processes):
            mine, theirs = context.Pipe()
            slots = range(number, members, processes)
            arguments = (server.endpoint, credentials, slots, members, least, lease, theirs)
            self._children.append(context.Process(target=run_members, args=arguments, daemon=True))
            self._children[-1].start()
            self._pipes.append(mine)

    def cpu(self) -> tuple[float, float]:
        """The CPU seconds so far, of etcd and of the members."""
        assert self._server.process is not None
        return cpu_seconds([self._server.process.pid]), cpu_seconds(child.pid for child in self._children)

    def order(self, what: str, slot: int = 0) -> Order:
        """Let all do this."""
        before, start = self.cpu(), time.monotonic()
        for pipe in self._pipes:
            pipe.send((what, slot))
        seconds = max(self._answer(pipe) for pipe in self._pipes) - start
        theirs, own = (after - earlier for after, earlier in zip(self.cpu(), before, strict=True))
        click.echo(f"  {what}: {seconds:.1f} s; CPU: etcd {theirs:.1f} s, members {own:.1f} s", err=True)
        return Order(seconds, theirs, own)

    def _answer(self, pipe: Connection) -> float:
        if not pipe.poll(PATIENCE_SECONDS):
            raise click.ClickException(f"not all members had done it within {PATIENCE_SECONDS} s")
        answer = pipe.recv()
        if isinstance(answer, str):
            raise click.ClickException(f"a member failed: {answer}")
        return float(answer)

    def end(self) -> None:
        for child in self._children:
            child.kill()
            child.join()


def set_up_users(server: EtcdServer) -> None:
    """Let etcd ask for users, as charts/etcd does."""
    environment = {
        "BIREME_ETCD_ENDPOINTS": server.endpoint, "BIREME_ETCD_ROOT_PASSWORD": secrets.token_hex(16),
        "BIREME_ETCD_USERNAME": USER.username, "BIREME_ETCD_PASSWORD": USER.password,
        "BIREME_ETCD_PREFIX": "/", "BIREME_WAIT_SECONDS": "60",
    }  # fmt: skip
    auth.set_up_all(environment, log_of("users"))


def measure(server: EtcdServer, members: int, processes: int, lease: int, idle: float, users: bool) -> Result:
    click.echo(f"{members} members in {processes} processes", err=True)
    load = os.getloadavg()[0]
    credentials = USER if users else etcd.Credentials()
    if users:
        set_up_users(server)
    workers = Members(server, credentials, members, members - 1, processes, lease)
    try:
        first = workers.order("join")
        time.sleep(SETTLE_SECONDS)
        second = workers.order("fail", members // 2)
        time.sleep(SETTLE_SECONDS)
        before, start = workers.cpu(), time.monotonic()
        time.sleep(idle)
        seconds = time.monotonic() - start
        cores = [(after - earlier) / seconds for after, earlier in zip(workers.cpu(), before, strict=True)]
        click.echo(f"  idle: etcd {cores[0]:.3f} cores, members {cores[1]:.3f}", err=True)
        loss = workers.order("leave", members // 2)
    finally:
        workers.end()
    assert server.process is not None
    client = etcd.Client(etcd.parse_endpoints(server.endpoint), credentials)
    renewed, before_renewals = client.lease_grant(600), cpu_seconds([server.process.pid])
    for _ in range(2000):
        client.lease_keepalive(renewed)
    renewal = (cpu_seconds([server.process.pid]) - before_renewals) / 2000 * 1000
    return Result(
        members, lease, users, first, second, loss, cores[0], cores[1], renewal, memory_mib(server), load
    )


def measure_halving(server: EtcdServer, members: int, processes: int, lease: int) -> str:
    """Half of the members leave at once; a sentence about the next round of the others."""
    set_up_users(server)
    workers = Members(server, USER, members, (members + 1) // 2, processes, lease)
    try:
        workers.order("join")
        time.sleep(SETTLE_SECONDS)
        load, halved = os.getloadavg()[0], workers.order("halve")
    finally:
        workers.end()
    cpu = f"etcd {halved.etcd_cpu:.1f}, members {halved.members_cpu:.1f} s of CPU"
    return (
        f"{members} members with users, load average {load:.1f}: half leave, and the others are in the next "
        f"round after {halved.seconds:.1f} s ({cpu})"
    )


def sentence(each: Result) -> str:
    """The result as the table in docs/measured.md has it."""

    def spent(order: Order) -> str:
        return f"{order.seconds:.1f} s (etcd {order.etcd_cpu:.1f}, members {order.members_cpu:.1f} s of CPU)"

    return (
        f"{each.members} members{', with users' if each.users else ''}, leases of {each.lease} s, load "
        f"average {each.load_average:.1f}: "
        f"the first round after {spent(each.first_round)}, another one after {spent(each.second_round)}; all "
        f"know of a loss after {spent(each.loss)}; idle {each.idle_cores:.3f} cores, and "
        f"{each.baseline_cores:.2f} with a renewal each second; {each.memory_mib:.0f} MiB at most"
    )


@click.command()
@click.option("--members", type=int, multiple=True, default=[300])
@click.option(
    "--processes", type=int, help="One for 50 members, at least 4: threads of one wait for each other."
)
@click.option("--lease", type=int, default=10, help="Life of a member's lease, in seconds.")
@click.option("--idle", type=float, default=20, help="Seconds of doing nothing that are measured.")
@click.option("--users", is_flag=True, help="Let etcd ask for a user, so that each member logs in.")
@click.option("--halve", is_flag=True, help="Measure only the loss of half of the members.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(
    members: tuple[int, ...],
    processes: int | None,
    lease: int,
    idle: float,
    users: bool,
    halve: bool,
    output: str,
) -> None:
    """Measure each number of members on an etcd of its own."""
    # A member has up to five connections.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    binary = Toolbox(Paths.discover(start=Path(__file__))).path("etcd")
    results = []
    for number in members:
        with tempfile.TemporaryDirectory() as folder:
            server = EtcdServer(binary, Path(folder) / "etcd", options=ETCD).start(wait=False)
            try:
                server.wait_until_healthy(120)
                several = processes or max(4, number // 50)
                with step(CONSOLE, f"{number} members"):
                    if halve:
                        print(measure_halving(server, number, several, lease))
                        continue
                    results.append(measure(server, number, several, lease, idle, users))
            finally:
                server.stop()
    if output == "json" and not halve:
        rows = [{**asdict(each), "baseline_cores": each.baseline_cores} for each in results]
        print(json.dumps({"machine": machine(), "results": rows}, indent=2))
        return
    print(machine())
    for each in results:
        print(sentence(each))


if __name__ == "__main__":
    main()
