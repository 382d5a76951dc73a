"""The torchrun rendezvous backend `bireme-etcd`: torch's interface to membership.py, for torch 2.1 and newer.

torchrun finds it by the entry point `torchrun.handlers` (torch 2.6 and newer), or launch.py registers it. It
reads PET_RDZV_ENDPOINT (host:port[,host:port…]), PET_RDZV_CONF (torch's names and `etcd_prefix`, `protocol`,
`cacert`, `cert`, `key`), the BIREME_ETCD_* variables of docs/runtime.md, JOB_COMPLETION_INDEX and USE_LIBUV.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from bireme_runtime.elastic import fence, progress
from bireme_runtime.elastic.rendezvous import membership, rules, topology
from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import environment
from bireme_runtime.process.errors import Unreachable
from bireme_runtime.process.http import Address
from bireme_runtime.process.threads import in_thread

BACKEND = "bireme-etcd"
_ATTEMPT_SECONDS = 5.0
# After so many seconds without an answer rank 0 counts as not reached.
_REACH_SECONDS = 15.0
# How often is seen, while a store does not answer, whether its round is over.
_ANSWER_SECONDS = 0.2
# The same for a connection to it: when probes begin, how often they come and how many are lost.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_NO_NETWORK = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)

log = logging.getLogger("bireme_runtime")

Answer = TypeVar("Answer")


def torchrun_handler() -> Callable[[Any], Any]:
    """The entry point: returns the function that makes a handler from RendezvousParameters."""
    return create_handler


def create_handler(params: Any) -> Any:
    """Make the handler of one agent. Raises ValueError when a parameter cannot be used."""
    settings = rules.RunSettings.from_config(params.run_id, params.min_nodes, params.max_nodes, params.config)
    member, client = new_member(settings, params.endpoint, params.config, str(params.get("local_addr") or ""))
    return _handler_class()(member, client)


def new_member(
    settings: rules.RunSettings, endpoint: str, config: Mapping[str, Any], address: str = ""
) -> tuple[membership.Rendezvous, etcd.Client]:
    """The member that an agent is, as its environment says, and the client that it shares."""
    settings = replace(
        settings,
        lock=os.environ.get("BIREME_LOCK", ""),
        first_nodes=first_workers(os.environ),
        unit=environment.integer(os.environ, "BIREME_WORKERS_PER_UNIT", 1),
    )
    client = etcd.client_from(endpoint, os.environ, settings.heartbeat_timeout, config)
    client.expect(settings.first_nodes)
    address = address or own_address(client.endpoints[0].address)
    base = os.environ.get("BIREME_MEMBER") or membership.new_base(socket.gethostname())
    slot = environment.integer(os.environ, "JOB_COMPLETION_INDEX", rules.NO_SLOT)
    identity = membership.Identity(base, slot, address, topology.place_of(os.environ))
    board = fence.Board.at(os.environ[fence.BOARD]) if fence.BOARD in os.environ else None
    moment = progress.Moment.from_env(os.environ)
    wanted = functools.partial(wanted_workers, os.environ)
    return membership.Rendezvous(client, settings, identity, board, moment.is_now, reaches, wanted), client


def first_workers(env: Mapping[str, str]) -> int:
    """How many workers the first round waits for: the number in the file BIREME_WORKERS_FILE; 0: unknown."""
    try:
        with open(env["BIREME_WORKERS_FILE"], encoding="utf-8") as file:
            return int(file.read())
    except (KeyError, OSError, ValueError):
        return 0


def wanted_workers(env: Mapping[str, str]) -> int:
    """How many workers train at most, because the others are spares (BIREME_SPARES); 0: no such limit."""
    return first_workers(env) if environment.integer(env, "BIREME_SPARES", 0) else 0


def own_address(peer: Address) -> str:
    """The address of this host on the route to the peer; sends nothing."""
    try:
        family, sort, _, _, target = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, sort) as sock:
            sock.connect(target)
            return str(sock.getsockname()[0])
    except OSError:
        return socket.getfqdn()


@functools.lru_cache(maxsize=None)  # noqa: UP033
def _handler_class() -> Any:
    """The handler's class, whose base class is in torch."""
    api = importlib.import_module("torch.distributed.elastic.rendezvous.api")

    class EtcdV3RendezvousHandler(api.RendezvousHandler):  # type: ignore[name-defined,misc]
        """One agent's side of the rendezvous.

        Its `shutdown` revokes its own lease and closes nothing for others. launch.py asks its `member`.
        """

        def __init__(self, member: membership.Rendezvous, client: etcd.Client) -> None:
            self.member = member
            self._client = client
            self._store: Any = None
            self._tether = Tether()
            self._world: membership.World | None = None

        def get_backend(self) -> str:
            return BACKEND

        @property
        def use_agent_store(self) -> bool:
            # The training processes open their own store, which ends with them and not with an agent.
            return False

        def get_run_id(self) -> str:
            return self.member.settings.run_id

        def next_rendezvous(self) -> Any:
            try:
                return self._next_world()
            except membership.RunOver as error:
                raise api.RendezvousClosedError(str(error)) from error
            except membership.JoinTimeout as error:
                raise api.RendezvousTimeoutError(str(error)) from error
            except (Unreachable, etcd.EtcdError) as error:
                raise api.RendezvousConnectionError(str(error)) from error

        def _next_world(self) -> Any:
            while True:
                world = self.member.join()
                opened = _open_store(self.member, world)
                if opened is None:
                    log.info("round %d lost a member before all had met", world.number)
                    continue
                self._store, master_addr, master_port = opened
                self._world = world
                self._tether.close()
                if world.rank:
                    self._tether = Tether(master_addr, self._store.port)
                # torch starts the training processes with this process's environment.
                os.environ.update(self.member.token(world))
                if not hasattr(api, "RendezvousInfo"):
                    return self._store, world.rank, world.size
                bootstrap = api.RendezvousStoreInfo(master_addr, master_port)
                return api.RendezvousInfo(self._store, world.rank, world.size, bootstrap)

        def num_nodes_waiting(self) -> int:
            if self._world and self._tether.lost():
                self.member.unreached(self._world)
            return self.member.waiting()

        def is_closed(self) -> bool:
            return bool(self.member.outcome)

        def set_closed(self) -> None:
            membership.end_run(self._client, self.member.settings.root, rules.CLOSED)

        def shutdown(self) -> bool:
            self.member.leave()
            return True

    return EtcdV3RendezvousHandler


