"""The shard dispatcher as trainers use it: two replicas, the library and the command, on a real etcd."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme_runtime.dispatcher import Dispatcher, Progress, Refused, Shard, Unavailable
from bireme_runtime.dispatcher.__main__ import main
from bireme_runtime.dispatcher.client import DispatcherError, leave_for
from bireme_runtime.dispatcher.notes import Notes
from bireme_runtime.etcd import client as etcd
from bireme_runtime.etcd.server import backup
from tests.runtime.dispatcher_replicas import Dispatchers, environment, until
from tests.runtime.etcd_servers import RUNTIME, EtcdServer, NewEtcd, free_port

DOCS = Path(__file__).parents[2] / "docs" / "dispatcher.md"


@pytest.fixture(scope="module")
def shared(shared_etcd: EtcdServer) -> Iterator[Dispatchers]:
    """Two replicas for all tests that do not stop them; each test has its own dataset."""
    with Dispatchers(shared_etcd.endpoint, "/test/shared-dispatcher/") as replicas:
        yield replicas


@pytest.fixture
def brief(shared_etcd: EtcdServer, prefix: str) -> Iterator[Dispatchers]:
    """A replica with trainers whose leases end while a test waits."""
    with Dispatchers(shared_etcd.endpoint, prefix, count=1, trainer_seconds=12) as mine:
        yield mine


@pytest.fixture
def replicas(shared_etcd: EtcdServer, prefix: str) -> Iterator[Dispatchers]:
    """Two replicas that a test may kill."""
    with Dispatchers(shared_etcd.endpoint, prefix, leader_seconds=2) as mine:
        yield mine


Trainers = Callable[..., Dispatcher]


@pytest.fixture
def trainer(shared: Dispatchers, prefix: str) -> Trainers:
    """Make trainers of a new dataset."""
    return lambda name="t": Dispatcher(shared.addresses, prefix.strip("/").replace("/", "-"), name, 60)


def trainers_of(replicas: Dispatchers) -> Callable[[str], Dispatcher]:
    return lambda name: Dispatcher(replicas.addresses, trainer=name, wait_seconds=60)


class Fleet:
    """Trainers in threads, and the shards that they trained."""

    def __init__(
        self, make: Callable[[str], Dispatcher], train: Callable[[Shard], object], prefetch: bool = False
    ) -> None:
        self._make = make
        self._train = train
        self._prefetch = prefetch
        self._pool = ThreadPoolExecutor(32)
        self._lock = threading.Lock()
        self.trained: Counter[tuple[int, str]] = Counter()
        self.runs: list[Future[None]] = []

    def add(self, name: str) -> None:
        self.runs.append(self._pool.submit(self._run, name))

    def _run(self, name: str) -> None:
        with self._make(name) as dispatcher:
            for shard in dispatcher.shards(self._prefetch):
                self._train(shard)
                with self._lock:
                    self.trained[(shard.pass_number, shard.name)] += 1

    def join(self) -> None:
        for run in self.runs:
            run.result(60)


def names(count: int) -> list[str]:
    return [f"part-{number:05d}" for number in range(count)]


def of(replicas: Dispatchers, dataset: str = "default") -> dict[str, Any]:
    """The dataset's status."""
    datasets = Dispatcher(replicas.addresses, wait_seconds=60).status()["datasets"]
    return next(each for each in datasets if each["dataset"] == dataset)


# Shards ----------------------------------------


@pytest.mark.parametrize("prefetch", [False, True])
def test_each_shard_is_trained_once_in_each_pass_by_some_trainer(trainer: Trainers, prefetch: bool) -> None:
    with trainer() as first:
        first.add(names(40), passes=3)
    fleet = Fleet(trainer, lambda shard: time.sleep(0.002), prefetch)
    for number in range(4):
        fleet.add(f"t{number}")
    until(lambda: len(fleet.trained) > 20)
    fleet.add("late")
    fleet.join()
    assert fleet.trained == Counter((number, name) for number in range(3) for name in names(40))
    trainer().wait_finished()


def test_trainers_may_join_before_the_dataset_is_defined(trainer: Trainers) -> None:
    fleet = Fleet(trainer, lambda shard: None)
    fleet.add("early")
    assert trainer().add(["a", "b"])
    fleet.join()
    assert set(fleet.trained) == {(0, "a"), (0, "b")}


def test_the_first_definition_counts_and_another_one_is_refused(trainer: Trainers) -> None:
    assert trainer().add(names(2500)) is True
    assert trainer().add(names(2500)) is False
    with pytest.raises(
        Refused, match="exists already, with other shards, passes or limits: choose another name"
    ):
        trainer().add(names(2400))
    with pytest.raises(Refused, match="exists already"):
        trainer().add(names(2500), passes=2)
    (first,) = [shard.name for shard, _ in zip(trainer().shards(), "1", strict=False)]
    assert first == "part-00000"


