"""What `make test-gpu` runs: agents, warm starts, preflight, hangs and an LLM on one NVIDIA GPU.

    python3 -m tests.gpu --etcd FILE [--device cpu] [--only WORD] [-o json]

It needs torch, a binary of etcd and the driver's nvidia-smi, but no Kubernetes, network or other package.
With --device cpu a machine without a GPU runs all of it but what only a GPU has.

NCCL refuses two ranks on one GPU, so two agents that share it speak gloo. A desync of NCCL needs two GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "tests/runtime/with_torch/train.py"
HANGS = TRAIN.with_name("hangs.py")
LLM = ROOT / "images/torch/llm.py"
CLIENT_PORT, PEER_PORT = 23790, 23800
PATIENCE = 120  # seconds
TEMPORARY = 75  # the exit code of a worker whose pod has to be replaced
Figures = dict[str, Any]


class Job:
    """Workers of one run on this machine, each what a pod of charts/torch-elastic would run."""

    def __init__(self, folder: Path, device: str, command: list[str], **env: str) -> None:
        self.folder, self.device, self.command = folder, device, command
        rendezvous = {
            "PET_RDZV_BACKEND": "bireme-etcd", "PET_RDZV_ENDPOINT": f"127.0.0.1:{CLIENT_PORT}",
            "PET_RDZV_ID": "run", "PET_RDZV_CONF": f"etcd_prefix={folder.name}/", "PET_NNODES": "1:2",
            "PET_NPROC_PER_NODE": "1", "PET_MAX_RESTARTS": "20", "PET_MONITOR_INTERVAL": "0.1",
            "PET_LOCAL_ADDR": "127.0.0.1", "BIREME_GRACE_SECONDS": "10",
        }  # fmt: skip
        self.env = {
            **os.environ, **rendezvous, "PYTHONPATH": str(ROOT / "runtime/src"), "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "TRAIN_DEVICE": device, **env,
        }  # fmt: skip
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, **env: str) -> None:
        """Start a worker; ``{name}`` in the command is its name."""
        supervisor = [sys.executable, "-m", "bireme_runtime.elastic.agent.supervisor", "--"]
        own = {"JOB_COMPLETION_INDEX": str("ab".index(name)), "BIREME_NODE": f"node-{name}"}
        with (self.folder / f"{name}.out").open("ab") as output:
            self.workers[name] = subprocess.Popen(
                [*supervisor, *(word.format(name=name) for word in self.command)],
                stdout=output, stderr=output, env={**self.env, **own, **env}, cwd=self.folder,
            )  # fmt: skip

    def words(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def notes(self, name: str, event: str, since: float = 0) -> list[Figures]:
        """The JSON lines of a worker's training processes with this event after a time."""
        file = self.folder / f"{name}.jsonl"
        lines = (file.read_text() if file.exists() else self.words(name)).splitlines()
        found = [json.loads(line[line.index("{") :]) for line in lines if re.search(r'\{"\w+": .*\}$', line)]
        return [note for note in found if note.get("event") == event and note["time"] > since]

    def wait_for(self, name: str, event: str, since: float = 0, **facts: Any) -> Figures:
        """The first such note with these facts."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for note in self.notes(name, event, since):
                if all(note.get(key) == value for key, value in facts.items()):
                    return note
            time.sleep(0.02)
        raise AssertionError(f"{name} had no {event} with {facts} within {PATIENCE} s")

    def end(self, name: str, seconds: float = 120) -> int:
        return self.workers[name].wait(seconds)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(15)
            worker.kill()


Make = Callable[..., Job]


def training(job: Make, steps: int = 100_000, pause: float = 0.05, **env: str) -> Job:
    """A job of train.py."""
    command = [str(TRAIN), "{folder}", "{name}", str(steps), str(pause)]
    return job(command, **env)


def open_devices(pid: int) -> list[str]:
    """What a process has open of the GPU's driver."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(link))
    return sorted(each for each in found if each.startswith("/dev/nvidia"))


def templates() -> list[int]:
    """The processes that warm starts fork from."""
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text().strip() == "bireme-template":
                found.append(int(comm.parent.name))
    return found


def one_rank_trains_by_nccl(job: Make, device: str) -> Figures:
    run = training(job, steps=50, pause=0, TRAIN_BACKEND="nccl" if device == "cuda" else "gloo")
    run.start("a")
    start = run.wait_for("a", "start")
    assert run.end("a") == 0
    losses = [note["loss"] for note in run.notes("a", "step")]
    assert len(losses) == 50
    assert losses[-1] < losses[0] / 2, losses
    return {"start to step 50, s": round(run.notes("a", "done")[0]["time"] - start["time"], 2)}


