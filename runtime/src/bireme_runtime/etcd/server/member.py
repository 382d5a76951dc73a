"""How an etcd member joins its cluster: `python3 -m bireme_runtime.etcd.server.member`, an init container.

A cluster grows by one member at a time, both when a new cluster of three starts and when one member becomes
three: ordinal 0 bootstraps alone, and ordinal i is added through any running member once i-1 has started. A
member that has its data simply starts. A member that lost its data while the cluster runs removes its old
entry and joins again. If a snapshot has been restored, ordinal 0 starts from it instead of from nothing. The
result is etcd's configuration file, because the etcd image has no shell.

While a member without data waits, it reports that on etcd's client port. So ordinal 0, if it has no data
either, can distinguish a cluster that starts for the first time from a running cluster that does not answer.
With claims it waits for all members that the chart has: a pod that has no address yet may have all data.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import environment, http
from bireme_runtime.process.disk import write_whole
from bireme_runtime.process.errors import FAILED, BiremeError, Unreachable, end_on_sigterm
from bireme_runtime.process.log import Say, log_of
from bireme_runtime.process.server import Background, Request, Response
from bireme_runtime.process.waiting import BoundedWait

# No etcd cluster should have more members. The names of all ordinals below this number are looked up.
MOST_MEMBERS = 9
_WAITING_PATH, _WAITING_ANSWER = "/bireme/member", "waiting without data"


class CannotJoin(BiremeError):
    """The member cannot start; the message says why and what to do."""


def resolve(host: str) -> bool:
    """Whether the name has an address. Raises OSError when the name service does not answer."""
    try:
        socket.getaddrinfo(host, None)
        return True
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return False
        raise


def has_data(data_dir: Path) -> bool:
    """Whether etcd has ever started on this directory."""
    return (data_dir / "member" / "wal").is_dir()


@dataclass(frozen=True)
class MemberSettings:
    """One member: its name and ordinal, the configuration that all members share, and its files.

    `host` returns the host name of an ordinal, and `resolves` whether a host name has an address. `restored`
    is a data directory that etcdutl made from a snapshot. So many `replicas` may have data on claims.
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
    replicas: int = 1
    wait_seconds: float = 600.0
    resolves: Callable[[str], bool] = resolve

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> MemberSettings:
        """Read the variables of docs/runtime.md. Raises CannotJoin."""
        try:
            name, domain = env["POD_NAME"], env["BIREME_ETCD_PEER_DOMAIN"]
            stem, _, ordinal = name.rpartition("-")
            password = env.get("BIREME_ETCD_ROOT_PASSWORD", "")
            files = etcd.Credentials.from_env(env)
            base = Path(env["BIREME_ETCD_BASE"])
            replicas = base.with_name("replicas")
            return cls(
                name=name,
                ordinal=int(ordinal),
                base=json.loads(base.read_text()),
                data_dir=Path(env["BIREME_ETCD_DATA_DIR"]),
                config=Path(env["BIREME_ETCD_CONFIG"]),
                token=f"{stem}.{domain}",
                host=lambda i: f"{stem}-{i}.{domain}",
                credentials=etcd.Credentials(
                    "root" if password else "", password, files.cacert, files.cert, files.key
                ),
                restored=Path(env["BIREME_ETCD_RESTORED"]) if env.get("BIREME_ETCD_RESTORED") else None,
                replicas=int(replicas.read_text()) if replicas.exists() else 1,
                wait_seconds=environment.seconds(env, "BIREME_WAIT_SECONDS", 600),
            )
        except KeyError as error:
            raise CannotJoin(f"the environment variable {error.args[0]} is missing") from None
        except (OSError, ValueError) as error:
            raise CannotJoin(f"an environment variable has a value that cannot be used: {error}") from None

    def url(self, ordinal: int, use: str) -> str:
        """The peer or client URL that a member announces; its scheme and port are those it listens on."""
        listens = urlsplit(str(self.base[f"listen-{use}-urls"]).split(",")[0])
        return f"{listens.scheme}://{self.host(ordinal)}:{listens.port}"

    def client(self, ordinals: list[int]) -> etcd.Client:
        """A client of these members."""
        endpoints = etcd.parse_endpoints(",".join(self.url(i, "client") for i in ordinals))
        return etcd.Client(endpoints, self.credentials, timeout=3.0)