def test_unusable_limits_are_refused(trainer: Trainers) -> None:
    unusable: dict[str, dict[str, Any]] = {
        "passes is 0: it must be more than 0": {"passes": 0},
        "timeout is -1.0: it must be more than 0": {"timeout": -1},
        "failures is 0": {"failures": 0},
    }
    for sentence, limits in unusable.items():
        with pytest.raises(Refused, match=sentence):
            trainer().add(["a"], **limits)
    with pytest.raises(Refused, match="shards is 0"):
        trainer().add([])


def test_a_shard_that_always_fails_is_listed_and_the_passes_continue(
    shared: Dispatchers, trainer: Trainers
) -> None:
    # Defects 1 and 3 of the old master: the pass stalled when its last shard failed, and failed shards
    # started the next pass with their failures. Here the failing shard is the last one of both passes.
    trainer().add(["a", "poisoned", "b"], passes=2, failures=2)
    tried: Counter[tuple[int, str]] = Counter()
    with trainer() as dispatcher:
        while not of(shared, dispatcher.dataset)["over"]:
            try:
                for shard in dispatcher.shards():
                    tried[(shard.pass_number, shard.name)] += 1
                    assert shard.name != "poisoned"
            except AssertionError:
                continue
        status = of(shared, dispatcher.dataset)
    assert tried == Counter(
        {(p, n): 2 if n == "poisoned" else 1 for p in range(2) for n in ("a", "b", "poisoned")}
    )
    assert (status["failedShards"], status["done"], status["failed"]) == (["poisoned"], 2, 1)
    trainer().wait_finished()


def test_done_and_release_settle_a_shard_before_a_break(shared: Dispatchers, trainer: Trainers) -> None:
    with trainer() as dispatcher:
        dispatcher.add(["a", "b"], failures=1)
        for shard in dispatcher.shards():
            shard.done()
            break
        for shard in dispatcher.shards():
            shard.release()
            break
        status = of(shared, dispatcher.dataset)
        assert (status["done"], status["todo"], status["failed"]) == (1, 1, 0)
        assert [shard.name for shard in dispatcher.shards()] == ["b"]


TRAIN_AND_HANG = """
import time
from bireme_runtime.dispatcher import Dispatcher
for shard in Dispatcher().shards():
    print(shard.name, flush=True)
    time.sleep(600)
"""


def start_trainer(
    replicas: Dispatchers, dataset: str, code: str, says: str = "", **more: str
) -> subprocess.Popen[str]:
    """Start a script, and wait until it says so."""
    env = {"BIREME_DISPATCHER": replicas.addresses, "BIREME_DISPATCHER_DATASET": dataset, **more}
    env["BIREME_TRAINER"] = "started"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**environment(), **env}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert not says or process.stdout.readline() == f"{says}\n"
    return process


def test_a_killed_trainers_shards_are_back_within_its_lease(brief: Dispatchers) -> None:
    # Defect 7 of the old master: a dead trainer's shards were not trained for up to 20 minutes.
    with trainers_of(brief)("survivor") as survivor:
        survivor.add(["a", "b"], timeout=3600)
        victim = start_trainer(brief, survivor.dataset, TRAIN_AND_HANG, "a")
        victim.kill()
        victim.wait()
        killed = time.monotonic()
        assert [shard.name for shard in survivor.shards()] == ["b", "a"]
        # The lease has 12 s here; without it, the shard would be back after an hour.
        assert time.monotonic() - killed < 600
        assert of(brief)["redispatched"] == {"lost": 1}


HOLD_THE_INTERPRETER = """
import ctypes, time
from bireme_runtime.dispatcher import Dispatcher
with Dispatcher() as dispatcher:
    for shard in dispatcher.shards():
        while not dispatcher._renewal.is_in_process:
            time.sleep(0.05)
        # Unlike CDLL, a function of PyDLL keeps the interpreter to itself.
        ctypes.PyDLL(None).sleep(16)
        print(shard.name, flush=True)
"""


def test_a_step_that_holds_the_interpreter_longer_than_the_lease_is_no_failure(brief: Dispatchers) -> None:
    with trainers_of(brief)("other") as other:
        other.add(["a"])
        holder = start_trainer(brief, other.dataset, HOLD_THE_INTERPRETER)
        assert holder.communicate(timeout=120)[0] == "a\n"
        status = of(brief)
        assert (status["done"], status["redispatched"]) == (1, {})


