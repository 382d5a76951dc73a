"""The shard dispatcher as a trainer sees it (docs/dispatcher.md)."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import http.client
import json
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme_runtime.dispatcher.messages import BLOCK

# How long the service may keep a request that waits for something; short, so that `stop` is noticed.
_POLL_SECONDS = 4.0
# A replica that is silent for so long is taken for hung, and another one is asked.
_ANSWER_SECONDS = 8.0
_GOODBYE_SECONDS = 5.0
_LONGEST_PAUSE = 2.0

log = logging.getLogger("bireme_runtime")


class DispatcherError(Exception):
    """The dispatcher did not do what was asked; the message is a sentence."""


class Unavailable(DispatcherError):
    """No dispatcher that leads answered in time."""


class Refused(DispatcherError):
    """The dispatcher answered that it will not do this. `body` is its answer, `status` that of HTTP."""

    def __init__(self, message: str, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class _Gone(Refused):
    """The service has given this trainer up: its lease ended."""


@dataclass
class Shard:
    """One shard in hand: `index` from 0 and `name` in the dataset, `pass_number` from 0."""

    index: int
    name: str
    pass_number: int
    _token: int = field(repr=False)
    _dispatcher: Dispatcher = field(repr=False)
    _settled: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def done(self) -> None:
        """Acknowledge it now, rather than at the end of the loop's body."""
        self._settle("done")

    def release(self) -> None:
        """Give it back without blame: another trainer gets it."""
        self._settle("released")

    def _settle(self, how: str) -> None:
        if not self._settled:
            self._settled = True
            self._dispatcher._settle({how: [[self.index, self._token]]}, self)

    def _fail(self, reason: str) -> None:
        """Report a failure, if somebody listens: it must not hide the error that it comes from."""
        if not self._settled:
            self._settled = True
            with contextlib.suppress(DispatcherError):
                body = {"failed": [[self.index, self._token, reason]]}
                self._dispatcher._settle(body, self, _GOODBYE_SECONDS)


