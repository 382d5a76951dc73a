"""The fence: no member trains, or commits a checkpoint, when others may have formed a world without it.

A member's lease cannot have ended before `ttl` seconds have passed since its last renewal was sent. The agent
writes on a board, a page of memory that it shares with its supervisor and with the training processes, until
when its processes may run: five sixths of that time. After two thirds the agent stops them itself, and what
still runs at the written time the supervisor kills. A script calls `check` right before it commits
(docs/failures.md):

    from bireme_runtime.elastic import fence
    fence.check()  # raises fence.Fenced, whose message is one sentence
    os.replace(partial, checkpoint)
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeout

from bireme_runtime.etcd import client as etcd
from bireme_runtime.process.errors import BiremeError
from bireme_runtime.process.page import Page, Word
from bireme_runtime.process.threads import in_thread

# Shares of the lease, from the sending of the last renewal on.
STOP_SHARE, KILL_SHARE = 2 / 3, 5 / 6
BOARD, RUN, ROUND, KEY = "BIREME_FENCE", "BIREME_RUN", "BIREME_ROUND", "BIREME_ROUND_KEY"
TOKEN = "BIREME_TOKEN"
_ETCD_SECONDS = 2.0
# Where etcd is: as torchrun is told, or kept under names that launchers below it do not read.
_ENDPOINT, _CONF = "PET_RDZV_ENDPOINT", "PET_RDZV_CONF"
_KEPT = {_ENDPOINT: "BIREME_FENCE_ENDPOINT", _CONF: "BIREME_FENCE_CONF"}


class Fenced(BiremeError):
    """This process no longer belongs to the world that trains; the message says why."""


def now() -> float:
    """Seconds of the clock by which leases are measured. It goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Board(Page):
    """What the processes of one worker may do: until when they may run, and the token of their round.

    Without processes in a world, `deadline` and `token` are 0. A board outlives the agents that write it.
    """

    NAME = "bireme-fence"

    deadline: Word[float] = Word("@d", 0)
    """Until when processes may run, by `now`; 0 while there are none."""
    token: Word[int] = Word("@q", 8)
    """The token of the round in which processes run; 0 when they are out of it."""

    def admit(self, token: int, deadline: float) -> None:
        """Processes may run in the round with this token until the deadline."""
        # In this order: a reader that sees the token sees its deadline.
        self.deadline, self.token = deadline, token

    def extend(self, deadline: float) -> None:
        """Processes that may run may do so until this deadline, unless a later one is written."""
        if 0 < self.deadline < deadline:
            self.deadline = deadline

    def expel(self) -> None:
        """The lease has ended: nothing may be committed any more. The processes are about to be stopped."""
        self.token = 0

    def clear(self) -> None:
        """There are no processes."""
        self.expel()
        self.deadline = 0.0

    @property
    def expired(self) -> bool:
        """Whether processes run although their time is over."""
        return 0 < self.deadline <= now()


def environment(run_id: str, number: int, token: int, key: str, board: Board) -> dict[str, str]:
    """What the training processes of a round get: the run, the round, its token, and what `check` reads."""
    return {RUN: run_id, ROUND: str(number), TOKEN: str(token), KEY: key, BOARD: board.path}


def kept(env: Mapping[str, str]) -> dict[str, str]:
    """What `check` needs below a launcher that gets no variables of torchrun."""
    return {name: env[given] for given, name in _KEPT.items() if given in env}


def check(env: Mapping[str, str] = os.environ, ask: bool = True) -> None:
    """Raise Fenced unless this process may commit a checkpoint now. Outside a round it does nothing.

    While etcd does not answer, or is not asked, the worker's own clock decides alone: before its lease can
    have ended there is no newer round. Each endpoint has two seconds, with those of its address.
    """
    if ROUND not in env:
        return
    round, mine = env[ROUND], int(env.get(TOKEN, "0"))
    newest, token = (_newest(env) if ask else None) or (0, mine)
    if token != mine:
        raise Fenced(
            f"round {round} of this process is over: the newest is {newest}; nothing may be committed"
        )
    # Last, because it is about this moment.
    try:
        board = Board.at(env[BOARD])
    except (KeyError, OSError) as error:
        raise Fenced(f"the supervisor of this process is gone ({error}): nothing may be committed") from None
    if board.token != mine:
        raise Fenced(f"this worker has left round {round}: nothing may be committed")
    if board.deadline <= now():
        raise Fenced("the lease of this worker was not renewed in time: nothing may be committed")


def _newest(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Number and token of the newest round in etcd, 0 if there is none; None when etcd does not say."""
    endpoint, given = (env.get(name) or env.get(_KEPT[name], "") for name in (_ENDPOINT, _CONF))
    if not endpoint:
        raise Fenced(
            f"neither {_ENDPOINT} nor {_KEPT[_ENDPOINT]} says where etcd is: nothing may be committed"
        )
    conf = dict(part.partition("=")[::2] for part in given.split(",") if "=" in part)
    try:
        client = etcd.client_from(endpoint, env, _ETCD_SECONDS, conf)
        # In a thread, because nothing else limits the time for an address.
        kv = in_thread(lambda: client.get(env[KEY])).result(_ETCD_SECONDS * len(client.endpoints))
        record = json.loads(kv.value) if kv else {"number": 0, "token": 0}
        return int(record["number"]), int(record["token"])
    except etcd.AnotherCluster as error:
        raise Fenced(f"{error}: nothing may be committed") from None
    except (etcd.EtcdError, ValueError, KeyError, OSError, FutureTimeout):
        return None


def main() -> int:
    """`python3 -m bireme_runtime.elastic.fence`: exit code 0, or 1 with the sentence."""
    try:
        check()
    except Fenced as fenced:
        print(f"bireme fence: {fenced}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