def test_a_thread_renews_the_lease_when_the_process_that_does_is_killed(brief: Dispatchers) -> None:
    with trainers_of(brief)("t") as dispatcher:
        dispatcher.add(["a"])
        shards = dispatcher.shards()
        next(shards)
        renewal = dispatcher._renewal
        assert renewal
        assert renewal._process
        until(lambda: renewal.is_in_process)
        renewal._process.kill()
        # The lease has 12 s here.
        time.sleep(18)
        status = of(brief)
        assert (len(status["trainers"]), status["pending"], status["redispatched"]) == (1, 1, {})
        assert list(shards) == []
        assert of(brief)["done"] == 1


@pytest.fixture
def notes() -> Iterator[Notes]:
    """Those of a supervisor."""
    mine = Notes()
    yield mine
    mine.close()


TRAIN_AND_RAISE = """
from bireme_runtime.dispatcher import Dispatcher
with Dispatcher() as dispatcher:
    for shard in dispatcher.shards():
        print(shard.name, flush=True)
        raise ValueError("a peer was lost, or the shard is bad")
"""


@pytest.mark.parametrize(
    ("end", "to_blame"),
    [(TRAIN_AND_HANG, True), (TRAIN_AND_RAISE, False)],
    ids=["killed-to-blame", "raised-innocent"],
)
def test_a_supervisor_decides_whether_the_shard_of_an_ended_trainer_failed(
    shared: Dispatchers, trainer: Trainers, notes: Notes, end: str, to_blame: bool
) -> None:
    with trainer("survivor") as survivor:
        survivor.add(["a"], failures=1)
        victim = start_trainer(shared, survivor.dataset, end, "a", RANK="3", **notes.environment)
        if end == TRAIN_AND_HANG:
            victim.kill()
        victim.wait(120)
        (note,) = notes.read()
        assert (note.pid, note.rank, note.for_all) == (victim.pid, 3, False)
        assert of(shared, survivor.dataset)["failedShards"] == []
        leave_for(note, "the script failed" if to_blame else "")
        assert [shard.name for shard in survivor.shards()] == ([] if to_blame else ["a"])
        status = of(shared, survivor.dataset)
        assert status["failedShards"] == (["a"] if to_blame else [])
        assert status["redispatched"] == ({} if to_blame else {"released": 1})


def test_a_trainer_that_leaves_by_itself_leaves_no_note(
    shared: Dispatchers, trainer: Trainers, notes: Notes
) -> None:
    with trainer() as other:
        other.add(["a", "b"])
        with Dispatcher(shared.addresses, other.dataset, env=notes.environment) as dispatcher:
            for shard in dispatcher.shards(for_all=True):
                (note,) = notes.read()
                assert note.for_all
                assert shard.name in "ab"
        assert notes.read() == []
        assert of(shared, other.dataset)["done"] == 2


def test_a_supervised_trainer_that_goes_on_after_a_failure_reports_it_itself(
    shared: Dispatchers, trainer: Trainers, notes: Notes
) -> None:
    with Dispatcher(shared.addresses, trainer().dataset, env=notes.environment) as dispatcher:
        dispatcher.add(["a", "b"], failures=1)
        with contextlib.suppress(ValueError):
            for _ in dispatcher.shards():
                raise ValueError("this shard is bad")
        assert [shard.name for shard in dispatcher.shards()] == ["b"]
        assert of(shared, dispatcher.dataset)["failedShards"] == ["a"]


def test_a_process_of_elastic_horovod_counts_a_failure_only_when_it_ends(
    shared: Dispatchers, trainer: Trainers
) -> None:
    elastic = {"HOROVOD_ELASTIC": "1"}
    with Dispatcher(shared.addresses, trainer().dataset, env=elastic) as dispatcher:
        dispatcher.add(["a", "b"], failures=1)
        with contextlib.suppress(RuntimeError):
            for _ in dispatcher.shards():
                raise RuntimeError("the world has changed")
        assert sorted(shard.name for shard in dispatcher.shards()) == ["a", "b"]
        assert of(shared, dispatcher.dataset)["failedShards"] == []
    other = Dispatcher(shared.addresses, f"{dispatcher.dataset}-other", env=elastic)
    other.add(["a"], failures=1)
    with contextlib.suppress(ValueError), other:
        for _ in other.shards():
            raise ValueError("this shard is bad")
    assert of(shared, other.dataset)["failedShards"] == ["a"]


def test_progress_tells_which_shards_of_the_pass_are_done_or_given_up(
    shared: Dispatchers, trainer: Trainers
) -> None:
    with trainer() as dispatcher:
        assert dispatcher.progress() == Progress(0, False, frozenset())
        dispatcher.add(names(4), passes=2, failures=1)
        loop = dispatcher.shards()
        first, second = next(loop), next(loop)
        assert dispatcher.progress() == Progress(0, False, frozenset({first.index}))
        second._fail("on purpose")
        third = next(loop)
        assert dispatcher.progress().settled == {first.index, second.index}
        third.done()
        for shard in loop:
            if shard.pass_number == 1:
                assert dispatcher.progress().pass_number == 1
        assert dispatcher.progress() == Progress(1, True, frozenset(range(4)))