class Tether:
    """An idle connection to rank 0, which breaks when the network to it does. Without a host there is none.

    etcd does not show that, and processes would wait for the time-out of their collective operations.
    """

    def __init__(self, host: str = "", port: int = 0) -> None:
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._socket = socket.create_connection((host, port), _ATTEMPT_SECONDS) if host else None
        if self._socket:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def closed(self) -> bool:
        """Whether there is none, or none any more."""
        return self._socket is None

    def lost(self) -> bool:
        """Whether rank 0 does not answer any more, for the first time. A store that has ended does."""
        try:
            if self._socket:
                self._socket.recv(1)
                self.close()
        except BlockingIOError:
            pass
        except OSError as error:
            self.close()
            return error.errno in _NO_NETWORK
        return False

    def close(self) -> None:
        """End it."""
        if self._socket:
            self._socket.close()
            self._socket = None


def reaches(address: str) -> bool:
    """Whether the machine of this store answers; the store itself may have ended."""
    try:
        host, port = json.loads(address)[:2]
        socket.create_connection((host, port), _ATTEMPT_SECONDS).close()
    except OSError as error:
        return not (isinstance(error, socket.timeout) or error.errno in _NO_NETWORK)
    return True


def _open_store(member: membership.Rendezvous, world: membership.World) -> tuple[Any, str, int] | None:
    """Open the store of the round and wait there for all members. None when the round broke meanwhile.

    Returns the store, and the address and port at which rank 0 of the training processes will open its own.
    """
    if world.rank == 0:
        host = member.identity.address
        store = tcp_store(host, 0, is_master=True, timeout=timedelta(seconds=member.settings.read_timeout))
        master_port = free_port()
        if not member.publish_store(world, json.dumps([host, store.port, master_port])):
            return None
    else:
        published = member.store_of(world)
        if published is None:
            return None
        host, port, master_port = json.loads(published)
        store = _reach_store(member, world, host, port)
    if store is None or not _all_are_here(store, member, world):
        return None
    return store, host, master_port


