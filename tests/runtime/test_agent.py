"""The supervisor of torchrun: processes and signals, with a small replacement for torchrun."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.agent import supervisor
from bireme_runtime.elastic.agent.supervisor import AgentSettings, EtcdBackend
from bireme_runtime.elastic.rendezvous import membership
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.errors import Stop
from tests.runtime.etcd_servers import RUNTIME, EtcdServer, Proxy, free_port
from tests.runtime.workers import MAIN, TINY, Start, Worker
from tests.support.processes import gone
from tests.support.tiers import core
from tests.support.waiting import until

WRITE_PIDS = "pathlib.Path('pids').write_text(f\"{os.environ['AGENT_PID']} {os.getpid()}\")\n"
SAVE_ON_TERM = """
def save(*_):
    time.sleep(0.5)
    pathlib.Path('saved').write_text('step 5')
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
"""


def test_a_spare_replaces_a_lost_worker_and_the_last_spare_ends_with_the_run(
    start: Start, on_etcd: dict[str, str], client: etcd.Client, prefix: str, tmp_path: Path
) -> None:
    workers, end = tmp_path / "workers", tmp_path / "end"
    workers.write_text("2")
    script = f"""
place = os.environ['RANK'] + ' of ' + os.environ['WORLD_SIZE']
pathlib.Path('round-' + os.environ['BIREME_ROUND']).write_text(place)
while not os.path.exists({str(end)!r}):
    time.sleep(0.05)
"""
    env = {**on_etcd, "BIREME_WORKERS_FILE": str(workers), "BIREME_SPARES": "2"}
    first, second = (start(script, **env, JOB_COMPLETION_INDEX=str(index)) for index in range(2))
    assert (first.file("round-1"), second.file("round-1")) == ("0 of 2", "1 of 2")
    third = start(script, **env, JOB_COMPLETION_INDEX="2")
    root = f"{prefix}run/"
    until(lambda: len(membership.spares_of(client, root)) == 1)
    fourth = start(script, **env, JOB_COMPLETION_INDEX="3")
    until(lambda: len(membership.spares_of(client, root)) == 2)
    second.process.terminate()
    assert first.file("round-2") == "0 of 2"
    assert third.file("round-2") == "1 of 2", "the one with the lower index comes first"
    assert len(membership.spares_of(client, root)) == 1
    end.touch()
    assert [each.end() for each in (first, third, fourth)] == [0, 0, 0]
    assert "the run has succeeded, while this worker waited" in fourth.words


def test_a_killed_agent_is_restarted_after_its_training_processes_have_ended(start: Start) -> None:
    worker = start(WRITE_PIDS + "time.sleep(1 if pathlib.Path('again').exists() else 600)")
    agent, trainer = map(int, worker.file("pids").split())
    (worker.folder / "again").touch()
    os.kill(agent, signal.SIGKILL)
    assert worker.end() == 0
    assert gone(trainer)
    assert "the agent was killed by SIGKILL; restarting the agent in 0.2 s (1 of 20 restarts)" in worker.words


def test_after_the_last_restart_of_a_dying_agent_the_worker_ends_with_75(start: Start) -> None:
    worker = start("os.kill(int(os.environ['AGENT_PID']), 9)\ntime.sleep(9)", BIREME_AGENT_RESTARTS="2")
    assert worker.end() == 75
    assert worker.words.count("restarting the agent") == 2
    assert "the agent ended 3 times; the last reason: the agent was killed by SIGKILL" in worker.words


def test_after_a_stable_period_the_restarts_are_counted_from_0_again(start: Start) -> None:
    script = (
        "p = pathlib.Path('n'); p.write_text(p.read_text() + 'x' if p.exists() else 'x'); time.sleep(0.3)\n"
    )
    script += "len(p.read_text()) < 4 and (os.kill(int(os.environ['AGENT_PID']), 9), time.sleep(9))"
    worker = start(script, BIREME_AGENT_RESTARTS="1", BIREME_STABLE_SECONDS="0.2")
    assert worker.end() == 0


def test_on_term_the_training_processes_can_save_and_nothing_restarts_them(start: Start) -> None:
    script = f"{SAVE_ON_TERM}pathlib.Path('up-' + os.environ['LOCAL_RANK']).write_text('x')\ntime.sleep(600)"
    # The grace period is longer than the test waits.
    worker = start(script, PET_NPROC_PER_NODE="3", PET_MAX_RESTARTS="9", BIREME_GRACE_SECONDS="600")
    for rank in range(3):
        worker.file(f"up-{rank}")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == 143
    assert worker.file("saved") == "step 5"
    assert "received SIGTERM: 3 training processes have 600 s to save" in worker.words


def test_when_nobody_reads_the_log_processes_save_and_the_worker_ends(start: Start) -> None:
    """As on a node whose disk is full: the output goes to a pipe that takes no more."""
    unread = """