def test_a_trainer_whose_lease_has_ended_joins_as_a_new_one(
    shared: Dispatchers, shared_etcd: EtcdServer, trainer: Trainers
) -> None:
    client = etcd.Client(etcd.parse_endpoints(shared_etcd.endpoint))
    with trainer() as dispatcher:
        dispatcher.add(names(3))
        trained: list[str] = []
        for shard in dispatcher.shards():
            if not trained:
                for kv in client.range(f"{shared.prefix}trainers/{dispatcher.dataset}/").keys:
                    client.lease_revoke(kv.lease)
                until(lambda: not of(shared, dispatcher.dataset)["trainers"])
            trained.append(shard.name)
    assert Counter(trained) == Counter({"part-00000": 2, "part-00001": 1, "part-00002": 1})


# The next shard, got ahead ----------------------------------------


def in_hand(replicas: Dispatchers, dataset: str) -> list[str]:
    return [name for each in of(replicas, dataset)["trainers"] for name in each["inHand"]]


def test_a_shard_that_was_prefetched_is_there_while_no_replica_answers(replicas: Dispatchers) -> None:
    with trainers_of(replicas)("t") as dispatcher:
        dispatcher.add(names(5))
        shards = dispatcher.shards(prefetch=True)
        assert next(shards).name == "part-00000"
        until(lambda: in_hand(replicas, "default") == ["part-00000", "part-00001"])
        for process in replicas.processes:
            process.send_signal(signal.SIGSTOP)
        assert next(shards).name == "part-00001"
        for process in replicas.processes:
            process.send_signal(signal.SIGCONT)
        assert [shard.name for shard in shards] == names(5)[2:]


@pytest.mark.parametrize("end", ["stop", "break", "raise"])
def test_a_trainer_that_ends_its_loop_returns_what_it_prefetched(
    shared: Dispatchers, trainer: Trainers, end: str
) -> None:
    def train(dispatcher: Dispatcher) -> None:
        for shard in dispatcher.shards(prefetch=True):
            until(lambda: len(in_hand(shared, dispatcher.dataset)) == 2)
            if end == "stop":
                dispatcher.stop()
            elif end == "break":
                shard.done()
                break
            else:
                raise RuntimeError(end)

    with trainer() as dispatcher:
        dispatcher.add(names(6), failures=9)
        with contextlib.suppress(RuntimeError):
            train(dispatcher)
        status = of(shared, dispatcher.dataset)
        done = 0 if end == "raise" else 1
        assert (status["done"], status["todo"], status["pending"]) == (done, 6 - done, 0)


def test_progress_knows_what_a_trainer_that_prefetches_has_done(trainer: Trainers) -> None:
    with trainer() as dispatcher:
        dispatcher.add(names(30))
        for number, shard in enumerate(dispatcher.shards(prefetch=True)):
            assert (shard.index, dispatcher.progress().settled) == (number, frozenset(range(number)))


# Once ----------------------------------------


def test_one_trainer_initialises_while_the_others_wait(trainer: Trainers) -> None:
    done: list[str] = []

    def run(name: str) -> tuple[bool, int]:
        with trainer(name) as dispatcher:

            def initialise() -> None:
                time.sleep(0.5)
                done.append(name)

            return dispatcher.once("parameters", initialise), len(done)

    with ThreadPoolExecutor(5) as pool:
        results = list(pool.map(run, "abcde"))
    assert len(done) == 1
    assert Counter(results) == Counter({(True, 1): 1, (False, 1): 4})


def test_a_dead_initialiser_is_replaced(shared: Dispatchers, trainer: Trainers) -> None:
    hang = """
import time
from bireme_runtime.dispatcher import Dispatcher
Dispatcher().once("parameters", lambda: print("begun", flush=True) or time.sleep(600))
"""
    with trainer() as next_one:
        victim = start_trainer(shared, next_one.dataset, hang, "begun")
        assert next_one.once("parameters", lambda: None, wait=False) is False
        victim.kill()
        victim.wait()
        shared.end_leases(shared.leases_of(next_one.dataset, "started"))
        assert next_one.once("parameters", lambda: None) is True


def test_a_failed_initialiser_is_replaced(trainer: Trainers) -> None:
    with trainer() as clumsy, trainer() as careful:
        with pytest.raises(ZeroDivisionError):
            clumsy.once("parameters", lambda: 1 / 0)
        assert careful.once("parameters", lambda: None) is True
        assert clumsy.once("parameters", lambda: None) is False