def two_agents_share_the_device(job: Make, device: str) -> Figures:
    run = training(job, steps=60)
    for name in "ab":
        run.start(name)
    run.wait_for("b", "step", world=2)
    if device == "cuda":
        for name in "ab":
            assert open_devices(run.wait_for(name, "start", world=2)["pid"]), "a rank has the GPU open"
    assert [run.end(name) for name in "ab"] == [0, 0]
    return {}


def _killed_rank_to_the_next_step(job: Make, device: str, warm: str = "") -> Figures:
    run = training(job, BIREME_WARM_START=warm)
    for name in "ab":
        run.start(name)
    taken = []
    for _ in range(3):
        run.wait_for("b", "step", time.time(), world=2)
        killed = time.time()
        os.kill(run.notes("a", "start")[-1]["pid"], signal.SIGKILL)
        start = run.wait_for("b", "start", killed, world=2)
        taken.append(round(run.wait_for("b", "step", start["time"], world=2)["time"] - killed, 2))
    words = "".join(run.words(name) for name in "ab")
    if warm:
        assert "cold" not in words, words[-2000:]
        found = templates()
        assert found, "templates run"
        held = {pid: open_devices(pid) for pid in found}
        assert not any(held.values()), f"templates have the GPU open: {held}"
    return {"killed rank to the next step, s": sorted(taken)}


def a_killed_rank_cold(job: Make, device: str) -> Figures:
    return _killed_rank_to_the_next_step(job, device)


def a_killed_rank_warm_and_no_template_has_the_device(job: Make, device: str) -> Figures:
    return _killed_rank_to_the_next_step(job, device, warm="true")


def preflight_counts_the_gpus(job: Make, device: str) -> Figures:
    run = training(job, steps=3, PET_NNODES="1:1", BIREME_PREFLIGHT_ACCELERATORS="1")
    run.start("a")
    assert run.end("a") == 0
    if device == "cpu":
        return {}
    count = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=True).stdout.splitlines())
    run = training(job, PET_NNODES="1:1", BIREME_PREFLIGHT_ACCELERATORS=str(count + 1))
    run.start("a")
    assert run.end("a") == TEMPORARY
    assert f"nvidia-smi shows {count} of the {count + 1} GPUs" in run.words("a"), run.words("a")
    return {"GPUs": count}


def a_hang_names_the_rank_and_its_line(job: Make, device: str) -> Figures:
    limits = {"PET_NNODES": "2:2", "BIREME_HANG_SECONDS": "10", "BIREME_FIRST_STEP_SECONDS": "120"}
    run = job([str(HANGS), "{folder}"], **limits)
    for name in "ab":
        run.start(name)
    assert [run.end(name) for name in "ab"] == [0, 0]
    words = "".join(run.words(name) for name in "ab")
    named = re.search(r"rank 1 on node-[ab] (is )?in load_batch \(hangs.py:\d+\)?", words)
    assert named, words[-3000:]
    assert "in all_reduce" in words
    return {"said": named[0]}


