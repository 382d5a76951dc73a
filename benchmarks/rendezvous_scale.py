"""What the members of a rendezvous cost etcd: a round of all of them, and nothing at all.

Members are threads of a few processes; they speak the real protocol to one real etcd. Beside it stands what
the same members would cost if each renewed its lease every second and read all keys every 30 s.

    python benchmarks/rendezvous_scale.py [--members 300] [--processes 4] [--idle 20] [-o json]
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import click
from figures import machine

from bireme.paths import Paths
from bireme.tools import Toolbox
from bireme_runtime.elastic import rendezvous
from bireme_runtime.etcd import client as etcd
from tests.runtime.etcd_servers import EtcdServer

# After a round, before doing nothing is measured: members still hear of it.
SETTLE_SECONDS = 10


@dataclass(frozen=True)
class Result:
    """Seconds; CPU in cores of etcd."""

    members: int
    round_seconds: float
    round_cpu_seconds: float
    idle_cores: float
    one_renewal_ms: float
    one_read_ms: float
    memory_mib: float

    @property
    def baseline_cores(self) -> float:
        """What one renewal each second and one read of all keys every 30 s would cost."""
        return self.members * (self.one_renewal_ms + self.one_read_ms / 30) / 1000


def cpu_seconds(server: EtcdServer) -> float:
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def memory_mib(server: EtcdServer) -> float:
    assert server.process is not None
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def run_members(endpoint: str, slots: range, total: int, joined: Barrier, over: Event) -> None:
    """Join with a thread for each slot, and stay until it is over."""
    settings = rendezvous.Settings("run", total, total, join_timeout=300)

    def join(slot: int) -> None:
        client = etcd.Client(etcd.parse_endpoints(endpoint), timeout=settings.heartbeat_timeout)
        identity = rendezvous.Identity(rendezvous.new_base(f"bench-r1-{slot}"), slot, "10.123.45.67")
        member = rendezvous.Rendezvous(client, settings, identity)
        members.append(member)
        member.join()

    members: list[rendezvous.Rendezvous] = []
    threads = [threading.Thread(target=join, args=(slot,)) for slot in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    joined.wait()
    over.wait()


def measure(server: EtcdServer, members: int, processes: int, idle: float) -> Result:
    context = multiprocessing.get_context("fork")
    joined, over = context.Barrier(processes + 1), context.Event()
    parts = [range(number, members, processes) for number in range(processes)]
    arguments = [(server.endpoint, part, members, joined, over) for part in parts]
    children = [context.Process(target=run_members, args=each, daemon=True) for each in arguments]
    before, start = cpu_seconds(server), time.monotonic()
    for child in children:
        child.start()
    joined.wait(300)
    round_seconds, round_cpu = time.monotonic() - start, cpu_seconds(server) - before
    time.sleep(SETTLE_SECONDS)
    before, start = cpu_seconds(server), time.monotonic()
    time.sleep(idle)
    idle_cores = (cpu_seconds(server) - before) / (time.monotonic() - start)
    client = etcd.Client(etcd.parse_endpoints(server.endpoint))
    lease = client.lease_grant(600)

    def cost_ms(times: int, ask: object) -> float:
        before = cpu_seconds(server)
        for _ in range(times):
            ask()  # type: ignore[operator]
        return max(0.0, (cpu_seconds(server) - before) / times * 1000)

    for child in children:
        child.kill()
        child.join()
    renewal = cost_ms(2000, lambda: client.lease_keepalive(lease))
    read = cost_ms(50, lambda: client.range(rendezvous.DEFAULT_PREFIX))
    return Result(members, round_seconds, round_cpu, idle_cores, renewal, read, memory_mib(server))


@click.command()
@click.option("--members", type=int, multiple=True, default=[300])
@click.option("--processes", type=int, default=4)
@click.option("--idle", type=float, default=20, help="Seconds of doing nothing that are measured.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(members: tuple[int, ...], processes: int, idle: float, output: str) -> None:
    """Measure each number of members on an etcd of its own."""
    binary = Toolbox(Paths.discover(start=Path(__file__))).path("etcd")
    results = []
    for number in members:
        with tempfile.TemporaryDirectory() as folder:
            server = EtcdServer(binary, Path(folder) / "etcd").start()
            try:
                results.append(measure(server, number, processes, idle))
            finally:
                server.stop()
    rows = [{**asdict(each), "baseline_cores": each.baseline_cores} for each in results]
    if output == "json":
        print(json.dumps({"machine": machine(), "results": rows}, indent=2))
        return
    for each in results:
        print(
            f"{each.members} members: a round after {each.round_seconds:.1f} s and "
            f"{each.round_cpu_seconds:.1f} s of etcd's CPU; idle {each.idle_cores:.3f} cores, and "
            f"{each.baseline_cores:.2f} with a renewal each second and reads every 30 s; "
            f"{each.memory_mib:.0f} MiB at most"
        )


if __name__ == "__main__":
    main()
