"""The network and the etcd of the simulation: the edge at which the real client sends requests.

The model of etcd keeps what the protocol relies on: one order of all writes, revisions, leases that end no
earlier than granted, watches from a revision on, compaction. Its clock runs a little fast or slow, too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.runtime.simulation.scheduler import Machine, Scheduler

Body = dict[str, Any]


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@dataclass
class Key:
    """A key's value, revisions and lease."""

    value: str
    create: int
    mod: int
    lease: int

    def wire(self, key: str) -> Body:
        return {
            "key": _b64(key), "value": _b64(self.value), "create_revision": str(self.create),
            "mod_revision": str(self.mod), "lease": str(self.lease),
        }  # fmt: skip


@dataclass
class Lease:
    """Seconds to live, and until when by etcd's own clock."""

    ttl: int
    deadline: float


class Refusal(Exception):
    """An error that etcd answers."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Watching:
    """One watch of a stream: a span of keys, and from which revision on it has to be told."""

    def __init__(self, request: Body, stream: Socket, number: int) -> None:
        self.first, self.end = _span(request)
        self.next = int(request.get("start_revision", 0))
        self.no_puts = "NOPUT" in request.get("filters", ())
        self.with_previous = bool(request.get("prev_kv"))
        self.stream, self.number = stream, number


def _span(request: Body) -> tuple[str, str]:
    first = _text(request["key"])
    return first, _text(request["range_end"]) if request.get("range_end") else first + "\0"


class Etcd:
    """One etcd, behind any number of endpoints."""

    def __init__(self, sim: Scheduler, cluster: int = 1) -> None:
        self._sim = sim
        self.cluster = cluster
        self._rate = sim.random.uniform(0.99, 1.01)
        self.up = True
        self.on_write: Callable[[Etcd, str, str], None] = lambda etcd, key, value: None
        self.writes = 0
        self.lose_data()
        sim.after(0.5, self._expire)

    def lose_data(self) -> None:
        self.revision, self.compacted = 1, 0
        self.keys: dict[str, Key] = {}
        self.leases: dict[int, Lease] = {}
        # (revision, key, its new state or None, its state before)
        self.history: list[tuple[int, str, Key | None, Key | None]] = []
        self.watches: list[Watching] = []

    def copied(self) -> tuple[int, int, dict[str, Key], dict[int, int], list[Any]]:
        """The data as a snapshot keeps them: leases without what is left of them."""
        ttls = {number: lease.ttl for number, lease in self.leases.items()}
        return self.revision, self.compacted, dict(self.keys), ttls, list(self.history)

    def restore(self, copy: tuple[int, int, dict[str, Key], dict[int, int], list[Any]], more: int) -> None:
        """Have these data again, and so many revisions more, as `etcdutl --bump-revision` does."""
        self.revision, self.compacted, self.keys, ttls, self.history = copy[0] + more, *copy[1:]
        # Copies: the snapshot may be restored again.
        self.keys, self.history = dict(self.keys), list(self.history)
        self.leases = {number: Lease(ttl, 0.0) for number, ttl in ttls.items()}
        if more:
            self.compact()

    @property
    def header(self) -> Body:
        return {"cluster_id": str(self.cluster), "revision": str(self.revision)}

    def _clock(self) -> float:
        return self._sim.now * self._rate

    def start(self) -> None:
        self.up = True
        for lease in self.leases.values():
            # A new leader extends all leases.
            lease.deadline = self._clock() + lease.ttl

    def compact(self) -> None:
        self.compacted = self.revision
        self.history = []

    def _expire(self) -> None:
        if self.up:
            for number in [n for n, lease in self.leases.items() if lease.deadline < self._clock()]:
                self._revoke(number)
        self._sim.after(0.5, self._expire)

    def _revoke(self, number: int) -> None:
        del self.leases[number]
        mine = [key for key, kv in self.keys.items() if kv.lease == number]
        if mine:
            self.revision += 1
        for key in sorted(mine):
            self._change(key, None)
        self._tell()

    def _change(self, key: str, state: Key | None) -> None:
        before = self.keys.pop(key, None)
        if state is not None:
            self.keys[key] = state
        self.history.append((self.revision, key, state, before))

    # Requests ----------------------------------------

    def answer(self, path: str, body: Body) -> tuple[int, Body]:
        handlers = {
            "/v3/kv/range": self._range, "/v3/kv/txn": self._txn, "/v3/kv/put": self._put,
            "/v3/lease/grant": self._grant, "/v3/lease/keepalive": self._keepalive,
            "/v3/lease/revoke": self._revoke_lease,
        }  # fmt: skip
        try:
            answer = handlers[path](body)
        except Refusal as refusal:
            return 400, {"error": str(refusal), "code": refusal.code, "message": str(refusal)}
        self._tell()
        return 200, {"header": self.header, **answer}

    def _range(self, body: Body) -> Body:
        first, end = _span(body)
        names = sorted(name for name in self.keys if first <= name < end)
        if body.get("sort_target") == "CREATE":
            names.sort(key=lambda name: self.keys[name].create)
        limit = int(body.get("limit", 0)) or len(names)
        kvs = [] if body.get("count_only") else [self.keys[name].wire(name) for name in names[:limit]]
        if body.get("keys_only"):
            kvs = [{**kv, "value": ""} for kv in kvs]
        return {"kvs": kvs, "count": str(len(names)), "more": limit < len(names)}

    def _txn(self, body: Body) -> Body:
        succeeded = all(self._holds(each) for each in body.get("compare", ()))
        operations = body.get("success" if succeeded else "failure", ())
        puts = [each["request_put"] for each in operations if "request_put" in each]
        for put in puts:
            self._check_lease(put)
        if puts:
            self.revision += 1
        answers: list[Body] = []
        for each in operations:
            if "request_put" in each:
                self._write(each["request_put"])
                answers.append({"response_put": {}})
            elif "request_range" in each:
                answers.append({"response_range": self._range(each["request_range"])})
            else:
                raise AssertionError(each)
        return {"succeeded": succeeded, "responses": answers}

    def _holds(self, compare: Body) -> bool:
        first, end = _span(compare)
        spans = "range_end" in compare
        states = [kv for name, kv in self.keys.items() if first <= name < end]
        if not states and not spans:
            states = [Key("", 0, 0, 0)]
        field, target = (
            ("mod_revision", "mod") if compare["target"] == "MOD" else ("create_revision", "create")
        )
        wanted = int(compare[field])
        if compare["result"] == "LESS":
            return all(getattr(kv, target) < wanted for kv in states)
        return all(getattr(kv, target) == wanted for kv in states)

    def _put(self, body: Body) -> Body:
        self._check_lease(body)
        self.revision += 1
        self._write(body)
        return {}

    def _check_lease(self, put: Body) -> None:
        lease = int(put.get("lease", 0))
        if lease and lease not in self.leases:
            raise Refusal(5, "etcdserver: requested lease not found")

    def _write(self, put: Body) -> None:
        key, value = _text(put["key"]), _text(put["value"])
        before = self.keys.get(key)
        create = before.create if before else self.revision
        self._change(key, Key(value, create, self.revision, int(put.get("lease", 0))))
        self.writes += 1
        self.on_write(self, key, value)

    def _grant(self, body: Body) -> Body:
        number, ttl = int(body["ID"]), int(body["TTL"])
        if number in self.leases:
            raise Refusal(9, "etcdserver: lease already exists")
        self.leases[number] = Lease(ttl, self._clock() + ttl)
        return {"ID": str(number), "TTL": str(ttl)}

    def _keepalive(self, body: Body) -> Body:
        lease = self.leases.get(int(body["ID"]))
        if lease:
            lease.deadline = self._clock() + lease.ttl
        result = {"ID": body["ID"], **({"TTL": str(lease.ttl)} if lease else {})}
        return {"result": {"header": self.header, **result}}

    def _revoke_lease(self, body: Body) -> Body:
        if int(body["ID"]) not in self.leases:
            raise Refusal(5, "etcdserver: requested lease not found")
        self._revoke(int(body["ID"]))
        return {}

    # Watches ----------------------------------------

    def watch(self, requests: list[Body], stream: Socket) -> None:
        for number, request in enumerate(requests, 1):
            create = request["create_request"]
            watch = Watching(create, stream, int(create.get("watch_id", 0) or 0))
            header = {"header": self.header, "watch_id": str(watch.number)}
            stream.tell({"result": {**header, "created": True}})
            if 0 < watch.next <= self.compacted:
                stream.tell({"result": {**header, "canceled": True, "compact_revision": str(self.compacted)}})
                continue
            assert number < 9
            self.watches.append(watch)
        self._tell()

    def _tell(self) -> None:
        self.watches = [watch for watch in self.watches if not watch.stream.closed]
        for watch in self.watches:
            batches: dict[int, list[Body]] = {}
            for revision, key, state, before in self.history:
                if revision < watch.next or not watch.first <= key < watch.end:
                    continue
                if state is not None and watch.no_puts:
                    continue
                event: Body = {"kv": state.wire(key)} if state else {
                    "type": "DELETE", "kv": {"key": _b64(key), "mod_revision": str(revision)},
                }  # fmt: skip
                if before and watch.with_previous:
                    event["prev_kv"] = before.wire(key)
                batches.setdefault(revision, []).append(event)
            watch.next = max(watch.next, self.revision + 1)
            for events in batches.values():
                header = {"header": self.header, "watch_id": str(watch.number)}
                watch.stream.tell({"result": {**header, "events": events}})


class Link:
    """What lies between a machine and etcd. While it is cut, what was sent arrives late or never.

    `slow`: seconds that each message needs more. `etcd`: where etcd's name leads from here.
    """

    def __init__(self, machine: Machine, etcd: Etcd) -> None:
        self.machine = machine
        self.etcd = etcd
        self.slow = 0.0
        self.cut = False
        self.answers_lost = False
        self.held: list[Callable[[], None]] = []


class Network:
    """Connections from machines to etcd."""

    def __init__(self, sim: Scheduler, etcd: Etcd) -> None:
        self.sim, self.etcd = sim, etcd
        self.links: dict[str, Link] = {}
        self._sockets: list[Socket] = []

    def link(self, machine: Machine) -> Link:
        return self.links.setdefault(machine.name, Link(machine, self.etcd))

    def delay(self, link: Link) -> float:
        return self.sim.random.uniform(0.0002, 0.004) + link.slow * self.sim.random.uniform(0.3, 0.7)

    def heal(self, link: Link) -> None:
        link.cut = link.answers_lost = False
        held, link.held = link.held, []
        for each in held:
            self.sim.after(self.delay(link), each)

    def lead(self, link: Link, etcd: Etcd) -> None:
        """Let etcd's name lead there from this machine."""
        link.etcd = etcd
        self._break(lambda sock: sock.link is link)

    def stop_etcd(self) -> None:
        self.etcd.up = False
        self._break(lambda sock: sock.etcd is self.etcd)
        self.etcd.watches = []

    def _break(self, which: Callable[[Socket], bool]) -> None:
        for each in [each for each in self._sockets if which(each)]:
            each.fail()
            self._sockets.remove(each)

    def connect(self, address: object, timeout: float, tls: object = None) -> Connection:
        """What stands for bireme_runtime.process.http.connect."""
        link = self.link(self.sim.thread().process.machine)
        if link.cut:
            self.sim.sleep(timeout)
            raise TimeoutError("timed out")
        self.sim.sleep(self.delay(link))
        if not link.etcd.up:
            raise ConnectionRefusedError("connection refused")
        connection = Connection(self, link)
        # As after a real connect. Without it an answer that is lost while a watch opens is awaited for ever.
        connection.sock.settimeout(timeout)
        self._sockets = [each for each in self._sockets if not each.closed]
        self._sockets.append(connection.sock)
        return connection


