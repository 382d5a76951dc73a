"""ssh between the pods of one MPI job. All pods share one key, which is both the user's and the host's.

So a pod may log in to another if both have the release's key, and each can verify the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bireme_runtime.dispatcher.notes import VARIABLE
from bireme_runtime.process import children, environment
from bireme_runtime.process.errors import CONFIG, Stop

PORT = 2222
_SERVER = """\
Port {port}
HostKey {folder}/key
AuthorizedKeysFile {folder}/authorized_keys
ForceCommand /bin/sh {folder}/session
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
LogLevel {level}
MaxStartups 1000
LoginGraceTime 0
UseDNS no
ClientAliveInterval 15
ClientAliveCountMax 4
"""
_CLIENT = """\
Host {hosts}
  Port {port}
  User {user}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  BatchMode yes
  HostKeyAlias bireme
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  ConnectTimeout 10
  ConnectionAttempts 10
  ServerAliveInterval 15
  ServerAliveCountMax 4
  LogLevel ERROR
"""
# The script of every login: it runs the command with this pod's environment, which sshd would drop.
_SESSION = """\
. {environment}
export BIREME_LOGIN=$$
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""
_PROGRAM = """\
#!/bin/sh
exec {ssh} {options} "$@"
"""
_MARK = "# The workers of this job, by bireme."
# A lost machine closes no connection; these options detect the loss within half a minute.
_KEEPALIVE = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 10,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 4,
}
# Variables of one process or login, not of the pod.
_NOT_FOR_SESSIONS = frozenset({"_", "LOGNAME", "OLDPWD", "PWD", "SHELL", "SHLVL", "USER"})


@dataclass(frozen=True)
class Ssh:
    """The files of ssh in ``folder``, the port of sshd and the path of its program."""

    folder: Path
    port: int
    server: str

    @classmethod
    def prepare(cls, env: Mapping[str, str]) -> Ssh:
        """Write the key and the configuration of this pod. Raises Stop when something is missing."""
        folder = _folder_of(env)
        port = environment.integer(env, "BIREME_MPI_PORT", PORT)
        user = _user()
        server = _program("sshd", "openssh-server")
        client = _program("ssh", "openssh-client")
        _copy_key(_key_of(env), folder)
        values = {"folder": folder, "port": port, "user": user, "level": env.get("BIREME_SSHD_LOG", "FATAL")}
        _write(folder / "sshd_config", _SERVER.format(**values))
        _write(folder / "ssh_config", _CLIENT.format(hosts="*", **values))
        _write_for_user(_CLIENT.format(hosts=_patterns(env.get("BIREME_MPI_HOSTS", "")), **values))
        ssh = cls(folder, port, server)
        _write(ssh.environment, _exports(env))
        _write(folder / "session", _SESSION.format(environment=ssh.environment))
        _write(
            ssh.programs / "ssh",
            _PROGRAM.format(ssh=client, options=" ".join(ssh.client_options)),
            mode=0o700,
        )
        return ssh

    @property
    def environment(self) -> Path:
        """A shell script that sets the environment of this pod."""
        return self.folder / "environment"

    @property
    def programs(self) -> Path:
        """A folder for PATH whose ssh finds key and port, even where the user's home is read-only."""
        return self.folder / "bin"

    @property
    def client_options(self) -> tuple[str, ...]:
        """Arguments with which ssh, started by any MPI, finds its key and the other pods' port."""
        return ("-F", str(self.folder / "ssh_config"))

    def serve(self) -> int:
        """Start sshd and return its process id."""
        if os.geteuid() == 0:
            # A package's service script would make it, and no such script runs in a container.
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
        return children.start([self.server, "-D", "-e", "-f", str(self.folder / "sshd_config")], os.environ)


def greet(host: str, port: int, seconds: float = 2.0) -> socket.socket | None:
    """A connection to the sshd at the address, or None. It breaks when that pod ends."""
    connection = None
    try:
        connection = socket.create_connection((host, port), timeout=seconds)
        if connection.recv(4) == b"SSH-":
            for option, value in _KEEPALIVE.items():
                connection.setsockopt(*option, value)
            return connection
    except OSError:
        pass
    if connection is not None:
        connection.close()
    return None


