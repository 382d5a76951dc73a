"""What a Paddle job with dispatched shards saves when its pods are asked to go, killed, or out of space."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bireme_runtime.dispatcher import Dispatcher
from bireme_runtime.paddle.run import last_save
from tests.runtime.dispatcher_replicas import Dispatchers
from tests.runtime.etcd_servers import EtcdServer
from tests.runtime.paddle_pods import SECONDS, PaddleJob
from tests.support.tiers import core

SCRIPT = Path(__file__).with_name("paddle_script.py").read_text()
SHARDS, PASSES = 8, 2
ALL = Counter((number, f"shard-{shard}") for number in range(PASSES) for shard in range(SHARDS))


class TrainingJob(PaddleJob):
    """A job of two trainers that trains 8 shards twice, and what it has trained."""

    def __init__(self, folder: Path, dispatchers: Dispatchers, name: str) -> None:
        super().__init__(folder, SCRIPT)
        self.folder = folder
        self.arguments = [str(folder), str(SHARDS), str(PASSES), "0.05"]
        self._dispatchers, self._name = dispatchers, name
        self.run = 1

    def start(self, role: str, index: int, **more: str) -> None:
        run = f"{self._name}-{self.run}"
        ours = {"BIREME_RUN_ID": run, "BIREME_DISPATCHER_DATASET": run, "BIREME_GRACE_SECONDS": "10"}
        ours |= {"BIREME_DISPATCHER": self._dispatchers.addresses, "BIREME_TRAINER": f"{role}-{index}"}
        super().start(role, index, **{**ours, **more})

    def learnt(self) -> Counter[tuple[int, str]]:
        """How often each shard was trained in each pass, as the pservers of the last attempt have it."""
        lives = sorted(self.folder.glob("parameters-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        return content(lives[-1]) if lives else Counter()

    def until_trained(self, shards: int) -> None:
        self.until(lambda: sum(self.learnt().values()) >= shards, f"{shards} shards to be trained")

    def until_there(self, name: str) -> None:
        self.until((self.folder / name).exists, name)

    def hold(self, *names: str, after: int = 0) -> None:
        """Hold the scripts up at these places, as soon as so many shards are trained."""
        for name in names:
            (self.folder / f"hold-{name}").write_text(str(after))

    def start_until_trained(self, shards: int, **more: str) -> None:
        """Start all pods. The trainers are held with a shard in hand as soon as so many are trained."""
        self.hold("shard-0", "shard-1", after=shards)
        self.start_all(**more)
        for index in range(2):
            self.until_there(f"hold-shard-{index}-here")

    def unhold(self, *names: str) -> None:
        for name in names:
            (self.folder / f"hold-{name}").unlink()
            for state in ("here", "asked"):
                (self.folder / f"hold-{name}-{state}").unlink(missing_ok=True)

    def saved(self) -> tuple[int, Counter[tuple[int, str]]]:
        """Passes and content of the save to which `last-save` points."""
        save = last_save(self.output)
        return (save.passes, content(Path(save.folder) / "model")) if save else (0, Counter())

    def lose(self, role: str, index: int, how: signal.Signals, meanwhile: str = "") -> None:
        """The pod goes: by SIGTERM it has its time, by SIGKILL it has none. Then it is no longer held."""
        if how == signal.SIGTERM:
            self.terminate(role, index)
            if meanwhile:
                self.until_there(f"hold-{meanwhile}-asked")
        else:
            self.kill(role, index)
            if role == "trainer":
                leases = self._dispatchers.leases_of(f"{self._name}-{self.run}-", f"trainer-{index}")
                self._dispatchers.end_leases(leases)
        if meanwhile:
            self.unhold(meanwhile)
        if how == signal.SIGTERM:
            assert self.pods.pop((role, index)).wait(SECONDS) == 143

    def status(self) -> list[dict[str, Any]]:
        """What the dispatcher says of the datasets of this job."""
        found = Dispatcher(self._dispatchers.addresses, wait_seconds=60).status()["datasets"]
        return [each for each in found if each["dataset"].startswith(f"{self._name}-")]

    def ends_well(self, in_hand: int = 0) -> None:
        """All pods end with 0; the final model is there, with each shard of each pass, once.

        So many shards that were in hand when pods went may have been trained twice.
        """
        assert self.codes() == {0}
        passes, model = self.saved()
        assert passes == PASSES
        assert set(model) == set(ALL)
        assert sum((model - ALL).values()) <= in_hand, model
        assert (self.output / "last-save").read_text() == f"pass-{PASSES - 1:05d}\n"
        left = [each.name for each in self.output.iterdir() if each.name.startswith(("steps-", ".saving"))]
        assert left == []


def content(model: Path) -> Counter[tuple[int, str]]:
    lines = [line.split() for line in model.read_text().splitlines()]
    return Counter((int(number), name) for number, name in lines)


@pytest.fixture(scope="module")
def dispatchers(shared_etcd: EtcdServer) -> Iterator[Dispatchers]:
    with Dispatchers(shared_etcd.endpoint, "/test/paddle-saves/", count=1) as replicas:
        yield replicas


@pytest.fixture
def job(tmp_path: Path, dispatchers: Dispatchers, prefix: str) -> Iterator[TrainingJob]:
    one = TrainingJob(tmp_path, dispatchers, prefix.strip("/").replace("/", "-"))
    yield one
    for held in tmp_path.glob("hold-*"):
        held.unlink()
    one.stop()


HOW = [signal.SIGTERM, signal.SIGKILL]
# A trainer, shards that are trained before it goes, and how it goes. The core has each value of these.
LOSSES = list(product([0, 1], [3, 11], HOW))


@pytest.mark.parametrize("loss", core(LOSSES[2], LOSSES[5], of=LOSSES), ids=str)
def test_what_a_trainer_leaves_of_a_pass_is_trained_before_the_pass_ends(
    job: TrainingJob, loss: tuple[int, int, signal.Signals]
) -> None:
    trainer, trained, how = loss
    job.start_until_trained(trained)
    job.lose("trainer", trainer, how, meanwhile=f"shard-{trainer}")
    passes, model = job.saved()
    assert passes < PASSES
    if trainer == 0 and how == signal.SIGTERM:
        assert sum(model.values()) >= trained, "all but what the other trainer has in hand is saved"
    job.unhold(f"shard-{1 - trainer}")
    job.start("trainer", trainer)
    job.ends_well(in_hand=how == signal.SIGKILL)


def test_trainer_0_that_goes_before_its_first_shard_saves_nothing(job: TrainingJob) -> None:
    job.hold("start-0", "shard-1")
    job.start_all()
    job.until_there("hold-start-0-here")
    job.lose("trainer", 0, signal.SIGTERM)
    job.unhold("start-0")
    assert job.saved() == (0, Counter())
    job.start("trainer", 0)
    job.unhold("shard-1")
    job.ends_well()


@pytest.mark.parametrize("how", core(signal.SIGTERM, of=HOW), ids=str)
def test_trainer_0_back_between_last_shard_and_save_saves_the_final_model(
    job: TrainingJob, how: signal.Signals
) -> None:
    job.start_until_trained(SHARDS + 1, BIREME_LOST_SECONDS="15")
    job.unhold("shard-0")
    job.until(lambda: job.status()[0]["done"] == SHARDS - 1, "all but the shard of trainer 1 to be trained")
    job.hold("pull-0")
    job.unhold("shard-1")
    job.until_there("hold-pull-0-here")
    job.lose("trainer", 0, how, meanwhile="pull-0")
    if how == signal.SIGKILL:
        # Longer than a trainer may be silent: the other trainer alone does not end the job.
        time.sleep(17)
    assert not (job.output / "done").exists()
    job.start("trainer", 0)
    job.ends_well()


# The pass whose save is interrupted, and how.
SAVES = list(product([0, 1], HOW))


@pytest.mark.parametrize("save", core(SAVES[1], SAVES[2], of=SAVES), ids=str)
def test_a_save_counts_when_it_is_complete(job: TrainingJob, save: tuple[int, signal.Signals]) -> None:
    number, how = save
    job.hold("save", "shard-1", after=(number + 1) * SHARDS)
    job.start_all()
    job.until_there("hold-save-here")
    job.lose("trainer", 0, how, meanwhile="save")
    passes, model = job.saved()
    assert passes == (number if how == signal.SIGKILL else number + 1)
    assert sum(model.values()) >= passes * SHARDS
    job.unhold("shard-1")
    job.start("trainer", 0)
    job.ends_well(in_hand=1)


def test_trainer_0_that_is_asked_to_go_twice_in_a_row_loses_nothing(job: TrainingJob) -> None:
    job.start_until_trained(3)
    job.terminate("trainer", 0)
    job.lose("trainer", 0, signal.SIGTERM, meanwhile="shard-0")
    job.start("trainer", 0)
    job.until(lambda: (job.folder / "starts-0").read_text() == "1\n1\n", "trainer 0 to start again")
    job.lose("trainer", 0, signal.SIGTERM)
    job.unhold("shard-1")
    job.start("trainer", 0)
    job.ends_well()


def test_a_long_shard_is_given_back_without_blame_after_half_of_the_grace_period(job: TrainingJob) -> None:
    job.start_until_trained(0, BIREME_GRACE_SECONDS="4")
    job.terminate("trainer", 0)
    job.until_there("hold-shard-0-asked")
    time.sleep(2.2)
    job.unhold("shard-0")
    assert job.pods.pop(("trainer", 0)).wait(SECONDS) == 143
    (dataset,) = job.status()
    assert dataset["redispatched"] == {"released": 1}
    job.unhold("shard-1")
    job.start("trainer", 0)
    job.ends_well()


def test_a_new_run_goes_on_with_the_pass_of_a_run_that_was_asked_to_go(job: TrainingJob) -> None:
    job.start_until_trained(11)
    for pod in list(job.pods):
        job.terminate(*pod)
    for index in range(2):
        job.until_there(f"hold-shard-{index}-asked")
    job.unhold("shard-0", "shard-1")
    assert job.codes() == {143}
    passes, model = job.saved()
    assert passes == 1
    assert sum((job.learnt() - model).values()) <= 1, "all but what the other trainer had in hand is saved"
    job.pods.clear()
    job.run = 2
    job.start_all()
    job.ends_well(in_hand=1)


def test_what_is_trained_is_saved_before_a_pserver_that_is_asked_to_go_is_gone(job: TrainingJob) -> None:
    job.start_until_trained(11)
    job.unhold("shard-1")
    job.lose("server", 1, signal.SIGTERM, meanwhile="shard-0")
    _, model = job.saved()
    assert sum(model.values()) >= 11
    job.start("server", 1)
    job.ends_well(in_hand=1)


def test_shards_since_the_last_save_are_trained_again_when_a_pserver_is_lost(job: TrainingJob) -> None:
    job.start_until_trained(12, BIREME_SAVE_STEPS="4")
    job.lose("server", 1, signal.SIGKILL)
    job.unhold("shard-0", "shard-1")
    job.start("server", 1)
    # A save of steps may have what each of the two trainers had in hand.
    job.ends_well(in_hand=2)


def test_a_full_disk_leaves_the_old_save_and_the_error_names_the_folder(job: TrainingJob) -> None:
    job.start_until_trained(SHARDS + 1)
    (job.folder / "is-full").touch()
    job.unhold("shard-0", "shard-1")
    failed = f"the save in {job.output}/pass-00001 failed: [Errno 28] No space left on device"
    job.until(lambda: failed in job.log("trainer", 0), "the second save to fail")
    passes, model = job.saved()
    assert (passes, sum(model.values()) >= SHARDS) == (1, True)
    assert not list(job.output.glob(".saving-*")), "what was written of it takes no space"
    (job.folder / "is-full").unlink()
    job.ends_well()


def test_a_last_save_that_cannot_be_read_holds_the_job_up_until_it_can(job: TrainingJob) -> None:
    # A trainer says why it waits when pserver 0 has not answered for BIREME_LOST_SECONDS.
    job.start_until_trained(SHARDS + 1, BIREME_LOST_SECONDS="5")
    mark = job.output / "pass-00000" / "done"
    known = mark.read_text()
    mark.write_text("")
    job.lose("server", 1, signal.SIGKILL)
    job.unhold("shard-0", "shard-1")
    job.start("server", 1)
    job.until(lambda: "pass-00000, cannot be read" in job.log("trainer", 1), "trainer 1 to say why it waits")
    mark.write_text(known)
    job.ends_well(in_hand=1)
    saves = (job.folder / "saves").read_text()
    assert saves.count("pass-00000") == 1, "the first pass is not trained again"


@pytest.mark.whole
def test_a_run_whose_state_cannot_be_read_begins_nothing(job: TrainingJob) -> None:
    job.start_until_trained(SHARDS + 3)
    job.lose("server", 0, signal.SIGKILL)
    job.unhold("shard-0", "shard-1")
    (job.output / "run.json").write_text("")
    job.start("server", 0)
    assert job.pods.pop(("server", 0)).wait(SECONDS) == 75
    assert f"{job.output}/run.json cannot be read" in job.log("server", 0)
    job.stop()
    (job.output / "run.json").unlink()
    job.run = 2
    job.start_all()
    job.ends_well(in_hand=1)
    assert (job.folder / "saves").read_text().count("pass-00000") == 1


def test_a_restarted_trainer_0_of_a_static_job_waits_before_its_final_save(job: TrainingJob) -> None:
    job.hold("shard-1")
    job.start_all(BIREME_DISPATCHER="")
    job.until_there("hold-shard-1-here")
    job.until_trained(SHARDS)
    run = job.client()
    job.until(lambda: run.progress(0) == (PASSES, 0), "trainer 0 to wait for the other")
    job.lose("trainer", 0, signal.SIGKILL)
    job.start("trainer", 0, BIREME_DISPATCHER="")
    job.until(lambda: (job.folder / "starts-0").read_text() == "1\n1\n", "trainer 0 to start again")
    time.sleep(1)
    assert job.saved()[0] == PASSES - 1, "the other trainer still trains"
    job.unhold("shard-1")
    job.ends_well()
