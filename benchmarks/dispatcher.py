"""The shard dispatcher: steps per second, the time of one by number of shards, and of giving a shard again.

A real etcd that syncs to the disk, two replicas of the dispatcher, and trainers that train nothing: each step
is one request that acknowledges a shard and takes the next one. All of them share this machine's cores.

    python benchmarks/dispatcher.py [--shards 1000000] [--seconds 8] [--rounds 3] [-o json]
    python benchmarks/dispatcher.py --hour 120

The second shows that history does not fill etcd: an hour of steps in so many seconds, with as small a part of
the chart's quota and of the time for which it keeps history.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import yaml
from figures import CONSOLE, Spread, machine
from rich.console import Console
from rich.table import Table

from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.tools import Toolbox

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "runtime" / "src")]

from bireme_runtime.dispatcher import Dispatcher  # noqa: E402
from bireme_runtime.dispatcher.service.coordinator import Coordinator  # noqa: E402
from bireme_runtime.dispatcher.service.election import Leadership  # noqa: E402
from bireme_runtime.dispatcher.service.keys import Keys  # noqa: E402
from bireme_runtime.dispatcher.service.requests import Definition, Settled, TrainerRequest  # noqa: E402
from bireme_runtime.etcd import client as etcd  # noqa: E402
from tests.runtime.dispatcher_replicas import Dispatchers, environment  # noqa: E402
from tests.runtime.etcd_servers import EtcdServer  # noqa: E402

TRAINERS = (1, 10, 100, 1000)
SIZES = (1_000, 10_000, 100_000, 1_000_000)
HOLD = """
from bireme_runtime.dispatcher import Dispatcher
for shard in Dispatcher().shards():
    print(shard, flush=True)
    input()