def prepare(settings: MemberSettings, say: Say = lambda sentence: None) -> str:
    """Prepare the member's start, write its configuration, and return how it starts.

    That is "restarts", "bootstraps", "starts from the snapshot" or "joins". It waits for other members at
    most `wait_seconds` and then raises CannotJoin. It may be run again and continues where it stopped.
    """
    if has_data(settings.data_dir):
        _write(settings, "existing", {settings.name: settings.url(settings.ordinal, "peer")})
        return "restarts"
    wait = BoundedWait(settings.wait_seconds, say)
    with _reporting_no_data(settings):
        if settings.ordinal == 0 and not _cluster_exists(settings, wait):
            _write(settings, "new", {settings.name: settings.url(0, "peer")})
            if settings.restored is None:
                return "bootstraps"
            _install(settings.restored, settings.data_dir)
            return "starts from the snapshot"
        _write(settings, "existing", _join(settings, wait))
    return "joins"


# Whether a cluster exists ----------------------------------------


def _cluster_exists(settings: MemberSettings, wait: BoundedWait) -> bool:
    """Whether ordinal 0, which has no data, must join.

    Otherwise certainly no other member has data either.
    """
    while True:
        try:
            others = _others(settings)
            silent = [i for i in others if not _waits(settings, i)]
            if silent and _answer(settings, silent):
                return True
            silent += [i for i in range(1, settings.replicas) if i not in others]
            if not silent:
                return False
            hosts = ", ".join(settings.host(i) for i in sorted(silent))
            problem = f"{hosts} to answer, which may have the cluster's data"
        except OSError as error:
            problem = f"the name service ({error})"
        if not wait.a_moment(problem):
            raise CannotJoin(
                f"{wait.in_vain}: a new cluster beside theirs would lose it; bring those members up, or, to "
                "start from nothing, delete their pods and claims"
            )


def _others(settings: MemberSettings) -> list[int]:
    """The other ordinals whose names resolve.

    Raises OSError unless its own name resolves, which shows that the name service works.
    """
    if not settings.resolves(settings.host(settings.ordinal)):
        raise OSError(f"{settings.host(settings.ordinal)} does not resolve yet")
    return [i for i in range(MOST_MEMBERS) if i != settings.ordinal and settings.resolves(settings.host(i))]


def _waits(settings: MemberSettings, ordinal: int) -> bool:
    """Whether that member reports that it has no data and waits."""
    address = http.Address(settings.host(ordinal), urlsplit(settings.url(ordinal, "client")).port or 0)
    try:
        reply = http.fetch(address, _WAITING_PATH, timeout=2)
    except Unreachable:
        return False
    return reply.body.decode(errors="replace") == _WAITING_ANSWER


@contextlib.contextmanager
def _reporting_no_data(settings: MemberSettings) -> Iterator[None]:
    """Report, on the port where etcd will listen, that this member has no data."""

    def answer(request: Request) -> Response:
        return Response(200, _WAITING_ANSWER.encode()) if request.path == _WAITING_PATH else Response(503)

    listens = urlsplit(str(settings.base["listen-client-urls"]).split(",")[0])
    server = Background(answer, str(listens.hostname), listens.port or 0)
    try:
        yield
    finally:
        server.close()


# Joining it ----------------------------------------