def _reach_store(member: membership.Rendezvous, world: membership.World, host: str, port: int) -> Any:
    deadline, answered = time.monotonic() + member.settings.read_timeout, time.monotonic()
    while True:
        if reaches(json.dumps([host, port])):
            answered = time.monotonic()
        elif time.monotonic() - answered > _REACH_SECONDS:
            member.unreached(world)
        if member.broken(world):
            return None
        timeout = timedelta(seconds=_ATTEMPT_SECONDS)
        connect = functools.partial(tcp_store, host, port, is_master=False, timeout=timeout)
        try:
            store = unless(lambda: member.broken(world) or time.monotonic() >= deadline, connect)
            store.set_timeout(timedelta(seconds=member.settings.read_timeout))
            return store
        except (RuntimeError, OSError, ValueError, Unreachable) as error:
            if member.broken(world):
                return None
            if time.monotonic() >= deadline:
                where = f"the store of round {world.number} at {host}:{port}"
                raise Unreachable(f"{where} cannot be reached: {error}") from error


def _all_are_here(store: Any, member: membership.Rendezvous, world: membership.World) -> bool:
    """Wait until all members have reached the store, so that none blocks there later for a lost one."""

    def over() -> bool:
        return member.broken(world)

    seconds = member.settings.join_timeout
    deadline = time.monotonic() + seconds
    try:
        unless(over, lambda: together(store, "bireme/here", 1, world.size, over, seconds))
        return True
    except (RuntimeError, OSError, Unreachable) as error:
        if over() or time.monotonic() < deadline:
            return False
        missing = f"not all {world.size} members of round {world.number} reached its store"
        raise membership.JoinTimeout(missing) from error


def together(store: Any, name: str, mine: int, all: int, over: Callable[[], bool], seconds: float) -> None:
    """Wait until ``all`` have come here, of which this process counts as ``mine``. Raises as `wait_for`."""
    if store.add(name, mine) == all:
        store.set(f"{name}/all", "1")
    wait_for(store, f"{name}/all", over, seconds)


def wait_for(store: Any, key: str, over: Callable[[], bool], seconds: float) -> None:
    """Wait until a store has this key. Raises RuntimeError after so long, and when the round is ``over``."""
    deadline = time.monotonic() + seconds
    while not over() and time.monotonic() < deadline:
        try:
            store.wait([key], timedelta(seconds=1))
            return
        except (RuntimeError, OSError):
            # Without its server a store fails at once, before the loss of rank 0 is known.
            time.sleep(0.05)
    raise RuntimeError("a worker was lost")


def unless(over: Callable[[], bool], ask: Callable[[], Answer]) -> Answer:
    """What a store answers. Raises Unreachable when it has not answered and ``over`` is true.

    torch waits for ever for a store that is silent, because the process on rank 0 is paused, say. So a
    thread waits, and is left behind.
    """
    answer = in_thread(ask, "bireme-store")
    while not wait([answer], _ANSWER_SECONDS).done:
        if over():
            raise Unreachable("the store of the round, which is on rank 0, does not answer")
    return answer.result()


def tcp_store(host: str, port: int, is_master: bool, timeout: timedelta) -> Any:
    """A TCPStore, with a transport that this build of torch has and that USE_LIBUV allows."""
    make = importlib.import_module("torch.distributed").TCPStore
    arguments: dict[str, Any] = {"is_master": is_master, "timeout": timeout, "wait_for_workers": False}
    if os.environ.get("USE_LIBUV") == "0" and takes_use_libuv():
        arguments["use_libuv"] = False
    try:
        return make(host, port, **arguments)
    except RuntimeError as error:
        if "libuv" not in str(error):
            raise
        return make(host, port, use_libuv=False, **arguments)


def takes_use_libuv() -> bool:
    """Whether TCPStore of this torch has the argument `use_libuv`."""
    store = importlib.import_module("torch.distributed").TCPStore
    return "use_libuv" in (store.__init__.__doc__ or "")


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])