class Dispatcher:
    """One trainer's place at the dispatcher. `with` it, or `close` it; the end of the process does so too.

    Arguments that are not given come from the environment: BIREME_DISPATCHER (`host:port[,host:port…]`),
    BIREME_DISPATCHER_DATASET, BIREME_TRAINER and BIREME_WAIT_SECONDS, the longest wait for the service.
    With BIREME_DISPATCHER_NOTE, a file, who may have to kill this trainer can `give_back` its shards.
    Raises ValueError for addresses that are none; the methods raise Unavailable and Refused.
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
        seconds = _patience(env) if wait_seconds is None else wait_seconds
        self._addresses = _parse(addresses or env.get("BIREME_DISPATCHER", ""))
        self._line = _Line(self._addresses, seconds)
        self._note = Path(env["BIREME_DISPATCHER_NOTE"]) if env.get("BIREME_DISPATCHER_NOTE") else None
        self._trainer = ""
        self._renewal: _Renewal | None = None
        self._hand: Shard | None = None
        self._stopping = False

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # For trainers ----------------------------------------

    def add(self, names: Iterable[str], passes: int = 1, timeout: float = 600.0, failures: int = 3) -> bool:
        """Define the dataset by the names of its shards; returns False when it was there, the same.

        `timeout` is how many seconds a trainer may have a shard in hand; one that fails `failures` times in a
        pass is given up for it. Raises Refused when it is there and differs.
        """
        shards = list(names)
        blocks = [shards[first : first + BLOCK] for first in range(0, len(shards), BLOCK)]
        digest = hashlib.sha256()
        for block in blocks:
            digest.update(json.dumps(block).encode())
        about = {"digest": digest.hexdigest()[:32], "shards": len(shards)}
        wanted = {**about, "passes": passes, "timeout": timeout, "failures": failures}
        try:
            return bool(self._post("add", wanted)["added"])
        except Refused as refused:
            if not refused.body.get("missing"):
                raise
        for number, block in enumerate(blocks):
            self._post("block", {"digest": about["digest"], "block": number, "names": block})
        return bool(self._post("add", wanted)["added"])

    def shards(self) -> Generator[Shard, None, None]:
        """Take shards until all passes are over, or `stop` was called.

        A shard is acknowledged when the loop asks for the next one. Leaving the loop in the body, by an
        exception above all, reports it as failed.
        """
        if self._hand is not None:
            self._hand._fail("its loop was left")
        done: list[list[int]] = []
        while True:
            shard = self._next(done)
            if shard is None:
                return
            done = []
            try:
                yield shard
            except GeneratorExit:
                shard._fail("the loop was left in the body")
                raise
            except BaseException as error:
                shard._fail(repr(error))
                raise
            if not shard._settled:
                shard._settled, self._hand = True, None
                done = [[shard.index, shard._token]]

    def once(self, what: str, action: Callable[[], object], wait: bool = True) -> bool:
        """Have one trainer do something; returns whether this one did.

        The others wait until it is done, or go on if they are not to `wait`. When the one fails or dies,
        another one does it.
        """
        while True:
            body = {"name": what, "wait": _POLL_SECONDS if wait else 0}
            state = self._post_as_trainer("once", body).get("state")
            if state == "yours":
                self._act(what, action)
                try:
                    self._post("once-done", {"name": what, "trainer": self._trainer})
                    return True
                except _Gone as gone:
                    log.warning("%s; another trainer may do it again", gone)
            elif state == "done" or not wait:
                return False

    def _act(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException:
            with contextlib.suppress(DispatcherError):
                self._post("once-failed", {"name": what, "trainer": self._trainer}, _GOODBYE_SECONDS)
            raise

    def stop(self) -> None:
        """End the loop over shards after the one in hand. May be called by a signal's handler."""
        self._stopping = True

    def close(self) -> None:
        """Say goodbye; a shard still in hand has failed. What cannot be said, the lease's end says."""
        if not self._trainer:
            return
        body: dict[str, Any] = {"trainer": self._trainer}
        if self._hand is not None and not self._hand._settled:
            body["failed"] = [[self._hand.index, self._hand._token, "the trainer ended in the loop's body"]]
        self._hand = None
        if self._renewal is not None:
            self._renewal.stop()
        atexit.unregister(self.close)
        with contextlib.suppress(DispatcherError):
            self._post("leave", body, _GOODBYE_SECONDS)
        self._trainer = ""
        if self._note is not None:
            self._note.unlink(missing_ok=True)
        self._line.close()

    # For everybody ----------------------------------------

    def status(self) -> dict[str, Any]:
        """The leader and its datasets, as `/v1/status` has them."""
        return self._line.ask("GET", "/v1/status")

    def wait_finished(self) -> None:
        """Wait until all passes are over and the last trainer has left."""
        while not self._line.ask("GET", f"/v1/{self.dataset}/finished?wait=4").get("finished"):
            pass

    # Inside ----------------------------------------

    def _next(self, done: list[list[int]]) -> Shard | None:
        """Acknowledge what is done and take the next shard; None at the end."""
        while not self._stopping:
            answer = self._post_as_trainer("next", {"done": done, "wait": _POLL_SECONDS})
            _warn(answer)
            if "shard" in answer:
                shard = Shard(answer["shard"]["shard"], answer["shard"]["name"], answer["shard"]["pass"],
                              answer["shard"]["token"], self)  # fmt: skip
                self._hand = shard
                if not self._stopping:
                    return shard
                done = []
                shard.release()
            if answer.get("over"):
                return None
        if done:
            _warn(self._post("settle", {"done": done, "trainer": self._trainer}))
        return None

    def _settle(self, body: dict[str, Any], shard: Shard, seconds: float | None = None) -> None:
        if self._hand is shard:
            self._hand = None
        _warn(self._post("settle", {**body, "trainer": self._trainer}, seconds))

    def _post(self, verb: str, body: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
        return self._line.ask("POST", f"/v1/{self.dataset}/{verb}", body, seconds)

    def _post_as_trainer(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask as a trainer that the service knows; one that was given up comes as a new one."""
        while True:
            if not self._trainer:
                self._join()
            try:
                return self._post(verb, {**body, "trainer": self._trainer})
            except _Gone:
                log.warning("the dispatcher had given %s up; it joins again", self._trainer)
                self._trainer = ""

    def _join(self) -> None:
        answer = self._post("join", {"name": self._name})
        if self._renewal is not None:
            self._renewal.stop()
        else:
            atexit.register(self.close)
        self._trainer = str(answer["trainer"])
        if self._note is not None:
            self._note.write_text(self._trainer)
        path = f"/v1/{self.dataset}/heartbeat"
        self._renewal = _Renewal(self._addresses, path, self._trainer, float(answer["seconds"]))


def give_back(note: Path, env: Mapping[str, str] = os.environ) -> None:
    """Say goodbye for a trainer that was killed, by the note it left (BIREME_DISPATCHER_NOTE).

    For supervisors that know that the shard in its hand was not to blame: it goes back at once, and no
    failure is counted. What cannot be said, the lease's end says, and counts.
    """
    try:
        trainer = note.read_text()
        note.unlink()
    except FileNotFoundError:
        return
    killed = Dispatcher(env=env, wait_seconds=_GOODBYE_SECONDS)
    killed._trainer = trainer
    killed.close()


def _warn(answer: Mapping[str, Any]) -> None:
    if not all(answer.get("acknowledged", ())):
        log.warning("a shard had been taken back before it was acknowledged: another trainer does it again")


class _Renewal:
    """Keeps a trainer's lease, in a thread and with a connection of its own."""

    def __init__(
        self, addresses: tuple[tuple[str, int], ...], path: str, trainer: str, seconds: float
    ) -> None:
        self._line = _Line(addresses, seconds, seconds / 4)
        self._path = path
        self._trainer = trainer
        self._pause = seconds / 3
        self._over = threading.Event()
        threading.Thread(target=self._run, name="bireme-renewal", daemon=True).start()

    def stop(self) -> None:
        """End it; does not wait for the thread."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._pause):
            try:
                self._line.ask("POST", self._path, {"trainer": self._trainer})
            except Refused:
                return
            except Unavailable as error:
                log.debug("%s", error)
        self._line.close()


class _Line:
    """A connection to the dispatcher that leads, found through any of the addresses; for one thread."""

    def __init__(
        self,
        addresses: tuple[tuple[str, int], ...],
        seconds: float,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        self._addresses = addresses
        self._seconds = seconds
        self._answer_seconds = answer_seconds
        self._turn = random.randrange(len(addresses))
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float | None = None
    ) -> dict[str, Any]:
        """Ask until there is an answer, which may take an election. Raises Unavailable and Refused."""
        deadline = time.monotonic() + (self._seconds if seconds is None else seconds)
        data = None if body is None else json.dumps(body).encode()
        pause, redirects = 0.05, 0
        while True:
            try:
                status, location, answer = self._exchange(method, path, data)
                if status == 200:
                    return answer
                problem = str(answer.get("error") or f"the dispatcher answered with HTTP {status}")
                if status in (400, 404, 409, 410):
                    raise (_Gone if status == 410 else Refused)(problem, status, answer)
                self.close()
                if status == 307 and redirects < 5:
                    redirects += 1
                    self._connect(*_address(location))
                    continue
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                problem = str(error) or type(error).__name__
            redirects = 0
            if time.monotonic() >= deadline:
                where = ",".join(f"{host}:{port}" for host, port in self._addresses)
                raise Unavailable(f"no dispatcher at {where} answered in time: {problem}")
            time.sleep(random.uniform(0.5, 1) * pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def close(self) -> None:
        """End the connection; the next request makes another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self, host: str, port: int) -> http.client.HTTPConnection:
        self._connection = http.client.HTTPConnection(host, port, timeout=self._answer_seconds)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._connection

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, str, dict[str, Any]]:
        connection = self._connection
        if connection is None:
            self._turn = (self._turn + 1) % len(self._addresses)
            connection = self._connect(*self._addresses[self._turn])
        connection.request(method, path, data)
        response = connection.getresponse()
        answer = json.loads(response.read() or b"{}")
        if not isinstance(answer, dict):
            raise ValueError("what answers there is no dispatcher")
        return response.status, response.headers.get("Location", ""), answer


def _patience(env: Mapping[str, str]) -> float:
    said = env.get("BIREME_WAIT_SECONDS") or "600"
    try:
        return float(said)
    except ValueError:
        raise ValueError(f"BIREME_WAIT_SECONDS={said} is not a number of seconds") from None


def _address(location: str) -> tuple[str, int]:
    host, _, port = location.partition("://")[2].partition("/")[0].rpartition(":")
    return host.strip("[]"), int(port)


def _parse(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port[,host:port…]`. Raises ValueError with a sentence."""
    addresses = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        host, _, port = part.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{part!r} is not host:port of a dispatcher (BIREME_DISPATCHER)")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise ValueError("BIREME_DISPATCHER is not set: write host:port of the dispatcher")
    return tuple(addresses)
