"""Keep etcd's users in line with a Secret: `python3 -m bireme_runtime.etcd.server.auth`, beside each member.

It is a container of the member's pod, because an etcd that comes back without its data comes back without its
users. Reads BIREME_ETCD_ENDPOINTS, BIREME_ETCD_USERS (the folder of the Secret, with the files root-password,
username, password and releases), BIREME_ETCD_PREFIX (of the keys that the user may read and write),
BIREME_ETCD_USERS_PORT and BIREME_WAIT_SECONDS. The port answers 200 as soon as etcd asks for users: the pod
is not Ready before. A changed file is applied within seconds; only what differs is changed, because a change
ends all logins.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bireme_runtime.etcd import client as etcd
from bireme_runtime.process import environment
from bireme_runtime.process.errors import BiremeError, SettingError, end_on_sigterm
from bireme_runtime.process.log import Say, log_of
from bireme_runtime.process.server import Background, Response
from bireme_runtime.process.waiting import BoundedWait

_ROOT = "root"
# The variables that `set_up_all` reads, and the Secret's keys.
_KEYS = {
    "BIREME_ETCD_ROOT_PASSWORD": "root-password",
    "BIREME_ETCD_USERNAME": "username",
    "BIREME_ETCD_PASSWORD": "password",
    "BIREME_ETCD_RELEASES": "releases",
}
_LOOK_SECONDS = 5.0


class OtherRoot(BiremeError):
    """etcd asks for users, but root has another password."""


@dataclass(frozen=True)
class Users:
    """The users that etcd shall have: root, and one that may read and write the keys with a prefix."""

    root_password: str = field(repr=False)
    username: str
    password: str = field(repr=False)
    prefix: str

    @classmethod
    def all_from(cls, env: Mapping[str, str]) -> list[Users]:
        """Those of the Secret, and those of each line of its key `releases`. Raises SettingError."""
        missing = [name for name, key in _KEYS.items() if key != "releases" and not env.get(name)]
        if missing:
            problem = f"{', '.join(missing)} must not be empty"
            raise SettingError(f"{problem}: fill the Secret's keys root-password, username and password")
        prefix = env.get("BIREME_ETCD_PREFIX") or "/"
        users = [[env["BIREME_ETCD_USERNAME"], env["BIREME_ETCD_PASSWORD"], prefix]]
        users += map(str.split, env.get("BIREME_ETCD_RELEASES", "").splitlines())
        if any(len(each) != 3 for each in users):
            raise SettingError("each line of the Secret's key releases needs a user, a password and a prefix")
        if any(name == _ROOT for name, *_ in users):
            raise SettingError("the user cannot be root, which is etcd's own: name another one in the Secret")
        return [cls(env["BIREME_ETCD_ROOT_PASSWORD"], *each) for each in users]


def protect(plain: etcd.Client, as_root: etcd.Client, as_user: etcd.Client, wanted: Users) -> bool:
    """Turn authentication on with the wanted users; returns whether it was on before.

    `plain` sends no user, `as_root` and `as_user` log in. Raises OtherRoot.
    """
    was_on = _is_on(plain, as_root)
    if was_on and _is_current(as_root, as_user, wanted):
        return True
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
        raise OtherRoot(
            f"etcd rejects root's password ({error}): put the first one back into the Secret"
        ) from error


def _is_current(as_root: etcd.Client, as_user: etcd.Client, wanted: Users) -> bool:
    try:
        as_user.get(wanted.prefix)
        held = as_root.auth("role/get", {"role": wanted.username}).get("perm", ())
    except etcd.Refused:
        return False
    return list(held) == [_permission(wanted.prefix)]


def _permission(prefix: str) -> dict[str, str]:
    key, end = etcd.encoded(prefix), etcd.encoded(etcd.prefix_end(prefix))
    return {"permType": "READWRITE", "key": key, "range_end": end}


def _set_user(client: etcd.Client, name: str, password: str, role: str) -> None:
    client.auth("user/add", {"name": name, "password": password}, exists_is_fine=True)
    client.auth("user/changepw", {"name": name, "password": password})
    client.auth("user/grant", {"user": name, "role": role}, exists_is_fine=True)


def _set_role(client: etcd.Client, name: str, prefix: str) -> None:
    """Give the role permission for exactly the keys with the prefix."""
    client.auth("role/add", {"name": name}, exists_is_fine=True)
    wanted = _permission(prefix)
    for held in client.auth("role/get", {"role": name}).get("perm", ()):
        there = {"key": held.get("key", ""), "range_end": held.get("range_end", "")}
        if there.items() <= wanted.items():
            continue
        client.auth("role/revoke", {"role": name, **there})
    client.auth("role/grant", {"name": name, "perm": wanted})


def set_up(env: Mapping[str, str], wanted: Users, say: Say) -> None:
    """Wait for etcd and set up the users; retry while etcd is unavailable.

    Raises OtherRoot, ValueError, or etcd.EtcdError at the end of BIREME_WAIT_SECONDS.
    """
    endpoints = env.get("BIREME_ETCD_ENDPOINTS", "")
    users = (("", ""), (_ROOT, wanted.root_password), (wanted.username, wanted.password))
    plain, as_root, as_user = (
        etcd.client_from(endpoints, {**env, "BIREME_ETCD_USERNAME": name, "BIREME_ETCD_PASSWORD": password})
        for name, password in users
    )
    wait = BoundedWait(environment.seconds(env, "BIREME_WAIT_SECONDS", 600), say)
    while True:
        try:
            was_on = protect(plain, as_root, as_user, wanted)
            break
        # AuthError: another member's container has just turned authentication on.
        except (etcd.Unavailable, etcd.Ambiguous, etcd.AuthError) as error:
            if not wait.a_moment("etcd", f": {error}"):
                raise
    state = "is up to date" if was_on else "now asks for users"
    say(f"etcd {state}; {wanted.username} may read and write keys that start with {wanted.prefix}")


def set_up_all(env: Mapping[str, str], say: Say) -> None:
    """Set up all users of the Secret. Raises as `set_up`."""
    for each in Users.all_from(env):
        set_up(env, each, say)


def read_secret(folder: Path) -> dict[str, str]:
    """The variables of `set_up_all`, from the files of a mounted Secret; "" for one that is missing."""
    files = {name: folder / key for name, key in _KEYS.items()}
    return {name: file.read_text().strip() if file.is_file() else "" for name, file in files.items()}


def keep_up(env: Mapping[str, str], say: Say) -> None:
    """Set the users up, and again whenever the Secret changes; problems go to the log. It does not end."""
    folder = Path(env["BIREME_ETCD_USERS"])
    done: dict[str, str] = {}
    asks = False
    port = environment.integer(env, "BIREME_ETCD_USERS_PORT")
    Background(lambda request: Response(200 if asks else 503), "", port)
    while True:
        try:
            secret = read_secret(folder)
            if secret != done:
                set_up_all({**env, **secret}, say)
                done = secret
            asks = True
        except (BiremeError, ValueError, OSError) as error:
            say(str(error))
            asks = asks or isinstance(error, OtherRoot)
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    end_on_sigterm()
    keep_up(os.environ, log_of("users"))