# The end ----------------------------------------


def test_the_last_trainer_to_leave_finishes_the_dataset(shared: Dispatchers, trainer: Trainers) -> None:
    with trainer("first") as first:
        first.add(["a"])
        with trainer("second") as second:
            assert [*first.shards(), *second.shards()]
            pserver = threading.Thread(target=trainer().wait_finished, daemon=True)
            pserver.start()
            assert of(shared, first.dataset)["over"]
        assert not of(shared, first.dataset)["finished"]
    assert of(shared, first.dataset)["finished"]
    pserver.join(60)
    assert not pserver.is_alive()
    # A later trainer has nothing to do.
    with trainer("late") as late:
        assert list(late.shards()) == []


# Replicas ----------------------------------------


def test_both_replicas_are_ready_and_followers_redirect_to_the_leader(shared: Dispatchers) -> None:
    leader = shared.leader()
    follower = 1 - leader
    assert [shared.get(port, "/readyz")[0] for port in shared.ports] == [200, 200]
    connection = http.client.HTTPConnection("127.0.0.1", shared.ports[follower])
    connection.request("POST", "/v1/some/next", b"{}")
    answer = connection.getresponse()
    assert answer.status == 307
    assert answer.headers["Location"] == f"http://127.0.0.1:{shared.ports[leader]}/v1/some/next"
    assert json.loads(answer.read()) == {"leader": f"127.0.0.1:{shared.ports[leader]}"}
    # Every replica returns the status, because the API server's proxy does not follow redirects.
    assert [shared.get(port, "/v1/status")[0] for port in shared.ports] == [200, 200]


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/v1/x", "{}", 404, "there is no path /v1/x"),
        ("/v1/x/dance", "{}", 404, "there is no request POST dance"),
        ("/v1/x/next", "[]", 400, "the body must be a JSON object"),
        ("/v1/x%20y/next", "{}", 400, "'x y' cannot be the name of a dataset: use letters"),
        (
            "/v1/x/heartbeat",
            '{"trainer": "nobody"}',
            400,
            "'nobody' is not a trainer id of this service",
        ),
        ("/v1/x/next", '{"trainer": "t.1"}', 410, "the lease of trainer t.1 has ended: join again"),
        ("/v1/x/once", '{"name": ""}', 400, "'' cannot be the name of a task"),
        (
            "/v1/x/block",
            '{"digest": "abcdef01", "block": 0, "names": [""]}',
            400,
            "a shard's name is text of 1 to",
        ),
        (
            "/v1/x/add",
            '{"digest": "abcdef01", "shards": "many"}',
            400,
            "this is not the definition of a dataset",
        ),
        ("/v1/x/settle", '{"done": [[1]]}', 400, "the request cannot be decoded"),
        ("/v1/x/settle", json.dumps({"done": [[1, 1]] * 201}), 400, "done has more than 200 shards"),
        ("/v1/x/next", '{"trainer": "t.1", "wait": []}', 400, "could not convert string to float"),
        ("/v1/x/block", '{"digest": "abcdef01", "block": null}', 400, "invalid literal for int"),
        ("/v1/x/next", 100_000 * "[", 400, "the body must be a JSON object"),
    ],
)
def test_an_invalid_request_is_refused_with_a_sentence(
    shared: Dispatchers, path: str, body: str, status: int, sentence: str
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.ports[shared.leader()])
    connection.request("POST", path, body.encode())
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"][: len(sentence)]) == (status, sentence)


def test_who_asks_whether_a_dataset_is_finished_makes_none(
    shared: Dispatchers, shared_etcd: EtcdServer
) -> None:
    port = shared.ports[shared.leader()]
    # What is no time is none.
    for wait in ("0", "nan", "-1"):
        answer = shared.get(port, f"/v1/a-name-of-a-stranger/finished?wait={wait}")
        assert answer == (200, {"wait": True, "defined": False})
    assert "a-name-of-a-stranger" not in _metrics(shared)
    keys = etcd.Client(etcd.parse_endpoints(shared_etcd.endpoint)).range(shared.prefix).keys
    assert not [each.key for each in keys if "a-name-of-a-stranger" in each.key]


def test_leaving_ends_no_lease_but_that_of_a_trainer(shared: Dispatchers, shared_etcd: EtcdServer) -> None:
    client = etcd.Client(etcd.parse_endpoints(shared_etcd.endpoint))
    lease = client.lease_grant(60)
    connection = http.client.HTTPConnection("127.0.0.1", shared.ports[shared.leader()])
    connection.request("POST", "/v1/x/leave", json.dumps({"trainer": f"stranger.{lease:x}"}).encode())
    assert connection.getresponse().status == 200
    client.lease_keepalive(lease)