import os
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while True:
        os.write(writer, bytes(4096))
except BlockingIOError:
    os.set_blocking(writer, True)
for each in (1, 2):
    os.dup2(writer, each)
"""
    script = f"{SAVE_ON_TERM}pathlib.Path('up').write_text('x')\nwhile True: print('x' * 1000)"
    command = (sys.executable, "-c", unread + MAIN, "--")
    worker = start(script, command, PET_NPROC_PER_NODE="1", BIREME_GRACE_SECONDS="2")
    worker.file("up")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end(120) == 143


def test_when_the_grace_period_is_over_all_processes_are_killed(start: Start) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WRITE_PIDS + "time.sleep(600)"
    worker = start(script, BIREME_GRACE_SECONDS="0.5")
    pids = [int(pid) for pid in worker.file("pids").split()]
    worker.process.send_signal(signal.SIGTERM)
    # Of two signals that wait, the lower number arrives first.
    worker.wait_for("received SIGTERM")
    worker.process.send_signal(signal.SIGINT)
    assert worker.end() == 143
    assert all(gone(pid) for pid in pids)
    assert "1 training processes did not end in time" in worker.words


def test_no_thread_of_the_supervisor_takes_a_signal_away(start: Start, on_etcd: dict[str, str]) -> None:
    worker = start(WRITE_PIDS + "time.sleep(600)", **on_etcd, BIREME_METRICS_PORT=str(free_port()))
    worker.file("pids")
    pid = str(worker.process.pid)
    # The main thread waits for signals.
    blocked: list[int] = []

    def are_there() -> bool:
        blocked.clear()
        for thread in Path(f"/proc/{pid}/task").iterdir():
            # One may end meanwhile.
            with contextlib.suppress(OSError):
                mask = re.search(r"SigBlk:\s*(\w+)", (thread / "status").read_text())
                blocked.extend([int(mask.group(1), 16)] if mask and thread.name != pid else [])
        return len(blocked) > 3

    until(are_there, what="the threads")
    # SIGTERM has number 15.
    assert all(mask >> 14 & 1 for mask in blocked)


def test_orphans_that_end_are_reaped(start: Start) -> None:
    orphan = "import os, pathlib; pathlib.Path('orphan').write_text(str(os.getpid()))"
    shell = f"{sys.executable} -c {orphan!r} &"
    worker = start(f"import subprocess\nsubprocess.run(['sh', '-c', {shell!r}])\ntime.sleep(600)")
    pid = int(worker.file("orphan"))
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_run_that_has_succeeded_is_not_repeated(start: Start, on_etcd: dict[str, str]) -> None:
    first = start("pathlib.Path('out').write_text(' '.join(sys.argv[1:]))", **on_etcd)
    assert (first.end(), first.file("out")) == (0, "one two")
    late = start("pathlib.Path('out').write_text('2')", **on_etcd)
    assert late.end() == 0
    assert not (late.folder / "out").exists()
    assert "the run has already succeeded" in late.words


def test_waiting_for_the_others_is_no_stable_time(start: Start, on_etcd: dict[str, str]) -> None:
    on_etcd["PET_RDZV_CONF"] += ",join_timeout=0.7"
    on_etcd["PET_NNODES"] = "2:2"
    worker = start("", **on_etcd, BIREME_AGENT_RESTARTS="2", BIREME_STABLE_SECONDS="0.5")
    assert worker.end() == 75
    assert "the agent ended 3 times" in worker.words


def test_a_process_that_cannot_be_killed_ends_the_worker_but_not_its_lease(
    start: Start, on_etcd: dict[str, str], client: etcd.Client, prefix: str, tmp_path: Path
) -> None:
    # For a process in state D: the signal is not sent to the processes in a file.
    pids = tmp_path / "undying"
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, pathlib; kill, listed = os.kill, pathlib.Path({str(pids)!r})\n"
        "os.kill = lambda pid, number: (number == 9 and str(pid) in listed.read_text().split())"
        " or kill(pid, number)"
    )
    script = f"pathlib.Path({str(pids)!r}).write_text(str(os.getpid()))\n" + WRITE_PIDS + "time.sleep(600)"
    pids.touch()
    worker = start(script, **on_etcd, PYTHONPATH=f"{RUNTIME}:{tmp_path}")
    agent, undying = map(int, worker.file("pids").split())
    try:
        os.kill(agent, signal.SIGKILL)
        assert worker.end() == 75
        assert client.range(f"{prefix}run/members/").keys
        assert f"process {undying} cannot be killed" in worker.words
    finally:
        os.kill(undying, signal.SIGKILL)


@pytest.mark.parametrize(
    ("script", "env", "code", "left"),
    [
        ("print('step 1')", {}, 0, ["run/done", "run/round"]),
        ("sys.exit(3)", {"BIREME_FAILURES_WITHOUT_PROGRESS": "1"}, 70, ["run/round"]),
    ],
)
def test_of_a_run_that_is_over_etcd_keeps_only_that_it_has_ended(
    start: Start, on_etcd: dict[str, str], client: etcd.Client, prefix: str,
    script: str, env: dict[str, str], code: int, left: list[str],
) -> None:  # fmt: skip
    """An etcd that releases share would grow with each run."""
    worker = start(script, **on_etcd, **env)
    assert worker.end() == code, worker.words
    keys = client.range(prefix).keys
    assert [each.key[len(prefix) :] for each in keys if not each.lease] == left


def test_a_failed_run_is_not_closed(start: Start, on_etcd: dict[str, str]) -> None:
    failed = start("with open('out', 'a') as f: f.write('x')\nsys.exit(3)", **on_etcd, PET_MAX_RESTARTS="2")
    assert (failed.end(), failed.file("out")) == (1, "xxx"), "torchrun makes two restarts of its own"
    assert start("pathlib.Path('out').write_text('2')", **on_etcd).end() == 0


def test_after_an_agent_ends_the_others_agree_on_a_new_round_at_once(
    start: Start, on_etcd: dict[str, str]
) -> None:
    # The lease lives longer than the test waits.
    on_etcd["PET_RDZV_CONF"] += ",keep_alive_max_attempt=600"
    script = WRITE_PIDS + "pathlib.Path('world-' + os.environ['WORLD_SIZE']).write_text('x')\ntime.sleep(600)"
    stays, goes = start(script, **on_etcd), start(script, **on_etcd)
    stays.file("world-2")
    goes.file("world-2")
    (stays.folder / "world-2").unlink()
    os.kill(int(goes.file("pids").split()[0]), signal.SIGKILL)
    stays.file("world-2")


# The clock by which a worker's lease is measured is ahead of the machine's by what a file says.
AHEAD = """
import pathlib, time
clock_gettime, ahead = time.clock_gettime, pathlib.Path({!r})
time.clock_gettime = lambda clock: clock_gettime(clock) + (
    float(ahead.read_text() or 0) if clock == time.CLOCK_BOOTTIME else 0
)
"""


# Writes the time again and again, deaf to TERM: `last` is when the process of a world was last alive.
TRAIN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
world = os.environ['WORLD_SIZE']
pathlib.Path('first-' + world).write_text(str(time.time()))
while True:
    with open('last-' + world, 'a') as f: f.write(f'{time.time()}\\n')
    time.sleep(0.01)
"""


