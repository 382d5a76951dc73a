"""A replica of the dispatcher as a service: HTTP and JSON around replica.py."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from bireme_runtime.dispatcher.messages import DEFAULT_PORT, spans
from bireme_runtime.dispatcher.service import metrics
from bireme_runtime.dispatcher.service.coordinator import Coordinator
from bireme_runtime.dispatcher.service.keys import DEFAULT_PREFIX, Keys, last_part
from bireme_runtime.dispatcher.service.replica import Call, Item, Replica, Reply, Waiting
from bireme_runtime.dispatcher.service.requests import (
    Answer,
    BadRequest,
    Definition,
    TrainerRequest,
    checked_name,
    checked_names,
    lease_of,
    not_now,
    refusal,
)
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import environment, server
from bireme_runtime.process.errors import SettingError, Unreachable
from bireme_runtime.process.http import Address, fetch, parse_address
from bireme_runtime.process.server import Request, Response

T = TypeVar("T")
LONGEST_WAIT = 20.0
# The limit for an answer of the leader's thread that need not wait; longer than etcd's timeouts together.
_ANSWER_SECONDS = 15.0
_ETCD_SECONDS = 3.0
_SHARDS_AT_ONCE = 10_000
# A trainer has up to three.
_MOST_CONNECTIONS = 20_000
_LEADER_REQUESTS = ("add", "next", "settle", "once", "once-done", "once-failed", "finished", "delete")
_VERBS = frozenset({*_LEADER_REQUESTS, "heartbeat", "progress", "block", "join", "leave"})
_READING_VERBS = frozenset({"progress", "finished"})

log = logging.getLogger("bireme_runtime")


@dataclass(frozen=True)
class ReplicaSettings:
    """The settings of a replica. Times are in seconds."""

    endpoints: str
    prefix: str = DEFAULT_PREFIX
    host: str = ""
    port: int = DEFAULT_PORT
    advertise: str = ""
    leader_seconds: int = 5
    trainer_seconds: int = 12
    token: str = field(default="", repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> ReplicaSettings:
        """Read BIREME_ETCD_ENDPOINTS and BIREME_DISPATCHER_*. Raises SettingError."""
        endpoints = environment.required(env, "BIREME_ETCD_ENDPOINTS", "write host:port of etcd")
        listen = env.get("BIREME_DISPATCHER_LISTEN") or f":{DEFAULT_PORT}"
        host, _, port = listen.rpartition(":")
        if not port.isdigit():
            raise SettingError(f"BIREME_DISPATCHER_LISTEN={listen} is not host:port")
        own = Address(env.get("POD_IP") or socket.gethostname(), int(port))
        return cls(
            endpoints, (env.get("BIREME_DISPATCHER_PREFIX") or DEFAULT_PREFIX).rstrip("/") + "/",
            host.strip("[]"), int(port), env.get("BIREME_DISPATCHER_ADVERTISE") or str(own),
            environment.integer(env, "BIREME_DISPATCHER_LEADER_SECONDS", 5, least=2),
            environment.integer(env, "BIREME_DISPATCHER_TRAINER_SECONDS", 12, least=2),
            env.get("BIREME_RELEASE_TOKEN", ""),
        )  # fmt: skip


class Service:
    """The HTTP service of a replica. All methods except `run` are for the event loop's thread."""

    def __init__(self, client: etcd.Client, settings: ReplicaSettings) -> None:
        self._client = client
        self._settings = settings
        self._replica = Replica(client, settings.prefix, settings.advertise, settings.leader_seconds)
        # Threads for requests to etcd or to the leader, beside the leader's own thread.
        self._pool = ThreadPoolExecutor(8)
        self._requests: Counter[str] = Counter()
        self._answered: list[tuple[asyncio.Future[Answer], Answer]] = []
        self._lock = threading.Lock()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises OSError when the port is in use."""
        self._loop, over, settings = asyncio.get_running_loop(), asyncio.Event(), self._settings
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, over.set)
        listener = server.listen(settings.host, settings.port)
        log.info("at %s:%d, for %s", settings.host, listener.getsockname()[1], settings.endpoints)
        self._replica.start()
        try:
            await server.Server(self.answer, settings.token, _MOST_CONNECTIONS).serve(listener, over)
        finally:
            await self._in_thread(self._replica.stop)
            self._pool.shutdown(wait=False)

    async def answer(self, request: Request, is_connected: Callable[[], bool]) -> Response:
        """The response to one request."""
        try:
            return await self._route(request, is_connected)
        except (BadRequest, ValueError) as error:
            return _response(refusal(400, str(error)))
        except etcd.LeaseLost:
            return _response(refusal(410, "the trainer's lease has ended: join again"))
        except etcd.EtcdError as error:
            return _response(not_now(error))

    async def _route(self, request: Request, is_connected: Callable[[], bool]) -> Response:
        parts = request.path.strip("/").split("/")
        if request.method == "GET" and request.path in ("/healthz", "/readyz"):
            return self._health(request.path)
        if request.method == "GET" and request.path == "/metrics":
            return await self._metrics()
        if request.method == "GET" and request.path == "/v1/status":
            return await self._status(request)
        if len(parts) != 3 or parts[0] != "v1":
            return _response(refusal(404, f"there is no path {request.path}"))
        dataset, verb = checked_name("dataset", parts[1]), parts[2]
        if verb not in (_VERBS if request.method == "POST" else _READING_VERBS):
            return _response(refusal(404, f"there is no request {request.method} {verb}"))
        self._requests[verb] += 1
        body = request.json()
        # Any replica carries these out, because only etcd is involved.
        if verb == "heartbeat":
            lease = lease_of(str(body.get("trainer", "")))
            return Response.of(200, {"seconds": await self._in_thread(self._client.lease_keepalive, lease)})
        if verb == "progress":
            return Response.of(
                200, await self._in_thread(self._progress, Keys(self._settings.prefix, dataset))
            )
        if verb == "block":
            return await self._put_block(dataset, body)
        if not self._replica.leads:
            return self._elsewhere(request)
        if verb == "join":
            return await self._join(dataset, body)
        if verb == "leave":
            return await self._leave(dataset, body)
        # The value is read as text. What is no number is refused, and NaN counts as no wait.
        given = float(str(body.get("wait", request.query.get("wait", 0))))
        wait = max(0.0, min(given, LONGEST_WAIT))
        return _response(await self._ask(TrainerRequest.from_json(verb, dataset, body), wait, is_connected))

    def _elsewhere(self, request: Request) -> Response:
        """Redirect to the leader."""
        leader = self._replica.leader
        if not leader or leader == self._settings.advertise:
            body = {"error": "no leader at the moment: try again"}
            return Response.of(503, body, {"Retry-After": "1"})
        return Response.of(307, {"leader": leader}, {"Location": f"http://{leader}{request.target}"})

    def _health(self, path: str) -> Response:
        well = self._replica.is_alive if path == "/healthz" else bool(self._replica.leader)
        return Response.of(
            200 if well else 503, {"leads": self._replica.leads, "leader": self._replica.leader}
        )

    async def _metrics(self) -> Response:
        text = metrics.text(await self._report(), self._replica.leads, self._replica.terms, self._requests)
        return Response(200, text.encode(), {"Content-Type": metrics.CONTENT_TYPE})

    async def _status(self, request: Request) -> Response:
        report = await self._report()
        if report is not None:
            return Response.of(200, {"leader": self._replica.leader, "datasets": report["datasets"]})
        leader = self._replica.leader
        if request.query.get("relayed") or not leader or leader == self._settings.advertise:
            return _response(refusal(503, "no leader at the moment: try again"))
        return await self._in_thread(_relayed, leader)

    async def _report(self) -> Any:
        """What the leader's thread knows of the datasets; None while another replica leads."""
        if not self._replica.leads:
            return None
        answer = await self._future(partial(Call, Coordinator.report), _ANSWER_SECONDS)
        return answer.body.get("result")

    async def _join(self, dataset: str, body: Mapping[str, Any]) -> Response:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", str(body.get("name") or "trainer"))[:100]
        lease = await self._in_thread(self._client.lease_grant, self._settings.trainer_seconds)
        request = TrainerRequest("join", dataset, f"{name}.{lease:x}", lease=lease)
        answer = await self._ask(request, 0, lambda: True)
        return _response(Answer(answer.status, {**answer.body, "seconds": self._settings.trainer_seconds}))

    async def _leave(self, dataset: str, body: Mapping[str, Any]) -> Response:
        request = TrainerRequest.from_json("leave", dataset, body)
        lease = lease_of(request.trainer)
        answer = await self._ask(request, 0, lambda: True)
        # Others may use the same etcd: only the lease of a trainer is ended.
        if answer.body.get("left"):
            await self._in_thread(self._client.lease_revoke, lease)
        return _response(answer)

    async def _put_block(self, dataset: str, body: Mapping[str, Any]) -> Response:
        digest, number = str(body.get("digest", "")), int(str(body.get("block", -1)))
        if not re.fullmatch(r"[0-9a-f]{8,64}", digest) or not 0 <= number < 10**7:
            raise BadRequest("a block needs its number and the digest of all names")
        names = json.dumps(checked_names(body.get("names")))
        key = Keys(self._settings.prefix, dataset).block(digest, number)
        await self._in_thread(self._client.put, key, names)
        return Response.of(200, {})

    def _progress(self, keys: Keys) -> dict[str, Any]:
        """The pass, and what is done or given up in it, as etcd has it."""
        meta, current = self._client.get(keys.meta), self._client.get(keys.current_pass)
        if meta is None or current is None:
            return {"pass": 0, "over": False, "settled": []}
        record, shards = json.loads(current.value), Definition.from_json(json.loads(meta.value)).shards
        number = int(record["number"])
        if record["over"]:
            return {"pass": number, "over": True, "settled": [[0, shards]]}
        settled = {int(last_part(kv.key)) for kv in self._client.range(keys.failed(number)).keys}
        for first in range(0, shards, _SHARDS_AT_ONCE):
            end = min(first + _SHARDS_AT_ONCE, shards)
            span = keys.done(number, first), keys.done(number, end)
            if self._client.count(*span) == end - first:
                settled.update(range(first, end))
            else:
                marks = self._client.span(*span, keys_only=True)
                settled.update(int(last_part(mark.key)) for mark in marks.keys)
        now = self._client.get(keys.current_pass)
        if now is None or now.mod_revision != current.mod_revision:
            # The marks of a pass that has ended meanwhile go away.
            return self._progress(keys)
        return {"pass": number, "over": bool(record["over"]), "settled": spans(settled)}

    async def _ask(self, request: TrainerRequest, wait: float, is_connected: Callable[[], bool]) -> Answer:
        until = time.monotonic() + wait
        return await self._future(
            lambda reply: Waiting(request, reply, until, is_connected), wait + _ANSWER_SECONDS
        )

    # Threads ----------------------------------------

    async def _in_thread(self, act: Callable[..., T], *arguments: Any) -> T:
        return await self._loop.run_in_executor(self._pool, partial(act, *arguments))

    async def _future(self, item: Callable[[Reply], Item], longest: float) -> Answer:
        """Wait for an answer from the leader's thread. All answers of a batch wake the event loop once."""
        future: asyncio.Future[Answer] = self._loop.create_future()

        def reply(answer: Answer) -> None:
            with self._lock:
                self._answered.append((future, answer))
                is_first = len(self._answered) == 1
            if is_first:
                self._loop.call_soon_threadsafe(self._deliver)

        self._replica.put(item(reply))
        try:
            return await asyncio.wait_for(future, longest)
        except asyncio.TimeoutError:
            return refusal(503, "the leader does not answer at the moment: try again")

    def _deliver(self) -> None:
        with self._lock:
            answered, self._answered = self._answered, []
        for future, answer in answered:
            if not future.done():
                future.set_result(answer)


def _response(answer: Answer) -> Response:
    return Response.of(answer.status, answer.body)


def _relayed(leader: str) -> Response:
    """The leader's status."""
    try:
        reply = fetch(parse_address(leader), "/v1/status?relayed=1", timeout=5)
        return Response(reply.status, reply.body)
    except Unreachable as error:
        return _response(refusal(503, f"the leader does not answer: {error}"))


def serve(env: Mapping[str, str] = os.environ) -> int:
    """Run a replica until SIGTERM. Raises SettingError, or OSError when the port is in use."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="bireme dispatcher: %(message)s")
    # The event loop must not wait long while the leader's thread computes.
    sys.setswitchinterval(0.001)
    settings = ReplicaSettings.from_env(env)
    asyncio.run(Service(etcd.client_from(settings.endpoints, env, _ETCD_SECONDS), settings).run())
    return 0
