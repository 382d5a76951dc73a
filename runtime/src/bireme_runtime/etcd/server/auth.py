"""Bring etcd's users in line with a Secret: `python3 -m bireme_runtime.etcd.server.auth`, a Helm hook.

Reads BIREME_ETCD_ENDPOINTS, BIREME_ETCD_ROOT_PASSWORD, BIREME_ETCD_USERNAME, BIREME_ETCD_PASSWORD,
BIREME_ETCD_PREFIX (what the user may read and write) and BIREME_WAIT_SECONDS. Run again it changes nothing
but what is different now: the user's password, its prefix.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bireme_runtime.etcd import client as etcd

_ROOT = "root"


class CannotProtect(Exception):
    """etcd's users are not as wanted; the message says why and what to do."""


@dataclass(frozen=True)
class Wanted:
    """The users that etcd is to have."""

    root_password: str = field(repr=False)
    username: str
    password: str = field(repr=False)
    prefix: str

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Wanted:
        """Read the environment. Raises CannotProtect with a sentence."""
        names = ("BIREME_ETCD_ROOT_PASSWORD", "BIREME_ETCD_USERNAME", "BIREME_ETCD_PASSWORD")
        missing = [name for name in names if not env.get(name)]
        if missing:
            words = f"{', '.join(missing)} must not be empty"
            raise CannotProtect(f"{words}: fill the Secret's keys root-password, username and password")
        if env[names[1]] == _ROOT:
            raise CannotProtect("the user cannot be root, which is etcd's own; change username in the Secret")
        root_password, username, password = (env[name] for name in names)
        return cls(root_password, username, password, env.get("BIREME_ETCD_PREFIX") or "/")


def protect(plain: etcd.Client, as_root: etcd.Client, wanted: Wanted) -> bool:
    """Make etcd ask for users, and have the wanted one; returns whether it had asked before.

    `plain` logs in as nobody and `as_root` as root. Raises CannotProtect when root's password is another.
    """
    asks = _asks_for_users(plain, as_root)
    client = as_root if asks else plain
    client.auth("role/add", {"name": _ROOT}, exists_is_fine=True)
    _have_user(client, _ROOT, wanted.root_password, _ROOT)
    _have_role(client, wanted.username, wanted.prefix)
    _have_user(client, wanted.username, wanted.password, wanted.username)
    if not asks:
        client.auth("enable", {})
    return asks


def _asks_for_users(plain: etcd.Client, as_root: etcd.Client) -> bool:
    try:
        plain.auth("user/list", {})
        return False
    except etcd.AuthError:
        pass
    try:
        as_root.auth("user/list", {})
        return True
    except etcd.AuthError as error:
        raise CannotProtect(
            f"etcd does not take root's password ({error}): put the first one back into the Secret"
        ) from error


def _have_user(client: etcd.Client, name: str, password: str, role: str) -> None:
    client.auth("user/add", {"name": name, "password": password}, exists_is_fine=True)
    client.auth("user/changepw", {"name": name, "password": password})
    client.auth("user/grant", {"user": name, "role": role}, exists_is_fine=True)


def _have_role(client: etcd.Client, name: str, prefix: str) -> None:
    """A role for exactly the keys that start with the prefix."""
    client.auth("role/add", {"name": name}, exists_is_fine=True)
    key, end = _b64(prefix.encode()), _b64(etcd.prefix_end(prefix))
    for held in client.auth("role/get", {"role": name}).get("perm", ()):
        if (held.get("key"), held.get("range_end", "")) != (key, end):
            there = {"key": held.get("key", ""), "range_end": held.get("range_end", "")}
            client.auth("role/revoke", {"role": name, **there})
    client.auth("role/grant", {"name": name, "perm": {"permType": "READWRITE", "key": key, "range_end": end}})


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def set_up(env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Wait for etcd and protect it as the environment says; what fails for the moment is done again.

    Raises CannotProtect, ValueError, or etcd.EtcdError when the time is up.
    """
    wanted = Wanted.from_env(env)
    endpoints = env.get("BIREME_ETCD_ENDPOINTS", "")
    plain, as_root = (
        etcd.client_from(endpoints, {**env, "BIREME_ETCD_USERNAME": name, "BIREME_ETCD_PASSWORD": password})
        for name, password in (("", ""), (_ROOT, wanted.root_password))
    )
    deadline = time.monotonic() + float(env.get("BIREME_WAIT_SECONDS", "600"))
    while True:
        try:
            asked = protect(plain, as_root, wanted)
            break
        except (etcd.Unavailable, etcd.Ambiguous) as error:
            if time.monotonic() >= deadline:
                raise
            say(f"waiting, {deadline - time.monotonic():.0f} s at most, for etcd: {error}")
            time.sleep(1)
    words = "is up to date" if asked else "now asks for users"
    say(f"etcd {words}; {wanted.username} may read and write what starts with {wanted.prefix}")


def main(env: Mapping[str, str] = os.environ) -> int:
    """Set the users up; the exit code is 1, after a sentence, when that failed."""

    def say(sentence: str) -> None:
        print(f"bireme auth: {sentence}", file=sys.stderr, flush=True)

    try:
        set_up(env, say)
    except (CannotProtect, etcd.EtcdError, ValueError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