def test_with_a_token_only_the_release_changes_what_the_dispatcher_knows(
    shared_etcd: EtcdServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Dispatchers(shared_etcd.endpoint, prefix, count=1, token="secret") as replicas:
        stranger = Dispatcher(replicas.addresses, "x", "stranger", 60)
        monkeypatch.setenv("BIREME_RELEASE_TOKEN", "secret")
        with Dispatcher(replicas.addresses, "x", "t", 60) as mine:
            mine.add(["a", "b"])
            shards = mine.shards(prefetch=True)
            next(shards)
            (known,) = mine.status()["datasets"]
            (trainer,) = known["trainers"]
            for forbidden in (
                lambda: stranger._post("leave", {"trainer": trainer["trainer"]}),
                lambda: stranger.add(["a"]),
                lambda: next(stranger.shards()),
                stranger.delete,
            ):
                with pytest.raises(Refused, match="needs the token of the release"):
                    forbidden()
            # A GET only reads, with whatever body.
            for verb in ("leave", "settle", "delete"):
                assert replicas.get(replicas.ports[replicas.leader()], f"/v1/x/{verb}")[0] == 404
            assert len(list(shards)) == 1
            assert stranger.progress().is_over


def test_requests_that_are_none_are_refused_and_not_counted(shared: Dispatchers) -> None:
    port = shared.ports[shared.leader()]
    for head in (
        b"POST /v1/x/next HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(head)
            assert stranger.recv(100).startswith(b"HTTP/1.1 400 ")
    assert shared.get(port, "/v1/x/dance")[0] == 404
    assert "dance" not in _metrics(shared)


def test_deleting_a_dataset_that_is_not_finished_changes_no_leader(
    shared: Dispatchers, shared_etcd: EtcdServer, trainer: Trainers
) -> None:
    def term() -> tuple[int, list[str]]:
        terms = re.findall(r"^bireme_dispatcher_terms_total .*", _metrics(shared), re.MULTILINE)
        return shared.leader(), terms

    with trainer("first") as first:
        first.add(names(30))
        assert next(first.shards())
    before = term()
    trainer().delete()
    assert term() == before
    keys = etcd.Client(etcd.parse_endpoints(shared_etcd.endpoint)).range(shared.prefix).keys
    assert not [each.key for each in keys if first.dataset in each.key]


def test_metrics_count_states_trainers_and_returned_shards(shared: Dispatchers, trainer: Trainers) -> None:
    with trainer("worker-3") as dispatcher:
        dispatcher.add(names(5))
        shards = dispatcher.shards()
        next(shards).release()
        next(shards)
        next(shards)
        text = _metrics(shared)
        mine = {line for line in text.splitlines() if f'"{dispatcher.dataset}"' in line}
        values = {re.sub(r"\.[0-9a-f]+\"", '"', line.replace(dispatcher.dataset, "X")) for line in mine}
        assert {
            'bireme_dispatcher_shards{dataset="X",state="todo"} 3',
            'bireme_dispatcher_shards{dataset="X",state="pending"} 1',
            'bireme_dispatcher_shards{dataset="X",state="done"} 1',
            'bireme_dispatcher_shards{dataset="X",state="failed"} 0',
            'bireme_dispatcher_redispatched_total{dataset="X",reason="released"} 1',
            'bireme_dispatcher_trainers{dataset="X"} 1',
            'bireme_dispatcher_acknowledged_total{dataset="X",trainer="worker-3"} 1',
        } <= values
        assert any(line.startswith("bireme_dispatcher_shards_per_second{") for line in values)
    assert "bireme_dispatcher_leader 1" in text


def _metrics(replicas: Dispatchers) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", replicas.ports[replicas.leader()])
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def test_killed_and_restarted_leaders_lose_and_repeat_nothing(
    replicas: Dispatchers, shared_etcd: EtcdServer
) -> None:
    # Defects 4 and 5 of the old master: a dispatch that was not saved was never taken back, and the address
    # of a dead master remained.
    make = trainers_of(replicas)
    make("").add(names(300), passes=2)
    fleet = Fleet(make, lambda shard: time.sleep(0.005))
    for number in range(4):
        fleet.add(f"t{number}")
    client = etcd.Client(etcd.parse_endpoints(shared_etcd.endpoint))
    for limit, how in ((50, signal.SIGKILL), (250, signal.SIGTERM), (400, signal.SIGKILL)):
        until(lambda limit=limit: sum(fleet.trained.values()) > limit, 120, f"shard {limit}")  # type: ignore[misc]
        leader = replicas.leader()
        replicas.kill(leader, how)
        replicas.restart(leader)
    fleet.join()
    assert fleet.trained == Counter((number, name) for number in range(2) for name in names(300))
    status = of(replicas)
    assert (status["done"], status["failed"], status["over"]) == (300, 0, True)
    replicas.kill(0)
    replicas.kill(1)
    until(lambda: client.get(f"{replicas.prefix}leader") is None, what="the end of the leader's address")


def test_a_leader_that_receives_sigterm_is_replaced_at_once(shared_etcd: EtcdServer, prefix: str) -> None:
    with Dispatchers(shared_etcd.endpoint, prefix, leader_seconds=600) as replicas:
        leader = replicas.leader()
        replicas.kill(leader, signal.SIGTERM)
        assert replicas.processes[leader].returncode == 0
        until(lambda: replicas.get(replicas.ports[1 - leader], "/readyz")[1].get("leads"))


def test_a_leader_that_resumes_after_a_long_pause_assigns_no_shard(replicas: Dispatchers) -> None:
    with Dispatcher(replicas.addresses, wait_seconds=60) as dispatcher:
        dispatcher.add(names(100))
        frozen = replicas.leader()
        trained: list[str] = []
        for shard in dispatcher.shards():
            trained.append(shard.name)
            if len(trained) == 10:
                replicas.processes[frozen].send_signal(signal.SIGSTOP)
            if len(trained) == 20:
                replicas.processes[frozen].send_signal(signal.SIGCONT)
    assert Counter(trained) == Counter(names(100))


def test_a_replica_that_comes_back_at_another_address_is_found(replicas: Dispatchers) -> None:
    # Defect 8 of the old design: a registered address became invalid after a restart. Clients know only the
    # Service; in this test they know only the follower's address, and the leader's changes.
    leader = replicas.leader()
    follower = f"127.0.0.1:{replicas.ports[1 - leader]}"
    with Dispatcher(follower, wait_seconds=60) as dispatcher:
        dispatcher.add(names(4))
        trained: list[str] = []
        for shard in dispatcher.shards():
            trained.append(shard.name)
            if len(trained) == 1:
                replicas.kill(leader)
                replicas.restart(leader, free_port())
                replicas.wait_ready()
    assert trained == names(4)


def test_a_restart_of_etcd_loses_no_shard(new_etcd: NewEtcd, prefix: str) -> None:
    server = new_etcd().start()
    with Dispatchers(server.endpoint, prefix) as replicas:
        make = trainers_of(replicas)
        make("").add(names(150), passes=2)
        fleet = Fleet(make, lambda shard: time.sleep(0.005))
        for number in range(3):
            fleet.add(f"t{number}")
        until(lambda: sum(fleet.trained.values()) > 100)
        server.stop()
        server.start()
        fleet.join()
        assert fleet.trained == Counter((number, name) for number in range(2) for name in names(150))


def test_an_etcd_out_of_space_is_told_and_left_behind_once_there_is_space(
    new_etcd: NewEtcd, prefix: str
) -> None:
    server = new_etcd("--quota-backend-bytes=1000000").start()
    replicas = Dispatchers(server.endpoint, prefix).start()
    client, go_on = etcd.Client(etcd.parse_endpoints(server.endpoint)), threading.Event()
    try:
        make = trainers_of(replicas)
        make("").add(names(20))
        fleet = Fleet(make, lambda shard: until(go_on.is_set, 60))
        fleet.add("t0")
        until(lambda: of(replicas)["pending"] == 1)
        with pytest.raises(etcd.OutOfSpace):
            list(map(client.put, map("/other/{}".format, range(100)), ["x" * 50_000] * 100))
        go_on.set()
        hasty = Dispatcher(replicas.addresses, "other", wait_seconds=3)
        with pytest.raises(Unavailable, match=r"in time: etcd is out of space \(NOSPACE alarm\): compact"):
            hasty.add(names(20))
        client.delete_span("/other/", "/other0")
        revision = client.range("/other/").revision
        server.request("/v3/kv/compaction", {"revision": revision, "physical": True})
        backup.defragment(client, lambda url: etcd.client_from(url, {}), print)
        fleet.join()
        assert fleet.trained == Counter((0, name) for name in names(20))
    finally:
        go_on.set()
        replicas.stop()


def test_when_etcd_has_lost_its_data_a_trainer_says_so(new_etcd: NewEtcd, prefix: str) -> None:
    server = new_etcd().start()
    replicas = Dispatchers(server.endpoint, prefix, leader_seconds=2)
    with replicas, Dispatcher(replicas.addresses, wait_seconds=60) as trainer:
        trainer.add(names(3))
        shards = trainer.shards()
        next(shards)
        server.stop()
        shutil.rmtree(server.folder)
        server.start()
        with pytest.raises(DispatcherError, match="no longer has dataset default, because its"):
            next(shards)


# The command ----------------------------------------


def test_the_command_adds_shows_and_waits(
    shared: Dispatchers, trainer: Trainers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = trainer().dataset
    env = {"BIREME_DISPATCHER": shared.addresses, "BIREME_DISPATCHER_DATASET": dataset}

    def told(*arguments: str) -> tuple[int, str]:
        code = main(arguments, {**env, "BIREME_WAIT_SECONDS": "20"})
        return code, "".join(capsys.readouterr())

    listed = tmp_path / "train.list"
    listed.write_text("\n".join(names(3)))
    assert told("add", "--from", str(listed), "--passes", "1") == (0, f"dataset {dataset} has 3 shards\n")
    assert told("add", *names(3)) == (0, f"dataset {dataset} had 3 shards\n")
    code, refusal = told("add", "other")
    assert (code, refusal.startswith(f"bireme dispatcher: dataset {dataset} exists already")) == (1, True)
    assert "leads" in told("wait")[1]
    shown = json.loads(told("status", "-o", "json")[1])
    assert [each["todo"] for each in shown["datasets"] if each["dataset"] == dataset] == [3]
    with trainer() as dispatcher:
        assert len(list(dispatcher.shards())) == 3
    assert told("wait-finished") == (0, f"dataset {dataset} is finished\n")
    assert told("delete") == (0, f"dataset {dataset} is deleted\n")
    assert f'"{dataset}"' not in told("status")[1]
    assert told("delete")[0] == 0


@pytest.mark.parametrize("arguments", [["dance"], []])
def test_a_command_that_is_none_has_the_exit_code_of_a_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments, {})
    assert end.value.code == 64


NOBODY = {"BIREME_DISPATCHER": "127.0.0.1:9", "BIREME_WAIT_SECONDS": "0.2"}
ETCD = {"BIREME_ETCD_ENDPOINTS": "127.0.0.1:9"}


@pytest.mark.parametrize(
    ("command", "env", "code", "sentence"),
    [
        ("wait", NOBODY, 75, "no dispatcher at 127.0.0.1:9 answered in time: "),
        ("wait", {}, 78, "BIREME_DISPATCHER is not set: write host:port of the dispatcher\n"),
        (
            "wait",
            {"BIREME_DISPATCHER": "host"},
            78,
            "'host' is not host:port of a dispatcher (BIREME_DISPATCHER)\n",
        ),
        (
            "wait",
            {"BIREME_WAIT_SECONDS": "long"},
            78,
            "BIREME_WAIT_SECONDS=long is not a number of seconds\n",
        ),
        ("serve", {}, 78, "BIREME_ETCD_ENDPOINTS is not set: write host:port of etcd\n"),
        (
            "serve",
            {**ETCD, "BIREME_DISPATCHER_LISTEN": "7190x"},
            78,
            "BIREME_DISPATCHER_LISTEN=7190x is not host:port\n",
        ),
        (
            "serve",
            {**ETCD, "BIREME_DISPATCHER_TRAINER_SECONDS": "1"},
            78,
            "BIREME_DISPATCHER_TRAINER_SECONDS=1 is not a whole number, 2 or more\n",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_told_in_a_sentence(
    capsys: pytest.CaptureFixture[str], command: str, env: dict[str, str], code: int, sentence: str
) -> None:
    assert main([command], env) == code
    assert capsys.readouterr().err.startswith(f"bireme dispatcher: {sentence}")


def test_the_script_of_the_docs_trains(shared: Dispatchers, prefix: str) -> None:
    # with_torch/test_dispatcher.py runs the second one.
    script, _ = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    code = "initialise = save = lambda: print('once')\ntrain = print\n" + script
    dataset = prefix.strip("/").replace("/", "-")
    done = start_trainer(shared, dataset, code)
    out, _ = done.communicate(timeout=120)
    passes = [f"part-{number:05d}" for number in range(2)] * 3
    assert [line for line in out.split() if line != "once"] == passes
    # One initialisation of the parameters, and one save for each pass.
    assert out.split().count("once") == 4
    assert done.returncode == 0


def test_the_files_that_the_charts_ship_are_enough_to_serve(tmp_path: Path) -> None:
    annotations = yaml.safe_load((DOCS.parents[1] / "charts/training/Chart.yaml").read_text())["annotations"]
    package = RUNTIME / "bireme_runtime"
    for folder in ("", *yaml.safe_load(annotations["bireme/runtime"])["dispatcher"]):
        for path in (package / folder).glob("*.py"):
            copy = tmp_path / path.relative_to(RUNTIME)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text())
    served = subprocess.run(
        [sys.executable, "-S", "-m", "bireme_runtime.dispatcher", "serve"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert served.stderr == "bireme dispatcher: BIREME_ETCD_ENDPOINTS is not set: write host:port of etcd\n"