class Socket:
    """One connection: the answers that have arrived, in order."""

    def __init__(self, network: Network, link: Link) -> None:
        self._network, self.link, self.etcd = network, link, link.etcd
        self.timeout: float | None = None
        self.closed = self.broken = False
        self.arrived: list[bytes] = []
        self.arrived_all = True
        self._last = 0.0
        self._waiting: list[Any] = []

    def settimeout(self, seconds: float | None) -> None:
        self.timeout = seconds

    def shutdown(self, how: int) -> None:
        self.closed = True
        self.wake()

    def close(self) -> None:
        self.closed = True
        self.wake()

    def fail(self) -> None:
        self.broken = True
        self.wake()

    def wake(self) -> None:
        for thread in self._waiting:
            self._network.sim.at(self._network.sim.now, thread.resume)

    def tell(self, message: Body, status: int = 200) -> None:
        """Called by etcd: send this line, which arrives after those before it."""
        raw = json.dumps({**message, "_status": status}).encode() + b"\n"
        sim = self._network.sim

        def arrive() -> None:
            if self.closed or self.broken:
                return
            if self.link.answers_lost:
                # What comes later on the same connection cannot arrive without it.
                sim.after(30.0, self.fail)
                self.arrived_all = False
            if not self.arrived_all:
                return
            if self.link.cut:
                self.link.held.append(arrive)
                return
            self.arrived.append(raw)
            self.wake()

        self._last = max(self._last + 1e-6, sim.now + self._network.delay(self.link))
        sim.at(self._last, arrive)

    def receive(self) -> bytes:
        """The next line; blocks as a socket does."""
        sim = self._network.sim
        me = sim.thread()
        self._waiting.append(me)
        try:
            ready = sim.wait(lambda: bool(self.arrived) or self.closed or self.broken, self.timeout)
        finally:
            self._waiting.remove(me)
        if self.arrived and not self.closed:
            return self.arrived.pop(0)
        if not ready:
            raise TimeoutError("timed out")
        if self.broken:
            raise ConnectionResetError("connection reset")
        return b""

    @property
    def readable(self) -> bool:
        return bool(self.arrived) or self.broken


