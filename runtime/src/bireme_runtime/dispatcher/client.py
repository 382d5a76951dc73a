"""The shard dispatcher as a trainer sees it (docs/dispatcher.md)."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import math
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bireme_runtime.dispatcher import notes
from bireme_runtime.dispatcher.messages import BLOCK, numbers_of
from bireme_runtime.process import environment
from bireme_runtime.process.errors import BiremeError, SettingError, Unreachable
from bireme_runtime.process.http import Address, Connection, parse_address
from bireme_runtime.process.threads import in_thread

# The longest time that the service may hold a request that waits; short, so that `stop` takes effect soon.
_POLL_SECONDS = 4.0
# A replica that does not answer for this time is considered hung, and another one is asked.
_ANSWER_SECONDS = 8.0
_LEAVE_SECONDS = 5.0
# `leave_for` waits so long for a replica before it asks the next one.
_LEAVE_ANSWER_SECONDS = 2.0
_LONGEST_PAUSE = 2.0

log = logging.getLogger("bireme_runtime")


class DispatcherError(BiremeError):
    """The dispatcher did not carry out a request."""


class Unavailable(DispatcherError):
    """No leader of the dispatcher answered in time."""


class Refused(DispatcherError):
    """The dispatcher refused a request. `body` is its answer and `status` the status of HTTP."""

    def __init__(self, message: str, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class _LeaseLost(Refused):
    """The service no longer knows this trainer, because its lease has ended."""


@dataclass
class Shard:
    """A shard to train: its index (from 0) and name in the dataset, and the number of the pass (from 0)."""

    index: int
    name: str
    pass_number: int
    _token: int = field(repr=False)
    _dispatcher: Dispatcher = field(repr=False)
    _settled: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def done(self) -> None:
        """Acknowledge the shard now, rather than at the end of the loop's body."""
        self._settle("done")

    def release(self) -> None:
        """Return the shard without counting a failure; another trainer gets it."""
        self._settle("released")

    def _settle(self, how: str) -> None:
        if not self._settled:
            self._settled = True
            self._dispatcher._settle({how: [[self.index, self._token]]}, self)

    def _fail(self, reason: str) -> None:
        """Report a failure. Errors of the report are suppressed: they would hide the original error."""
        if not self._settled:
            self._settled = True
            with contextlib.suppress(DispatcherError):
                body = {"failed": [[self.index, self._token, reason]]}
                self._dispatcher._settle(body, self, _LEAVE_SECONDS)


@dataclass(frozen=True)
class Progress:
    """How far a dataset is: which shards of the pass are done or given up, by index."""

    pass_number: int
    is_over: bool
    settled: frozenset[int]