END = "told to end while cut off"


def last_alive(worker: Worker, world: int) -> float:
    return float((worker.folder / f"last-{world}").read_text().splitlines()[-2])


@pytest.mark.parametrize("what", core("agent paused", END, of=["cut off", "agent paused", END]))
def test_a_member_that_cannot_renew_is_dead_before_the_others_form_a_world(
    client: etcd.Client,
    start: Start,
    on_etcd: dict[str, str],
    proxy: Proxy,
    what: str,
    prefix: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AHEAD.format(str(tmp_path / "ahead")))
    (tmp_path / "ahead").touch()
    on_etcd["PET_RDZV_CONF"] += ",keep_alive_max_attempt=300"
    stays = start(TRAIN, **on_etcd)
    stays.file("first-1")
    others = {kv.lease for kv in client.range(f"{prefix}run/members/").keys}
    here = {"PET_RDZV_ENDPOINT": proxy.endpoint, "PYTHONPATH": f"{RUNTIME}:{tmp_path}"}
    goes = start(WRITE_PIDS + TRAIN, **{**on_etcd, **here}, BIREME_GRACE_SECONDS="600")
    stays.file("first-2")
    until(lambda: goes.file("last-2").count("\n") > 2)
    (stays.folder / "first-1").unlink()
    (lease,) = {kv.lease for kv in client.range(f"{prefix}run/members/").keys} - others
    agent, trainer = map(int, goes.file("pids").split())
    proxy.mode = "silent"
    if what == "agent paused":
        os.kill(agent, signal.SIGSTOP)
    if what == END:
        goes.process.send_signal(signal.SIGTERM)
        goes.wait_for("received SIGTERM")
    # By its clock, five sixths of the 300 s of its lease are over.
    (tmp_path / "ahead").write_text("255")
    until(lambda: gone(trainer), what=lambda: goes.words)
    client.lease_revoke(lease)
    second_world = float(stays.file("first-1"))
    assert last_alive(goes, 2) < second_world
    if what != END:
        # It is out, and comes back as a newcomer.
        proxy.mode = "pass"
        proxy.cut()
        (stays.folder / "first-2").unlink()
        stays.file("first-2")