def _join(settings: MemberSettings, wait: BoundedWait) -> dict[str, str]:
    """Register with the cluster and return its members for etcd's configuration: {name: peer URL}."""
    mine = settings.url(settings.ordinal, "peer")
    while True:
        try:
            problem, members = _try_to_join(settings, mine)
        except OSError as error:
            problem, members = f"the name service ({error})", ()
        except (etcd.Unavailable, etcd.Ambiguous, etcd.Refused) as error:
            # After an ambiguous request, the next attempt shows whether this member is registered.
            problem, members = f"the cluster to accept it ({error})", ()
        if members:
            return {_name(settings, member): member.peer_urls[0] for member in members}
        if not wait.a_moment(problem):
            raise CannotJoin(f"{wait.in_vain}: look at the logs of the other members")


def _try_to_join(settings: MemberSettings, mine: str) -> tuple[str, tuple[etcd.ClusterMember, ...]]:
    """One attempt: either the members, with this one among them, or what it has to wait for."""
    running = [i for i in _others(settings) if not _waits(settings, i)]
    if not running:
        return f"{settings.host(0)} to have an address", ()
    client = settings.client(running)
    members = client.members(by_majority=False)
    entry = next((member for member in members if mine in member.peer_urls), None)
    if entry and not entry.name:
        # It was registered and never started. A majority may lack only this member, and could then not
        # answer.
        return "", members
    members = client.members()
    entry = next((member for member in members if mine in member.peer_urls), None)
    if entry:
        client.member_remove(entry.id)
        return f"its entry from before the loss of its data, {entry.id:x}, to be removed", ()
    missing = _not_started(settings, members)
    if missing:
        return f"{missing} to start first", ()
    return "", client.member_add(mine)


def _not_started(settings: MemberSettings, members: tuple[etcd.ClusterMember, ...]) -> str:
    """The member that must start before this one is added, so that a majority always runs."""
    for member in members:
        if not member.name:
            return _name(settings, member)
    previous = settings.url(settings.ordinal - 1, "peer") if settings.ordinal else ""
    if previous and not any(previous in member.peer_urls for member in members):
        return settings.host(settings.ordinal - 1)
    return ""


def _answer(settings: MemberSettings, ordinals: list[int]) -> bool:
    """Whether etcd answers on one of these ordinals, with or without a majority."""
    try:
        return bool(settings.client(ordinals).members(by_majority=False))
    except etcd.Refused:
        return True
    except etcd.EtcdError:
        return False


def _name(settings: MemberSettings, member: etcd.ClusterMember) -> str:
    """The member's name; before its first start, the name of its pod, which it will have."""
    if member.name:
        return member.name
    stem = settings.name.rpartition("-")[0]
    for ordinal in range(MOST_MEMBERS):
        if settings.url(ordinal, "peer") in member.peer_urls:
            return f"{stem}-{ordinal}"
    return f"{member.id:x}"


# The configuration ----------------------------------------


def _write(settings: MemberSettings, state: str, members: Mapping[str, str]) -> None:
    config = {
        **settings.base,
        "name": settings.name,
        "data-dir": str(settings.data_dir),
        "advertise-client-urls": settings.url(settings.ordinal, "client"),
        "initial-advertise-peer-urls": settings.url(settings.ordinal, "peer"),
        "initial-cluster": ",".join(f"{name}={url}" for name, url in members.items()),
        "initial-cluster-state": state,
        "initial-cluster-token": settings.token,
    }
    write_whole(settings.config, json.dumps(config, indent=2) + "\n")


def _install(restored: Path, data_dir: Path) -> None:
    """Copy a data directory to its place; it appears there complete or not at all."""
    part = data_dir.with_name(data_dir.name + ".part")
    for old in (part, data_dir):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(restored, part)
    part.chmod(0o700)
    part.replace(data_dir)


def main(env: Mapping[str, str] = os.environ) -> int:
    """Prepare this pod's member; returns the exit code."""
    say = log_of("member")
    try:
        settings = MemberSettings.from_env(env)
        say(f"{settings.name} {prepare(settings, say)}")
    except CannotJoin as error:
        say(str(error))
        return FAILED
    return 0


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