class Connection:
    """What the client uses of http.client.HTTPConnection."""

    def __init__(self, network: Network, link: Link) -> None:
        self._network, self._link = network, link
        self.sock = Socket(network, link)

    def request(self, method: str, path: str, body: str, headers: object = None) -> None:
        sock, network = self.sock, self._network
        if sock.broken or sock.closed:
            raise ConnectionResetError("connection reset")
        bodies = [json.loads(line) for line in body.splitlines()]

        def arrive() -> None:
            if self._link.cut:
                # What was sent stays in the kernel, which may deliver it later, or the pod is gone by then.
                if network.sim.random.random() < 0.7:
                    self._link.held.append(arrive)
                return
            if not sock.etcd.up or sock.broken:
                return
            if path == "/v3/watch":
                sock.etcd.watch(bodies, sock)
            else:
                status, answer = sock.etcd.answer(path, bodies[0])
                sock.tell(answer, status)

        network.sim.after(network.delay(self._link), arrive)

    def getresponse(self) -> Response:
        return Response(self.sock, self.sock.receive())

    def close(self) -> None:
        self.sock.close()


class Response:
    """What the client uses of http.client.HTTPResponse."""

    def __init__(self, sock: Socket, first: bytes) -> None:
        if not first:
            raise ConnectionResetError("connection closed")
        self._sock, self._first = sock, first
        self.status = int(json.loads(first)["_status"])
        self.will_close = False

    def read(self) -> bytes:
        return self._first

    def readline(self) -> bytes:
        first, self._first = self._first, b""
        return first or self._sock.receive()