def test_while_a_process_saves_the_membership_is_kept(
    client: etcd.Client, start: Start, on_etcd: dict[str, str], shared_etcd: EtcdServer, prefix: str
) -> None:
    script = f"""
def save(*_):
    while not os.path.exists('go'):
        time.sleep(0.05)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
{WRITE_PIDS}
time.sleep(600)
"""
    worker = start(script, **on_etcd)
    worker.file("pids")
    (member,) = client.range(f"{prefix}run/members/").keys
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for("received SIGTERM")

    def left() -> int:
        return int(shared_etcd.request("/v3/lease/timetolive", {"ID": member.lease})["TTL"])

    # Only the supervisor renews the lease: while it is stopped, less and less is left.
    worker.process.send_signal(signal.SIGSTOP)
    until(lambda: left() < 56)
    worker.process.send_signal(signal.SIGCONT)
    until(lambda: left() > 57)
    (worker.folder / "go").touch()
    assert worker.end() == 143
    assert not client.range(f"{prefix}run/members/").keys
    assert membership.outcome_of(client, f"{prefix}run/") == ""


def test_while_it_saves_the_life_of_a_lease_counts_from_the_question_and_not_from_the_answer(
    on_etcd: dict[str, str], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = EtcdBackend(AgentSettings.from_env(on_etcd), on_etcd)
    told, client = backend.environment(), backend._client
    lease = client.lease_grant(10)
    client.put(f"{prefix}run/members/{told['BIREME_MEMBER']}.1", "", lease)
    board = fence.Board.at(told[fence.BOARD])
    board.admit(1, fence.now() + 1)
    renew, asked = client.lease_keepalive, list[float]()

    def slowly(lease: int) -> None:
        asked.append(fence.now())
        renew(lease)
        time.sleep(0.2)

    monkeypatch.setattr(client, "lease_keepalive", slowly)
    backend.hold()
    (question,) = asked
    assert question + 2 < board.deadline <= question + fence.KILL_SHARE * 60


def test_waiting_for_etcd_is_limited_logged_and_ended_by_sigterm(
    start: Start, on_etcd: dict[str, str]
) -> None:
    nowhere = {**on_etcd, "PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}"}
    bounded = start("", **{**nowhere, "BIREME_WAIT_SECONDS": "0.5"})
    endless = start("", **{**nowhere, "BIREME_WAIT_SECONDS": "600"})
    assert bounded.end() == 75
    endless.wait_for(" at most, for etcd: ")
    assert " at most, for etcd: " in bounded.words
    assert "etcd did not answer within" in bounded.words
    endless.process.send_signal(signal.SIGTERM)
    assert endless.end() == 143


@pytest.mark.parametrize(
    ("env", "code", "sentence"),
    [
        ({"PET_NNODES": "few"}, 78, "PET_NNODES or PET_RDZV_CONF cannot be used"),
        ({"PET_RDZV_BACKEND": "bireme-etcd", "PET_NNODES": "3:2"}, 78, "the bounds 3:2 are not"),
        ({"PET_RDZV_BACKEND": "bireme-etcd", "PET_RDZV_CONF": "join_timeout"}, 78, "which is not key=value"),
        ({"PET_RDZV_BACKEND": "bireme-etcd", "PET_RDZV_ENDPOINT": "ftp://x"}, 78, "is not an etcd endpoint"),
        ({"PET_RDZV_BACKEND": "bireme-etcd"}, 78, "needs at least one endpoint"),
        ({"PET_RDZV_BACKEND": "c10d"}, 78, "must be the host:port of worker 0"),
        ({"BIREME_PROGRESS_PATTERN": "step"}, 78, "BIREME_PROGRESS_PATTERN=step cannot be used"),
        ({"BIREME_PROGRESS_PATTERN": "("}, 78, "BIREME_PROGRESS_PATTERN=( cannot be used"),
        ({"BIREME_ON_SLOW": "fail"}, 78, "BIREME_ON_SLOW=fail is none of warn, restart"),
        ({"BIREME_LAUNCHER": "deepspeed"}, 64, "launcher deepspeed needs the Python package deepspeed"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_used_ends_the_worker_with_its_code(
    env: dict[str, str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert supervisor.main([__file__], {"PATH": os.environ["PATH"], **env}) == code
    assert sentence in capsys.readouterr().err


REAL = (sys.executable, "-m", "bireme_runtime.elastic.agent.supervisor", "--")
WITHOUT_SCRIPT = (sys.executable, "-c", MAIN, "--", "/no/such/train.py")


def test_what_is_wrong_before_any_worker_has_started_fails_the_job(
    start: Start, on_etcd: dict[str, str]
) -> None:
    without_torch, without_script = (start("", command=each, **on_etcd) for each in (REAL, WITHOUT_SCRIPT))
    assert (without_torch.end(), without_script.end()) == (78, 64)
    assert "No module named 'torch'" in without_torch.words
    assert "the script /no/such/train.py does not exist" in without_script.words


def test_what_is_wrong_in_one_worker_of_a_run_ends_only_that_worker(
    start: Start, on_etcd: dict[str, str]
) -> None:
    other = start("pathlib.Path('world').write_text('x'); time.sleep(600)", **on_etcd)
    other.file("world")
    for worker in [start("", command=each, **on_etcd) for each in (REAL, WITHOUT_SCRIPT)]:
        assert worker.end() == 75
        assert "the run has begun: only this pod is replaced" in worker.words
    assert other.process.poll() is None


def test_a_library_that_is_missing_on_one_machine_does_not_fail_the_job(start: Start, tmp_path: Path) -> None:
    torch = tmp_path / "broken" / "torch"
    torch.mkdir(parents=True)
    error = "libcudart.so.12: cannot open shared object file: No such file or directory"
    (torch / "__init__.py").write_text(f"raise ImportError({error!r})")
    worker = start("", command=REAL, PYTHONPATH=f"{RUNTIME}:{torch.parent}")
    assert worker.end() == 75
    assert f"torchrun cannot run here: ImportError: {error}" in worker.words


@pytest.mark.parametrize("code", [70, 78])
def test_a_scripts_own_exit_code_does_not_look_like_the_agents(
    start: Start, tmp_path: Path, code: int
) -> None:
    torchrun = tmp_path / "torchrun.py"
    torchrun.write_text(f"import sys; sys.exit({code})")
    worker = start("", command=(sys.executable, "-c", MAIN.replace(str(TINY), str(torchrun)), "--"))
    assert worker.end() == 1
    assert f"the script failed for good, with code {code}" in worker.words


C10D = {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "no-such-host.invalid:1"}


@pytest.mark.parametrize(("index", "host"), [("0", "true"), ("3", "false")])
def test_for_c10d_the_completion_index_selects_the_host_of_the_store(index: str, host: str) -> None:
    env = {**C10D, "PET_RDZV_CONF": "join_timeout=9", "JOB_COMPLETION_INDEX": index}
    assert supervisor.make_backend(AgentSettings.from_env(env), env).environment() == {
        "PET_RDZV_CONF": f"join_timeout=9,is_host={host}", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }  # fmt: skip


def test_for_c10d_the_name_of_worker_0_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    backend = supervisor.make_backend(AgentSettings.from_env({**C10D, "BIREME_WAIT_SECONDS": "1"}), C10D)
    with pytest.raises(Stop, match="does not resolve") as stop:
        backend.wait()
    assert stop.value.code == 75
    assert re.search(r"waiting, \d s at most, for the name no-such-host\.invalid", capsys.readouterr().err)


def test_a_worker_leaves_nothing_in_the_folder_of_temporary_files(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    worker = start("pathlib.Path(os.environ['BIREME_DISPATCHER_NOTES'], 'note').touch(); sys.exit(3)",
                   TMPDIR=str(folder))  # fmt: skip
    assert worker.end() == 1
    assert list(folder.iterdir()) == []