def is_broken(connection: socket.socket) -> bool:
    """Whether the other end has closed the connection. Its greeting is discarded."""
    connection.setblocking(False)
    try:
        return any(not connection.recv(1024) for _ in range(2))
    except BlockingIOError:
        return False
    except OSError:
        return True


def _user() -> str:
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise Stop(
            CONFIG,
            f"the image has no user with id {uid}, which ssh needs: set podSecurityContext.runAsUser to one "
            "that it has, or add one to the image (useradd)",
        ) from None
    if entry.pw_shell and not os.access(entry.pw_shell, os.X_OK):
        raise Stop(CONFIG, f"user {entry.pw_name} has the shell {entry.pw_shell}, which the image lacks")
    if Path(entry.pw_shell).name in ("nologin", "false"):
        raise Stop(
            CONFIG,
            f"user {entry.pw_name} has the shell {entry.pw_shell}: ssh cannot log in; choose another shell",
        )
    return entry.pw_name


def _patterns(hosts: str) -> str:
    """Patterns of ssh for the names of the workers, short and long."""
    short = hosts.partition(".")[0].replace("{}", "*")
    return f"{short} {short}.*" if short else "127.0.0.1"


def _write_for_user(text: str) -> None:
    """Let a plain ssh, which programs such as DeepSpeed start, find the other pods' port and key.

    ssh reads the folder that the image names for the user, whatever HOME is. An image may have it read-only.
    """
    config = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".ssh" / "config"
    with contextlib.suppress(OSError):
        before = config.read_text() if config.exists() else ""
        if _MARK not in before:
            config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(config, f"{_MARK}\n{text}Match all\n{before}")


def _program(name: str, package: str) -> str:
    """The path of a program. sshd must be started by its full path."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")
    if not found:
        raise Stop(CONFIG, f"the image has no {name}: install {package} in it")
    return found


def _copy_key(source: Path, folder: Path) -> None:
    """Copy the mounted key to a file that only this user can read, and derive the public key."""
    try:
        private = source.read_text()
    except OSError as error:
        raise Stop(
            CONFIG,
            f"there is no ssh key at {source} ({error.strerror}): a chart that is rendered without a cluster "
            "(helm template, GitOps) makes none; name a Secret that has ssh-privatekey in ssh.existingSecret",
        ) from error
    key = folder / "key"
    _write(key, private.rstrip("\n") + "\n", mode=0o600)
    made = subprocess.run(
        ["ssh-keygen", "-y", "-P", "", "-f", str(key)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise Stop(CONFIG, f"{source} is not a private key that ssh can read: {made.stderr.strip()}")
    public = " ".join(made.stdout.split()[:2])
    _write(folder / "authorized_keys", f"{public}\n")
    _write(folder / "known_hosts", f"bireme {public}\n")


def for_trainers(env: Mapping[str, str]) -> dict[str, str]:
    """What trainers of the dispatcher need: the dataset's name, and that the launcher judges their failures.

    The name has a part that an MPIJob of the same name, installed again, has not: only the key, which the
    operator makes for each MPIJob, tells its pods apart. Other jobs have the uid of their Job.
    """
    if not env.get("BIREME_DISPATCHER"):
        return {}
    notes = {VARIABLE: str(_folder_of(env) / "trainers")}
    name = env.get("BIREME_DISPATCHER_DATASET")
    if name and env.get("BIREME_MPI_ROLE"):
        # Without a key `prepare` says what is missing.
        with contextlib.suppress(OSError):
            digest = hashlib.sha256(_key_of(env).read_bytes()).hexdigest()
            return {**notes, "BIREME_DISPATCHER_DATASET": f"{name}-{digest[:8]}"}
    return notes


def _folder_of(env: Mapping[str, str]) -> Path:
    return Path(env.get("BIREME_MPI_FOLDER", "/bireme/mpi"))


def _key_of(env: Mapping[str, str]) -> Path:
    return Path(env.get("BIREME_MPI_KEY", "/bireme/ssh/id_rsa"))


def is_login(pid: int) -> bool:
    """Whether the process is the first one of a login."""
    return f"BIREME_LOGIN={pid}".encode() in children.told(pid, "environ").split(b"\0")


def _exports(env: Mapping[str, str]) -> str:
    kept = {
        name: value for name, value in env.items() if name not in _NOT_FOR_SESSIONS and name.isidentifier()
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(kept.items()))


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
