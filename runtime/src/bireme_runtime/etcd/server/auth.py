"""Bring etcd's users in line with a Secret: `python3 -m bireme_runtime.etcd.server.auth`, a Helm hook.

Reads BIREME_ETCD_ENDPOINTS, BIREME_ETCD_ROOT_PASSWORD, BIREME_ETCD_USERNAME, BIREME_ETCD_PASSWORD,
BIREME_ETCD_PREFIX (the prefix of the keys that the user may read and write) and BIREME_WAIT_SECONDS. When it
runs again it changes only what differs by then: the user's password or its prefix.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import environment
from bireme_runtime.process.errors import BiremeError
from bireme_runtime.process.exits import FAILED
from bireme_runtime.process.log import Say, log_of

_ROOT = "root"


class AuthSetupError(BiremeError):
    """etcd's users could not be set up; the message says why and what to do."""


@dataclass(frozen=True)
class Users:
    """The users that etcd shall have: root, and one that may read and write the keys with a prefix."""

    root_password: str = field(repr=False)
    username: str
    password: str = field(repr=False)
    prefix: str

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Users:
        """Read the environment. Raises AuthSetupError."""
        names = ("BIREME_ETCD_ROOT_PASSWORD", "BIREME_ETCD_USERNAME", "BIREME_ETCD_PASSWORD")
        missing = [name for name in names if not env.get(name)]
        if missing:
            problem = f"{', '.join(missing)} must not be empty"
            raise AuthSetupError(f"{problem}: fill the Secret's keys root-password, username and password")
        if env[names[1]] == _ROOT:
            raise AuthSetupError(
                "the user cannot be root, which is etcd's own; change username in the Secret"
            )
        root_password, username, password = (env[name] for name in names)
        return cls(root_password, username, password, env.get("BIREME_ETCD_PREFIX") or "/")


def protect(plain: etcd.Client, as_root: etcd.Client, wanted: Users) -> bool:
    """Turn authentication on with the wanted users; returns whether it was on before.

    `plain` sends no user and `as_root` logs in as root. Raises AuthSetupError when root has another password.
    """
    was_on = _is_on(plain, as_root)
    client = as_root if was_on else plain
    client.auth("role/add", {"name": _ROOT}, exists_is_fine=True)
    _set_user(client, _ROOT, wanted.root_password, _ROOT)
    _set_role(client, wanted.username, wanted.prefix)
    _set_user(client, wanted.username, wanted.password, wanted.username)
    if not was_on:
        client.auth("enable", {})
    return was_on


def _is_on(plain: etcd.Client, as_root: etcd.Client) -> bool:
    try:
        plain.auth("user/list", {})
        return False
    except etcd.AuthError:
        pass
    try:
        as_root.auth("user/list", {})
        return True
    except etcd.AuthError as error:
        raise AuthSetupError(
            f"etcd rejects root's password ({error}): put the first one back into the Secret"
        ) from error


def _set_user(client: etcd.Client, name: str, password: str, role: str) -> None:
    client.auth("user/add", {"name": name, "password": password}, exists_is_fine=True)
    client.auth("user/changepw", {"name": name, "password": password})
    client.auth("user/grant", {"user": name, "role": role}, exists_is_fine=True)


def _set_role(client: etcd.Client, name: str, prefix: str) -> None:
    """Give the role permission for exactly the keys with the prefix."""
    client.auth("role/add", {"name": name}, exists_is_fine=True)
    key, end = _b64(prefix.encode()), _b64(etcd.prefix_end(prefix))
    for held in client.auth("role/get", {"role": name}).get("perm", ()):
        if (held.get("key"), held.get("range_end", "")) != (key, end):
            there = {"key": held.get("key", ""), "range_end": held.get("range_end", "")}
            client.auth("role/revoke", {"role": name, **there})
    client.auth("role/grant", {"name": name, "perm": {"permType": "READWRITE", "key": key, "range_end": end}})


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def set_up(env: Mapping[str, str], say: Say) -> None:
    """Wait for etcd and set up the users that the environment names; retry while etcd is unavailable.

    Raises AuthSetupError, ValueError, or etcd.EtcdError at the end of BIREME_WAIT_SECONDS.
    """
    wanted = Users.from_env(env)
    endpoints = env.get("BIREME_ETCD_ENDPOINTS", "")
    plain, as_root = (
        etcd.client_from(endpoints, {**env, "BIREME_ETCD_USERNAME": name, "BIREME_ETCD_PASSWORD": password})
        for name, password in (("", ""), (_ROOT, wanted.root_password))
    )
    deadline = time.monotonic() + environment.seconds(env, "BIREME_WAIT_SECONDS", 600)
    while True:
        try:
            was_on = protect(plain, as_root, wanted)
            break
        except (etcd.Unavailable, etcd.Ambiguous) as error:
            if time.monotonic() >= deadline:
                raise
            say(f"waiting, {deadline - time.monotonic():.0f} s at most, for etcd: {error}")
            time.sleep(1)
    state = "is up to date" if was_on else "now asks for users"
    say(f"etcd {state}; {wanted.username} may read and write keys that start with {wanted.prefix}")


def main(env: Mapping[str, str] = os.environ) -> int:
    """Set up the users; returns the exit code."""
    say = log_of("auth")
    try:
        set_up(env, say)
    except (AuthSetupError, etcd.EtcdError, ValueError) as error:
        say(str(error))
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