"""


@dataclass
class DurableEtcd(EtcdServer):
    """etcd as the chart runs it: its quota and history, and each commit on the disk before the answer.

    `part` of the quota and of the history, for a run that is so much shorter.
    """

    part: float = 1.0

    @property
    def quota(self) -> int:
        """In bytes."""
        return int(_etcd_values()["quotaMiB"] * self.part) << 20

    def _command(self) -> list[str]:
        history = 60 * _etcd_values()["compaction"]["retentionMinutes"] * self.part
        return [word for word in super()._command() if word != "--unsafe-no-fsync"] + [
            f"--quota-backend-bytes={self.quota}",
            "--auto-compaction-mode=periodic",
            f"--auto-compaction-retention={history:.0f}s",
        ]


def _etcd_values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((ROOT / "charts/etcd/values.yaml").read_text(encoding="utf-8"))
    return values


class Trainer:
    """A trainer with its own connection, without the library's thread for the lease."""

    def __init__(self, port: int, dataset: str) -> None:
        self._port = port
        self._dataset = dataset
        self._done: list[list[int]] = []
        self.latencies: list[float] = []

    async def join(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._trainer = (await self._post("join", {"name": "bench"}))["trainer"]

    async def run(self, until: float) -> None:
        while time.perf_counter() < until:
            started = time.perf_counter()
            answer = await self._post("next", {"trainer": self._trainer, "done": self._done, "wait": 5})
            if "shard" not in answer:
                # etcd was too slow once, on a busy machine: the request is repeated.
                print(answer, file=sys.stderr)
                continue
            self.latencies.append(time.perf_counter() - started)
            self._done = [[answer["shard"]["shard"], answer["shard"]["token"]]]

    async def heartbeat(self) -> None:
        await self._post("heartbeat", {"trainer": self._trainer})

    async def leave(self) -> None:
        await self._post("leave", {"trainer": self._trainer, "done": self._done})
        self._writer.close()

    async def _post(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        head = f"POST /v1/{self._dataset}/{verb} HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        return dict(json.loads(await self._reader.readexactly(length)))


async def _throughput(port: int, count: int, seconds: float, rounds: int) -> list[tuple[float, list[float]]]:
    """Steps per second and latencies of each round."""
    trainers = [Trainer(port, "million") for _ in range(count)]
    for first in range(0, count, 50):
        await asyncio.gather(*(trainer.join() for trainer in trainers[first : first + 50]))
    results = []
    for _ in range(rounds):
        for trainer in trainers:
            trainer.latencies = []
        started = time.perf_counter()
        await asyncio.gather(*(trainer.run(started + seconds) for trainer in trainers))
        taken = time.perf_counter() - started
        latencies = sorted(each for trainer in trainers for each in trainer.latencies)
        results.append((len(latencies) / taken, latencies))
        await asyncio.gather(*(trainer.heartbeat() for trainer in trainers))
    await asyncio.gather(*(trainer.leave() for trainer in trainers))
    return results


def throughput(replicas: Dispatchers, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Steps per second and latency in milliseconds by number of trainers."""
    rows = []
    for count in TRAINERS:
        with step(CONSOLE, f"{count} trainers"):
            port = replicas.ports[replicas.leader()]
            results = asyncio.run(_throughput(port, count, seconds, rounds))
        rows.append(
            {
                "trainers": count,
                "perSecond": Spread.of((rate for rate, _ in results), 0),
                "p50": Spread.of(1000 * each[len(each) // 2] for _, each in results),
                "p99": Spread.of(1000 * each[len(each) * 99 // 100] for _, each in results),
            }
        )
    return rows


@dataclass(frozen=True)
class Hour:
    """What an hour of steps left in etcd: the largest size of its database, in MiB, and its quota."""

    steps: int
    per_second: float
    compactions: int
    database_mib: float
    quota_mib: float


def hour(toolbox: Toolbox, folder: Path, seconds: float) -> Hour:
    """Steps of 100 trainers for `seconds`, on as small a part of the chart's etcd as they are of an hour."""
    server = DurableEtcd(toolbox.path("etcd"), folder, part=seconds / 3600)
    server.start()
    replicas = Dispatchers(server.endpoint, "/bench/hour/", leader_seconds=10, trainer_seconds=60)
    over, sizes = threading.Event(), [0.0]

    def look() -> None:
        while not over.wait(0.5):
            with contextlib.suppress(OSError):
                sizes.append(_metric(server, "etcd_mvcc_db_total_size_in_bytes"))

    watcher = threading.Thread(target=look, daemon=True)
    try:
        replicas.start()
        _add(replicas, 50_000)
        watcher.start()
        with step(CONSOLE, "An hour"):
            port = replicas.ports[replicas.leader()]
            # Between rounds the leases are renewed.
            rounds = math.ceil(seconds / 20)
            results = asyncio.run(_throughput(port, 100, seconds / rounds, rounds))
        over.set()
        compactions = _metric(server, "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds_count")
        largest, quota = max(sizes) / 2**20, server.quota / 2**20
        steps = sum(len(latencies) for _, latencies in results)
        return Hour(steps, round(steps / seconds), int(compactions), round(largest, 1), quota)
    finally:
        over.set()
        replicas.stop()
        server.stop()


def _metric(server: EtcdServer, name: str) -> float:
    with urllib.request.urlopen(f"http://{server.endpoint}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def waiting(replicas: Dispatchers, trainers: int = 20, steps: int = 20) -> list[dict[str, Any]]:
    """Milliseconds between the work on two shards, of 0.1 s each, without and with prefetch."""

    def train(dataset: str, prefetch: bool) -> list[float]:
        with Dispatcher(replicas.addresses, dataset) as dispatcher:
            shards = dispatcher.shards(prefetch)
            next(shards)
            waits = []
            for _ in range(steps):
                time.sleep(0.1)
                waits.append(1000 * _timed(partial(next, shards)))
            shards.close()
        return waits

    rows = []
    for prefetch in (False, True):
        with step(CONSOLE, f"{trainers} trainers {'with' if prefetch else 'without'} prefetch"):
            dataset = f"waiting-{prefetch}"
            Dispatcher(replicas.addresses, dataset).add(_name(n) for n in range(3 * trainers * steps))
            with ThreadPoolExecutor(trainers) as pool:
                each = pool.map(partial(train, dataset), [prefetch] * trainers)
                cuts = statistics.quantiles((wait for waits in each for wait in waits), n=20)
        rows.append({"prefetch": prefetch, "p50": round(cuts[9], 2), "p95": round(cuts[18], 2)})
    return rows


@contextmanager
def _coordinator(server: EtcdServer, prefix: str) -> Iterator[Coordinator]:
    client = etcd.Client(etcd.parse_endpoints(server.endpoint), timeout=60)
    lease = client.lease_grant(3600)
    leadership = Leadership(client, f"{prefix}leader", "here:1", lease)
    leadership.campaign()
    yield Coordinator(client, prefix, leadership)
    client.lease_revoke(lease)


def growth(server: EtcdServer, rounds: int, shards: int, steps: int = 200) -> list[dict[str, Any]]:
    """Milliseconds of a step, of a takeover with half of the pass done, and of a step of the old master."""
    rows = []
    client = etcd.Client(etcd.parse_endpoints(server.endpoint), timeout=60)
    for size in (each for each in SIZES if each <= shards):
        with step(CONSOLE, f"{size} shards"):
            prefix = f"/bench/{size}/"
            _define(client, prefix, size)
            with _coordinator(server, prefix) as coordinator:
                lease = client.lease_grant(3600)
                coordinator.handle([TrainerRequest("join", "set", "t", lease=lease)])
                coordinator.handle([TrainerRequest("next", "set", "t")])
                at_start = [_steps(coordinator, steps) for _ in range(rounds)]
            _mark_half(client, prefix, size)
            takeovers = [_timed(partial(_take_over, server, prefix)) for _ in range(rounds)]
            old = [_old_step(client, size) for _ in range(rounds)]
        rows.append(
            {
                "shards": size,
                "step": Spread.of(1000 * each for each in at_start),
                "takeover": Spread.of(1000 * each for each in takeovers),
                "oldStep": Spread.of(1000 * each for each in old if each) if all(old) else None,
            }
        )
    return rows


def _define(client: etcd.Client, prefix: str, size: int) -> None:
    definition, keys = Definition(size, "abcdef01"), Keys(prefix, "set")
    for block in range(definition.blocks):
        numbers = range(definition.start_of(block), definition.start_of(block + 1))
        client.put(keys.block("abcdef01", block), json.dumps([_name(n) for n in numbers]))
    client.put(keys.registered, "")
    client.put(keys.meta, definition.to_json())
    client.put(keys.current_pass, json.dumps({"number": 0, "over": False}))


def _name(number: int) -> str:
    return f"train/part-{number:07d}.recordio"


def _mark_half(client: etcd.Client, prefix: str, size: int) -> None:
    """Write the state after half a pass, without doing it."""
    keys, value = Keys(prefix, "set"), json.dumps({"trainer": "t.0123456789abcdef", "token": 123456789})
    for first in range(1000, size // 2, 120):
        marks = range(first, min(first + 120, size // 2))
        client.txn([], [etcd.put_op(keys.done(0, shard), value) for shard in marks])


def _steps(coordinator: Coordinator, count: int) -> float:
    """Seconds of the median step of one trainer: it acknowledges a shard and gets the next one."""
    seconds: list[float] = []
    done: tuple[Settled, ...] = ()
    for _ in range(count):
        started = time.perf_counter()
        (answer,) = coordinator.handle([TrainerRequest("next", "set", "t", done=done)])
        seconds.append(time.perf_counter() - started)
        assert answer is not None
        shard = answer.body["shard"]
        done = (Settled(shard["shard"], shard["token"]),)
    return statistics.median(seconds)


def _take_over(server: EtcdServer, prefix: str) -> None:
    """Read all state as a new leader does, and give out a shard."""
    with _coordinator(server, prefix) as coordinator:
        lease = coordinator._client.lease_grant(60)
        coordinator.handle([TrainerRequest("join", "set", "n", lease=lease)])
        (answer,) = coordinator.handle([TrainerRequest("next", "set", "n")])
        assert answer is not None
        coordinator.handle([TrainerRequest("leave", "set", "n")])


def _old_step(client: etcd.Client, size: int) -> float | None:
    """Seconds to write the state of all shards into one key, as the old master did on every step.

    None where etcd refuses so large a value.
    """
    state = [{"id": n, "epoch": n % 7, "chunks": [_name(n)], "failures": 0} for n in range(size)]
    started = time.perf_counter()
    value = base64.b64encode(gzip.compress(json.dumps(state).encode(), 6)).decode()
    try:
        client.call("/v3/kv/put", {"key": base64.b64encode(b"/bench/old").decode(), "value": value})
    except etcd.EtcdError:
        return None
    return time.perf_counter() - started


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def recovery(server: EtcdServer, rounds: int) -> Spread:
    """Seconds from a trainer's SIGKILL until another trainer has its shard, with the default lease."""
    replicas = Dispatchers(server.endpoint, "/bench/deaths/", leader_seconds=10).start()
    try:
        return _recovery(replicas, rounds)
    finally:
        replicas.stop()


def _recovery(replicas: Dispatchers, rounds: int) -> Spread:
    seconds = []
    for number in range(rounds):
        with step(CONSOLE, f"Death {number + 1} of {rounds}"):
            dataset = f"death-{number}"
            env = {"BIREME_DISPATCHER": replicas.addresses, "BIREME_DISPATCHER_DATASET": dataset}
            with Dispatcher(replicas.addresses, dataset) as survivor:
                survivor.add(["only"], timeout=3600)
                victim = subprocess.Popen(
                    [sys.executable, "-c", HOLD], env={**environment(), **env},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )  # fmt: skip
                assert victim.stdout is not None
                victim.stdout.readline()
                victim.kill()
                victim.wait()
                shards = survivor.shards()
                seconds.append(_timed(partial(next, shards)))
                list(shards)
    return Spread.of(seconds)


def _tables(report: dict[str, Any]) -> Iterator[Table]:
    table = Table(
        "trainers", "steps/s", "p50 ms", "p99 ms", title=f"{report['shards']:,} shards, two replicas"
    )
    for row in report["throughput"]:
        table.add_row(*(str(row[key]) for key in ("trainers", "perSecond", "p50", "p99")))
    table.caption = f"median (lowest–highest) of {report['rounds']} rounds; {report['machine']}"
    yield table
    table = Table("shards", "step ms", "takeover ms", "old master's step ms", title="As shards grow")
    for row in report["growth"]:
        table.add_row(
            f"{row['shards']:,}", str(row["step"]), str(row["takeover"]), str(row["oldStep"] or "refused")
        )
    table.caption = "one trainer; a takeover reads the state with half of the pass done and hands a shard out"
    yield table
    table = Table("prefetch", "p50 ms", "p95 ms", title="20 trainers' wait between two shards of 0.1 s")
    for row in report["waiting"]:
        table.add_row("yes" if row["prefetch"] else "no", str(row["p50"]), str(row["p95"]))
    yield table
    table = Table("lease s", "from KILL to another hand, s", title="A trainer's death")
    table.add_row("12", str(report["recovery"]))
    yield table


@click.command(help=__doc__)
@click.option("--shards", default=1_000_000, show_default=True, help="Of the largest dataset")
@click.option("--seconds", default=8.0, show_default=True, help="Of each round of steps")
@click.option("--rounds", default=3, show_default=True)
@click.option("--hour", "hour_seconds", type=float, help="Only an hour of steps, in so many seconds")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(shards: int, seconds: float, rounds: int, hour_seconds: float | None, output: str) -> None:
    toolbox = Toolbox(Paths.discover(start=Path(__file__)), CONSOLE)
    if hour_seconds:
        with tempfile.TemporaryDirectory() as folder:
            print(
                json.dumps(
                    {"machine": machine(), **asdict(hour(toolbox, Path(folder), hour_seconds))}, indent=2
                )
            )
        return
    with tempfile.TemporaryDirectory() as folder:
        server = DurableEtcd(toolbox.path("etcd"), Path(folder)).start()
        replicas = Dispatchers(server.endpoint, "/bench/dispatcher/", leader_seconds=10, trainer_seconds=60)
        try:
            replicas.start()
            with step(CONSOLE, f"Adding {shards} shards"):
                adding = _timed(lambda: _add(replicas, shards))
            report: dict[str, Any] = {
                "machine": machine(),
                "shards": shards,
                "rounds": rounds,
                "addSeconds": round(adding, 1),
                "throughput": throughput(replicas, seconds, rounds),
            }
            report["waiting"] = waiting(replicas)
            replicas.stop()
            report["recovery"] = recovery(server, rounds)
            report["growth"] = growth(server, rounds, shards)
        finally:
            replicas.stop()
            server.stop()
    if output == "json":
        print(json.dumps(report, indent=2, default=vars))
        return
    for table in _tables(report):
        Console().print(table)


def _add(replicas: Dispatchers, shards: int) -> None:
    Dispatcher(replicas.addresses, "million").add([_name(number) for number in range(shards)], passes=100)


if __name__ == "__main__":
    main()