def an_llm_goes_on_after_a_kill(job: Make, device: str) -> Figures:
    size = ["--layers", "8", "--width", "512", "--heads", "8", "--length", "256", "--batch-size", "64"]
    steps = 300 if device == "cuda" else 60
    script = [str(LLM), "--checkpoints", "{folder}/checkpoints", "--steps", str(steps)]
    run = job([*script, *(size if device == "cuda" else [])], PET_NNODES="1:1")
    run.start("a")
    run.wait_for("a", "step", step=steps // 2)
    killed = time.time()
    os.kill(run.notes("a", "start")[-1]["pid"], signal.SIGKILL)
    resumed = run.wait_for("a", "resume", killed)
    first = run.wait_for("a", "step", resumed["time"])
    assert run.end("a", 240) == 0
    notes = run.notes("a", "step")
    again = {note["step"] for note in notes if note["time"] < killed and note["step"] > resumed["step"]}
    data: dict[int, set[int]] = {}
    for note in notes:
        data.setdefault(note["step"], set()).add(note["data"])
    assert sorted(data) == list(range(1, steps + 1))
    assert all(len(each) == 1 for each in data.values()), "a step that is made again reads the same text"
    losses = [note["loss"] for note in notes]
    assert sum(losses[-10:]) < sum(losses[:10]) * 0.8, (losses[:10], losses[-10:])
    return {
        "loss": [round(losses[0], 2), round(losses[-1], 2)],
        "tokens a second": max(note["tokens_per_second"] for note in notes),
        "steps made again": len(again),
        "kill to the next step, s": round(first["time"] - killed, 2),
    }


def snapshots_leave_at_most_one_step_to_be_made_again(job: Make, device: str) -> Figures:
    memory = tempfile.mkdtemp(prefix="bireme-gpu-", dir="/dev/shm")
    script = [
        str(LLM),
        "--checkpoints",
        "{folder}/checkpoints",
        "--steps",
        "60",
        "--checkpoint-every",
        "1000",
    ]
    run = job(script, PET_NNODES="1:1", BIREME_SNAPSHOTS=memory)
    run.start("a")
    run.wait_for("a", "step", step=30)
    killed = time.time()
    os.kill(run.notes("a", "start")[-1]["pid"], signal.SIGKILL)
    resumed = run.wait_for("a", "resume", killed)
    assert resumed["snapshot"], resumed
    last = [note for note in run.notes("a", "step") if note["time"] < killed + 1][-1]
    assert last["step"] - resumed["step"] <= 1, (last, resumed)
    assert run.end("a") == 0
    return {"steps made again": last["step"] - resumed["step"]}


CHECKS: tuple[Callable[[Make, str], Figures], ...] = (
    one_rank_trains_by_nccl,
    two_agents_share_the_device,
    a_killed_rank_cold,
    a_killed_rank_warm_and_no_template_has_the_device,
    preflight_counts_the_gpus,
    a_hang_names_the_rank_and_its_line,
    an_llm_goes_on_after_a_kill,
    snapshots_leave_at_most_one_step_to_be_made_again,
)


@dataclass(frozen=True)
class Outcome:
    """One check: why it failed ("" if it passed), and what it measured."""

    name: str
    why: str
    seconds: float
    figures: Figures


def run_check(check: Callable[[Make, str], Figures], folder: Path, device: str) -> Outcome:
    jobs: list[Job] = []

    def make(command: list[str], **env: str) -> Job:
        own = folder / f"{check.__name__}-{len(jobs)}"
        own.mkdir()
        jobs.append(Job(own, device, [word.replace("{folder}", str(own)) for word in command], **env))
        return jobs[-1]

    since, why, figures = time.monotonic(), "", {}
    try:
        figures = check(make, device)
    except Exception as error:
        why = str(error) or traceback.format_exc(limit=1).strip()
        for job in jobs:
            for name in job.workers:
                print(f"--- {name} of {check.__name__}\n{job.words(name)[-4000:]}", file=sys.stderr)
    finally:
        for job in jobs:
            job.close()
    return Outcome(check.__name__, why, round(time.monotonic() - since, 1), figures)


@contextlib.contextmanager
def etcd(binary: str, folder: Path) -> Iterator[None]:
    """A server of its own."""
    client, peer = f"http://127.0.0.1:{CLIENT_PORT}", f"http://127.0.0.1:{PEER_PORT}"
    command = [
        binary, f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}", f"--listen-peer-urls={peer}",
        f"--advertise-client-urls={client}", f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]  # fmt: skip
    with (folder / "etcd.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(200):
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{client}/health", timeout=5) as answer,
            ):
                if b"true" in answer.read():
                    break
            time.sleep(0.1)
        else:
            raise SystemExit(f"error: {binary} does not answer:\n{(folder / 'etcd.log').read_text()[-2000:]}")
        yield
    finally:
        server.terminate()
        server.wait()


def about(device: str) -> Figures:
    """The versions and the card."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("error: torch finds no GPU here. --device cpu runs what needs none")
    card = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    return {"card": card, "torch": torch.__version__, "python": sys.version.split()[0]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--etcd", required=True, help="binary of etcd")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", default="", help="run the checks with this word in their names")
    parser.add_argument("-o", choices=["text", "json"], default="text", dest="output")
    args = parser.parse_args()
    facts, outcomes = about(args.device), []
    with tempfile.TemporaryDirectory(prefix="bireme-gpu-") as scratch, etcd(args.etcd, Path(scratch)):
        for check in (each for each in CHECKS if args.only in each.__name__):
            done = run_check(check, Path(scratch), args.device)
            outcomes.append(done)
            state = (
                f"FAILED: {done.why}" if done.why else ", ".join(f"{k} {v}" for k, v in done.figures.items())
            )
            print(f"{done.name.replace('_', ' ')}: {state or 'ok'} ({done.seconds} s)", file=sys.stderr)
    failed = sum(bool(each.why) for each in outcomes)
    if args.output == "json":
        print(json.dumps({**facts, "checks": [vars(each) for each in outcomes]}, indent=2))
    else:
        print(f"{len(outcomes) - failed} passed, {failed} failed: {', '.join(map(str, facts.values()))}")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