class Dispatcher:
    """A trainer's client of the dispatcher. Close it, by `with` for example; the process's end closes it too.

    Arguments that are not given come from the environment: BIREME_DISPATCHER (`host:port[,host:port…]`),
    BIREME_DISPATCHER_DATASET, BIREME_TRAINER and BIREME_WAIT_SECONDS, the longest wait for the service. Where
    BIREME_DISPATCHER_NOTES names a folder, a supervisor settles what this trainer leaves unsettled
    (notes.py). Raises ValueError for invalid addresses; the methods raise Unavailable and Refused.
    """

    def __init__(
        self,
        addresses: str = "",
        dataset: str = "",
        trainer: str = "",
        wait_seconds: float | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.dataset = dataset or env.get("BIREME_DISPATCHER_DATASET") or "default"
        self._name = trainer or env.get("BIREME_TRAINER") or socket.gethostname()
        seconds = (
            environment.seconds(env, "BIREME_WAIT_SECONDS", 600) if wait_seconds is None else wait_seconds
        )
        self._addresses = parse(addresses or env.get("BIREME_DISPATCHER", ""))
        self._leader = LeaderConnection(self._addresses, seconds)
        where = ",".join(map(str, self._addresses))
        self._note = notes.of_this_process(env, where, self.dataset)
        # Horovod sets this in the processes of elastic jobs.
        self._is_elastic = env.get("HOROVOD_ELASTIC") == "1"
        self._trainer = ""
        self._renewal: _Renewal | None = None
        self._current: Shard | None = None
        # What this trainer has done and the dispatcher may not know yet.
        self._done: list[list[int]] = []
        # A request for the next shard that is on its way, its connection, and what the last one brought.
        self._ahead: _Ahead | None = None
        self._second: LeaderConnection | None = None
        self._following: Shard | None = None
        self._stopping = False
        # Whether this process knows that the shards have been added.
        self._was_defined = False

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # For trainers ----------------------------------------

    def add(self, names: Iterable[str], passes: int = 1, timeout: float = 600.0, failures: int = 3) -> bool:
        """Define the dataset by the names of its shards; returns False if the same definition exists.

        A trainer may keep a shard for `timeout` seconds. A shard that fails `failures` times in a pass is
        given up for that pass. Raises Refused if the dataset exists with another definition.
        """
        shards = list(names)
        blocks = [shards[first : first + BLOCK] for first in range(0, len(shards), BLOCK)]
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(json.dumps(block).encode())
        about = {"digest": digest.hexdigest()[:32], "shards": len(shards)}
        wanted = {**about, "passes": passes, "timeout": timeout, "failures": failures}
        try:
            return self._added(wanted)
        except Refused as refused:
            if not refused.body.get("missing"):
                raise
        for number, block in enumerate(blocks):
            self._post("block", {"digest": about["digest"], "block": number, "names": block})
        return self._added(wanted)

    def _added(self, wanted: Mapping[str, Any]) -> bool:
        is_new = bool(self._post("add", wanted)["added"])
        self._was_defined = True
        return is_new

    def shards(self, prefetch: bool = False, for_all: bool = False) -> Generator[Shard, None, None]:
        """Take shards until all passes are over, or `stop` was called.

        A shard is acknowledged when the loop asks for the next one. Leaving the loop's body, for example by
        an exception, reports the shard as failed. A supervisor, if there is one, reports it after the end of
        this process. In elastic Horovod a process that enters the loop again returns its shard without a
        failure. With `prefetch`, the acknowledgement and the request for the next shard are sent while the
        body runs. With `for_all`, all ranks of the world work on the shard, and it fails with any of them.
        """
        if self._current is not None:
            if self._is_elastic:
                self._current.release()
            else:
                self._current._fail("the loop over shards was left")
        if self._note is not None:
            self._note = replace(self._note, for_all=for_all)
            if self._trainer:
                self._note.write()
        try:
            while (shard := self._received() or self._next()) is not None:
                if prefetch:
                    self._ask_ahead(shard)
                try:
                    yield shard
                except GeneratorExit:
                    self._left(shard, "the loop was left in the body")
                    raise
                except BaseException as error:
                    self._left(shard, repr(error))
                    raise
                if not shard._settled:
                    shard._settled, self._current = True, None
                    self._done.append([shard.index, shard._token])
        finally:
            if self._following is not None:
                with contextlib.suppress(DispatcherError):
                    self._settle_rest(_LEAVE_SECONDS)

    def _left(self, shard: Shard, reason: str) -> None:
        """Report a failure, or leave that to the supervisor, which knows who failed first.

        In elastic Horovod the end of the process decides: it goes on if the world changed or lost another.
        """
        if self._note is None and not self._is_elastic:
            shard._fail(reason)

    def once(self, what: str, action: Callable[[], object], wait: bool = True) -> bool:
        """Have one trainer carry out `action`; returns whether this trainer did.

        The other trainers wait until it is done, unless `wait` is false. If that trainer fails or is lost,
        another one carries it out.
        """
        while True:
            body = {"name": what, "wait": _POLL_SECONDS if wait else 0}
            state = self._post_as_trainer("once", body).get("state")
            if state == "yours":
                self._act(what, action)
                try:
                    self._post("once-done", {"name": what, "trainer": self._trainer})
                    return True
                except _LeaseLost as gone:
                    log.warning("%s; another trainer may repeat it", gone)
            elif state == "done" or not wait:
                return False

    def _act(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException:
            with contextlib.suppress(DispatcherError):
                self._post("once-failed", {"name": what, "trainer": self._trainer}, _LEAVE_SECONDS)
            raise

    def stop(self) -> None:
        """End the loop over shards after the current one. A signal handler may call it."""
        self._stopping = True

    def close(self) -> None:
        """Leave the dispatcher. A shard that is not settled has failed, or is left to the supervisor.

        If the dispatcher cannot be reached, the end of the lease has the same effect.
        """
        if not self._trainer:
            return
        self._collect(_LEAVE_SECONDS)
        verb = "leave"
        body: dict[str, Any] = {"trainer": self._trainer, "done": self._done}
        if self._current is not None and not self._current._settled:
            if self._note is None:
                reason = "the trainer ended in the loop's body"
                body["failed"] = [[self._current.index, self._current._token, reason]]
            else:
                verb = "settle"
        self._current = self._following = None
        self._done = []
        if self._renewal is not None:
            self._renewal.stop()
        atexit.unregister(self.close)
        with contextlib.suppress(DispatcherError):
            self._post(verb, body, _LEAVE_SECONDS)
        self._trainer = ""
        if self._note is not None and verb == "leave":
            self._note.delete()
        self._leader.close()
        if self._second is not None:
            self._second.close()

    # Without joining ----------------------------------------

    def status(self) -> dict[str, Any]:
        """The leader and the datasets, as in `/v1/status`."""
        return self._ask("GET", "/v1/status")

    def progress(self) -> Progress:
        """How far this dataset is."""
        said = self._ask("GET", f"/v1/{self.dataset}/progress")
        return Progress(int(said["pass"]), bool(said["over"]), frozenset(numbers_of(said["settled"])))

    def wait_finished(self) -> None:
        """Wait until all passes are over and the last trainer has left."""
        while not self._ask("GET", f"/v1/{self.dataset}/finished?wait=4").get("finished"):
            pass

    def delete(self) -> None:
        """Delete this dataset, also if it is not finished. Raises Refused while it has trainers."""
        while not self._post("delete", {"wait": _POLL_SECONDS}).get("gone"):
            pass

    # Private ----------------------------------------

    def _next(self) -> Shard | None:
        """Acknowledge what is done and get the next shard; None at the end."""
        while not self._stopping:
            answer = self._post_as_trainer("next", {"done": self._done, "wait": _POLL_SECONDS})
            self._done = []
            _warn_if_late(answer)
            if "shard" in answer:
                shard = self._current = self._shard(answer)
                if not self._stopping:
                    return shard
                shard.release()
            if answer.get("over"):
                return None
            if self._was_defined and not answer.get("defined", True):
                raise DispatcherError(
                    f"the dispatcher no longer has dataset {self.dataset}, because its etcd has lost its "
                    "data: start the script again, which adds it anew"
                )
        self._settle_rest()
        return None

    def _shard(self, answer: Mapping[str, Any]) -> Shard:
        found, self._was_defined = answer["shard"], True
        return Shard(found["shard"], found["name"], found["pass"], found["token"], self)

    def _ask_ahead(self, shard: Shard) -> None:
        """Acknowledge what is done and ask for the next shard, while this trainer works on `shard`."""
        self._second = leader = self._second or LeaderConnection(self._addresses, _LEAVE_SECONDS)
        body = {"trainer": self._trainer, "done": list(self._done), "have": [shard._token], "ahead": True}
        path = f"/v1/{self.dataset}/next"
        asked = in_thread(lambda: leader.ask("POST", path, body), "bireme-prefetch")
        self._ahead = _Ahead(self._trainer, len(self._done), asked)

    def _collect(self, seconds: float | None = None) -> None:
        """Wait for the answer to `_ask_ahead`. If it failed, the next request repeats what it said."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        if not wait([ahead.answer], seconds).done:
            # Its thread still uses the connection.
            self._second = None
            return
        if ahead.answer.exception():
            return
        answer = ahead.answer.result()
        if "acknowledged" in answer:
            self._done = self._done[ahead.done :]
            _warn_if_late(answer)
        if "shard" in answer and ahead.trainer == self._trainer:
            self._following = self._shard(answer)

    def _received(self) -> Shard | None:
        """The shard that was asked for while the trainer worked on the last one."""
        self._collect()
        if self._stopping:
            return None
        self._current, self._following = self._following, None
        return self._current

    def _settle_rest(self, seconds: float | None = None) -> None:
        """Acknowledge what is done, and return what was got ahead."""
        self._collect(seconds)
        following, self._following = self._following, None
        released = [[following.index, following._token]] if following is not None else []
        if self._done or released:
            body = {"done": self._done, "released": released, "trainer": self._trainer}
            _warn_if_late(self._post("settle", body, seconds))
            self._done = []

    def _settle(self, body: dict[str, Any], shard: Shard, seconds: float | None = None) -> None:
        if self._current is shard:
            self._current = None
        _warn_if_late(self._post("settle", {**body, "trainer": self._trainer}, seconds))

    def _post(self, verb: str, body: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
        return self._ask("POST", f"/v1/{self.dataset}/{verb}", body, seconds)

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float | None = None
    ) -> dict[str, Any]:
        self._collect(seconds)
        return self._leader.ask(method, path, body, seconds)

    def _post_as_trainer(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request as a joined trainer; join again if the lease has ended."""
        while True:
            if not self._trainer:
                self._join()
            try:
                return self._post(verb, {**body, "trainer": self._trainer})
            except _LeaseLost:
                log.warning("the lease of %s has ended; it joins again", self._trainer)
                self._trainer, self._following = "", None

    def _join(self) -> None:
        answer = self._post("join", {"name": self._name})
        if self._renewal is not None:
            self._renewal.stop()
        else:
            atexit.register(self.close)
        self._trainer = str(answer["trainer"])
        if self._note is not None:
            if self._note.trainer:
                self._note.delete()
            seconds = float(answer["seconds"])
            self._note = replace(self._note, trainer=self._trainer, lease_seconds=seconds)
            self._note.write()
        path = f"/v1/{self.dataset}/heartbeat"
        self._renewal = _Renewal(self._addresses, path, self._trainer, float(answer["seconds"]))


def leave_for(note: notes.Note, lost: str = "", until: float = math.inf) -> None:
    """Leave the dispatcher in place of a trainer that has ended.

    Its shard goes to others. With a reason in `lost`, that counts as a failure of the shard. If the
    dispatcher cannot be reached, the trainer's lease ends later, which counts as one too.
    """
    body = {"trainer": note.trainer, "lost": lost}
    # After its lease has ended, a trainer cannot be left any more.
    seconds = min(max(_LEAVE_SECONDS, note.lease_seconds), until - time.monotonic())
    leader = LeaderConnection(parse(note.addresses), seconds, _LEAVE_ANSWER_SECONDS)
    with contextlib.suppress(DispatcherError):
        leader.ask("POST", f"/v1/{note.dataset}/leave", body)
    leader.close()


def leave_for_all(env: Mapping[str, str] = os.environ) -> None:
    """Leave the dispatcher in place of all trainers of the job's dataset; no failure is counted.

    For a launcher whose ranks have ended because one of their hosts was lost. Without a dispatcher it does
    nothing.
    """
    if not env.get("BIREME_DISPATCHER"):
        return
    dispatcher = Dispatcher(env=env, wait_seconds=_LEAVE_SECONDS)
    with contextlib.suppress(DispatcherError):
        for dataset in dispatcher.status()["datasets"]:
            for trainer in dataset["trainers"] if dataset["dataset"] == dispatcher.dataset else ():
                with contextlib.suppress(Refused):
                    dispatcher._post("leave", {"trainer": trainer["trainer"]})


def _warn_if_late(answer: Mapping[str, Any]) -> None:
    if not all(answer.get("acknowledged", ())):
        log.warning("a shard was taken back before its acknowledgement: another trainer repeats it")


@dataclass(frozen=True)
class _Ahead:
    """A request in a thread. `trainer` sent it, and it acknowledges the first `done` of what it has done."""

    trainer: str
    done: int
    answer: Future[dict[str, Any]]


class _Renewal:
    """Renews a trainer's lease, in a process; in a thread until that has begun, and if there can be none."""

    def __init__(self, addresses: tuple[Address, ...], path: str, trainer: str, seconds: float) -> None:
        self._leader = LeaderConnection(addresses, seconds, seconds / 4)
        self._path = path
        self._trainer = trainer
        self._pause = seconds / 3
        self._over = threading.Event()
        self._has_begun = False
        arguments = [",".join(map(str, addresses)), path, trainer, str(seconds), str(os.getpid())]
        self._process = _start(["-m", "bireme_runtime.dispatcher.renewal", *arguments])
        threading.Thread(target=self._run, name="bireme-renewal", daemon=True).start()

    def stop(self) -> None:
        """End the renewal, without waiting for the thread."""
        self._over.set()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def is_in_process(self) -> bool:
        """Whether the process renews the lease."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        with contextlib.suppress(BlockingIOError):
            self._has_begun = self._has_begun or bool(process.stdout and os.read(process.stdout.fileno(), 1))
        return self._has_begun

    def _run(self) -> None:
        while not self._over.wait(self._pause):
            if self.is_in_process:
                continue
            try:
                self._leader.ask("POST", self._path, {"trainer": self._trainer})
            except Refused:
                return
            except Unavailable as error:
                log.debug("%s", error)
        self._leader.close()


def _start(arguments: list[str]) -> subprocess.Popen[bytes] | None:
    """A Python process with this package, or None."""
    folders = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    try:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
    except OSError as error:
        log.debug("no process renews the lease: %s", error)
        return None
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


class LeaderConnection:
    """A connection to the leader, found through any of the addresses. For one thread."""

    def __init__(
        self, addresses: tuple[Address, ...], seconds: float, answer_seconds: float = _ANSWER_SECONDS
    ) -> None:
        self._token = os.environ.get("BIREME_RELEASE_TOKEN", "")
        self._addresses = addresses
        self._seconds = seconds
        self._answer_seconds = answer_seconds
        self._turn = random.randrange(len(addresses))
        self._connection: Connection | None = None

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float | None = None
    ) -> dict[str, Any]:
        """Send a request until it is answered, which may take an election. Raises Unavailable and Refused."""
        deadline = time.monotonic() + (self._seconds if seconds is None else seconds)
        data = None if body is None else json.dumps(body).encode()
        pause, redirects = 0.05, 0
        while True:
            try:
                status, location, answer = self._exchange(method, path, data)
                if status == 200:
                    return answer
                problem = str(answer.get("error") or f"the dispatcher answered with HTTP {status}")
                if status in (400, 403, 404, 409, 410):
                    raise (_LeaseLost if status == 410 else Refused)(problem, status, answer)
                self.close()
                if status == 307 and redirects < 5:
                    redirects += 1
                    self._connect(parse_address(urlsplit(location).netloc))
                    continue
            except (Unreachable, ValueError) as error:
                self.close()
                problem = str(error)
            redirects = 0
            if time.monotonic() >= deadline:
                where = ",".join(map(str, self._addresses))
                raise Unavailable(f"no dispatcher at {where} answered in time: {problem}")
            time.sleep(random.uniform(0.5, 1) * pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self, address: Address) -> None:
        self._connection = Connection(address, self._answer_seconds, token=self._token)

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, str, dict[str, Any]]:
        if self._connection is None:
            self._turn = (self._turn + 1) % len(self._addresses)
            self._connect(self._addresses[self._turn])
        assert self._connection is not None
        reply = self._connection.ask(method, path, data)
        answer = json.loads(reply.body or b"{}")
        if not isinstance(answer, dict):
            raise ValueError(f"the server at {self._connection.address} is not a dispatcher")
        return reply.status, reply.headers.get("Location", ""), answer


def parse(text: str) -> tuple[Address, ...]:
    """Parse `host:port[,host:port…]`. Raises SettingError."""
    addresses = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        try:
            addresses.append(parse_address(part))
        except ValueError:
            sentence = f"{part!r} is not host:port of a dispatcher (BIREME_DISPATCHER)"
            raise SettingError(sentence) from None
    if not addresses:
        raise SettingError("BIREME_DISPATCHER is not set: write host:port of the dispatcher")
    return tuple(addresses)
