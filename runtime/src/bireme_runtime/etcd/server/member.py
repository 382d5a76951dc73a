"""How an etcd member joins its cluster: `python3 -m bireme_runtime.etcd.server.member`, an init container.

Growth is one member at a time, whether a fresh cluster of three starts or one member becomes three: ordinal 0
bootstraps alone, ordinal i is added through whoever answers once i-1 has started. A member that still has its
data just starts. One that comes back empty while the cluster lives takes its old entry out and joins anew.
Where a snapshot has been restored, ordinal 0 starts from that in the place of nothing.
The outcome is etcd's own configuration file, since the etcd image has no shell.

While a member without data waits it says so on etcd's client port, so that ordinal 0, when it has no data
either, can tell a cluster that starts for the first time from one that is alive but does not answer.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bireme_runtime.etcd import client as etcd

# More members than this no etcd should have; names of ordinals up to it are looked up.
MOST_MEMBERS = 9
_WAITING_PATH, _WAITING_ANSWER = "/bireme/member", "waiting without data"
_LOOK_SECONDS = 0.5
_PROGRESS_SECONDS = 10.0


class CannotJoin(Exception):
    """The member cannot start; the message says why and what to do."""


def resolve(host: str) -> bool:
    """Whether the name has an address. Raises OSError when the name service gives no answer either way."""
    try:
        socket.getaddrinfo(host, None)
        return True
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return False
        raise


@dataclass(frozen=True)
class Seat:
    """One member's place: its name and ordinal, what all members share, where its files are.

    `host` gives the host name of an ordinal, and `resolves` whether it has an address. `restored` is a data
    directory that etcdutl made of a snapshot.
    """

    name: str
    ordinal: int
    base: Mapping[str, Any]
    data_dir: Path
    config: Path
    token: str
    host: Callable[[int], str]
    credentials: etcd.Credentials = field(default_factory=etcd.Credentials)
    restored: Path | None = None
    wait_seconds: float = 600.0
    resolves: Callable[[str], bool] = resolve

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Seat:
        """Read the variables of docs/runtime.md. Raises CannotJoin with a sentence."""
        try:
            name, domain = env["POD_NAME"], env["BIREME_ETCD_PEER_DOMAIN"]
            stem, _, ordinal = name.rpartition("-")
            password = env.get("BIREME_ETCD_ROOT_PASSWORD", "")
            files = etcd.Credentials.from_env(env)
            return cls(
                name=name,
                ordinal=int(ordinal),
                base=json.loads(Path(env["BIREME_ETCD_BASE"]).read_text()),
                data_dir=Path(env["BIREME_ETCD_DATA_DIR"]),
                config=Path(env["BIREME_ETCD_CONFIG"]),
                token=f"{stem}.{domain}",
                host=lambda i: f"{stem}-{i}.{domain}",
                credentials=etcd.Credentials(
                    "root" if password else "", password, files.cacert, files.cert, files.key
                ),
                restored=Path(env["BIREME_ETCD_RESTORED"]) if env.get("BIREME_ETCD_RESTORED") else None,
                wait_seconds=float(env.get("BIREME_WAIT_SECONDS", "600")),
            )
        except KeyError as error:
            raise CannotJoin(f"the environment variable {error.args[0]} is missing") from None
        except (OSError, ValueError) as error:
            raise CannotJoin(f"an environment variable is not what it should be: {error}") from None

    def url(self, ordinal: int, kind: str) -> str:
        """The peer or client URL that a member announces; scheme and port are those it listens on."""
        listens = urlsplit(str(self.base[f"listen-{kind}-urls"]).split(",")[0])
        return f"{listens.scheme}://{self.host(ordinal)}:{listens.port}"

    def client(self, ordinals: list[int]) -> etcd.Client:
        """A client of these members."""
        endpoints = etcd.parse_endpoints(",".join(self.url(i, "client") for i in ordinals))
        return etcd.Client(endpoints, self.credentials, timeout=3.0)

    @property
    def has_data(self) -> bool:
        """Whether etcd has ever started on the data directory."""
        return (self.data_dir / "member" / "wal").is_dir()


def prepare(seat: Seat, say: Callable[[str], None] = lambda sentence: None) -> str:
    """Make the member ready to start, write its configuration, and return how it starts.

    That is "restarts", "bootstraps", "starts from the snapshot" or "joins". Waits for others at most
    `wait_seconds`, then raises CannotJoin; run again, it goes on where it was.
    """
    if seat.has_data:
        _write(seat, "existing", {seat.name: seat.url(seat.ordinal, "peer")})
        return "restarts"
    patience = _Patience(seat.wait_seconds, say)
    with _saying_that_it_waits(seat):
        if seat.ordinal == 0 and not _cluster_exists(seat, patience):
            _write(seat, "new", {seat.name: seat.url(0, "peer")})
            if seat.restored is None:
                return "bootstraps"
            _adopt(seat.restored, seat.data_dir)
            return "starts from the snapshot"
        _write(seat, "existing", _join(seat, patience))
    return "joins"


# Is there a cluster? ----------------------------------------


def _cluster_exists(seat: Seat, patience: _Patience) -> bool:
    """Whether ordinal 0, which has no data, must join. It bootstraps only when surely nobody else has any."""
    while True:
        try:
            others = _others(seat)
            silent = [i for i in others if not _waits(seat, i)]
            if not others or not silent:
                return False
            if _answer(seat, silent):
                return True
            hosts = ", ".join(seat.host(i) for i in silent)
            problem = f"{hosts} to answer, which may have the cluster's data"
        except OSError as error:
            problem = f"the name service ({error})"
        patience.wait(
            problem,
            "a new cluster beside theirs would lose it; bring those members up, or, to start from nothing, "
            "delete their pods and claims",
        )


def _others(seat: Seat) -> list[int]:
    """Other ordinals whose names resolve; OSError unless its own does, which proves that names are served."""
    if not seat.resolves(seat.host(seat.ordinal)):
        raise OSError(f"{seat.host(seat.ordinal)} does not resolve yet")
    return [i for i in range(MOST_MEMBERS) if i != seat.ordinal and seat.resolves(seat.host(i))]


def _waits(seat: Seat, ordinal: int) -> bool:
    """Whether that member says that it waits, without data, itself."""
    target = urlsplit(seat.url(ordinal, "client"))
    connection = http.client.HTTPConnection(str(target.hostname), target.port, timeout=2)
    try:
        connection.request("GET", _WAITING_PATH)
        return connection.getresponse().read().decode(errors="replace") == _WAITING_ANSWER
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def _saying_that_it_waits(seat: Seat) -> Iterator[None]:
    """Serve, on the port that etcd will listen on, that this member has no data."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = _WAITING_ANSWER.encode() if self.path == _WAITING_PATH else b""
            self.send_response(200 if body else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listens = urlsplit(str(seat.base["listen-client-urls"]).split(",")[0])
    server = http.server.ThreadingHTTPServer((str(listens.hostname), listens.port or 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


# Joining it ----------------------------------------


def _join(seat: Seat, patience: _Patience) -> dict[str, str]:
    """Register with the cluster and return the members, {name: peer URL}, as etcd wants them."""
    mine = seat.url(seat.ordinal, "peer")
    while True:
        try:
            problem, members = _try_to_join(seat, mine)
        except OSError as error:
            problem, members = f"the name service ({error})", ()
        except (etcd.Unavailable, etcd.Ambiguous, etcd.Refused) as error:
            # Also when adding it was ambiguous: the next look shows whether it is registered.
            problem, members = f"the cluster to take it in ({error})", ()
        if members:
            return {_name(seat, member): member.peer_urls[0] for member in members}
        patience.wait(problem, "look at the logs of the other members")


def _try_to_join(seat: Seat, mine: str) -> tuple[str, tuple[etcd.ClusterMember, ...]]:
    """One attempt: the members with this one among them, or what has to come first."""
    running = [i for i in _others(seat) if not _waits(seat, i)]
    if not running:
        return f"{seat.host(0)} to have an address", ()
    client = seat.client(running)
    members = client.members(by_majority=False)
    entry = next((member for member in members if mine in member.peer_urls), None)
    if entry and not entry.name:
        # Registered before and never started. It may be what a majority lacks, so that none could say this.
        return "", members
    members = client.members()
    entry = next((member for member in members if mine in member.peer_urls), None)
    if entry:
        client.member_remove(entry.id)
        return f"its entry from before the loss of its data, {entry.id:x}, to be removed", ()
    missing = _not_started(seat, members)
    if missing:
        return f"{missing} to start first", ()
    return "", client.member_add(mine)


def _not_started(seat: Seat, members: tuple[etcd.ClusterMember, ...]) -> str:
    """The member that has to start before this one is added, so that a majority always runs."""
    for member in members:
        if not member.name:
            return _name(seat, member)
    previous = seat.url(seat.ordinal - 1, "peer") if seat.ordinal else ""
    if previous and not any(previous in member.peer_urls for member in members):
        return seat.host(seat.ordinal - 1)
    return ""


def _answer(seat: Seat, ordinals: list[int]) -> bool:
    """Whether one of these is an etcd that answers, with or without a majority behind it."""
    try:
        return bool(seat.client(ordinals).members(by_majority=False))
    except etcd.Refused:
        return True
    except etcd.EtcdError:
        return False


def _name(seat: Seat, member: etcd.ClusterMember) -> str:
    """The member's name; one that has not started yet will have that of its pod."""
    if member.name:
        return member.name
    stem = seat.name.rpartition("-")[0]
    for ordinal in range(MOST_MEMBERS):
        if seat.url(ordinal, "peer") in member.peer_urls:
            return f"{stem}-{ordinal}"
    return f"{member.id:x}"


# The configuration ----------------------------------------


def _write(seat: Seat, state: str, members: Mapping[str, str]) -> None:
    config = {
        **seat.base,
        "name": seat.name,
        "data-dir": str(seat.data_dir),
        "advertise-client-urls": seat.url(seat.ordinal, "client"),
        "initial-advertise-peer-urls": seat.url(seat.ordinal, "peer"),
        "initial-cluster": ",".join(f"{name}={url}" for name, url in members.items()),
        "initial-cluster-state": state,
        "initial-cluster-token": seat.token,
    }
    part = seat.config.with_name(seat.config.name + ".part")
    part.write_text(json.dumps(config, indent=2) + "\n")
    part.replace(seat.config)


def _adopt(restored: Path, data_dir: Path) -> None:
    """Copy a data directory that has been made elsewhere; it is there as a whole or not at all."""
    part = data_dir.with_name(data_dir.name + ".part")
    for old in (part, data_dir):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(restored, part)
    part.chmod(0o700)
    part.replace(data_dir)


class _Patience:
    """A bounded wait that says, now and then, what it is for."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._say = say
        self._said: tuple[str, float] = ("", 0.0)

    def wait(self, problem: str, advice: str) -> None:
        """Wait a moment for the problem to go; at the end of patience raise CannotJoin with the advice."""
        now = time.monotonic()
        if now >= self._deadline:
            raise CannotJoin(f"gave up after waiting {self._seconds:.0f} s for {problem}: {advice}")
        if problem != self._said[0] or now - self._said[1] >= _PROGRESS_SECONDS:
            self._said = (problem, now)
            self._say(f"waiting, {self._deadline - now:.0f} s at most, for {problem}")
        time.sleep(min(_LOOK_SECONDS, self._deadline - now))


def main(env: Mapping[str, str] = os.environ) -> int:
    """Prepare this pod's member; the exit code is 1, after a sentence, when it cannot start."""

    def say(sentence: str) -> None:
        print(f"bireme member {time.strftime('%H:%M:%S')}: {sentence}", file=sys.stderr, flush=True)

    try:
        seat = Seat.from_env(env)
        say(f"{seat.name} {prepare(seat, say)}")
    except CannotJoin as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
