"""What the agent (torchrun) tells its supervisor, through a pipe, and the answers to it.

Each message is one line of JSON with the key `starting`, `started`, `failed` or `ended`. The agent waits for
the answer to `failed` before it starts the processes again.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from bireme_runtime.process.log import log_of
from bireme_runtime.process.waiting import readable

# Why a run of torchrun ended, as the supervisor distinguishes it. MACHINE: it may well run on another one.
SUCCESS, SCRIPT, RENDEZVOUS, CONFIG, USAGE, MACHINE, AGENT = (
    "success", "script", "rendezvous", "config", "usage", "machine", "agent",
)  # fmt: skip
REPORT_FD, ANSWER_FD = "BIREME_REPORT_FD", "BIREME_ANSWER_FD"
# The answers to `failed`. REFILL: go on, and with as many restarts as at the start.
GO_ON, STOP, REFILL = b".", b"!", b"+"
_ANSWER_SECONDS = 15.0


class Reporter:
    """The agent's end. Without a supervisor it tells nobody."""

    def __init__(self, report: str, answer: str) -> None:
        self._report = int(report) if report else -1
        self._answer = int(answer) if answer else -1
        for descriptor in (self._report, self._answer):
            if descriptor >= 0:
                # The training processes must not inherit the pipes.
                os.set_inheritable(descriptor, False)

    @classmethod
    def from_env(cls) -> Reporter:
        """The end that the supervisor has left in the environment; it is taken out of it."""
        return cls(os.environ.pop(REPORT_FD, ""), os.environ.pop(ANSWER_FD, ""))

    def ended(self, cause: str, code: int, error: str) -> None:
        """How this run of torchrun ended."""
        self._tell("ended", {"cause": cause, "code": code, "error": error[:500]})

    def starting(self, round: int, rank: int, world: int) -> None:
        """The processes are about to start; ``rank`` is that of this agent among ``world``."""
        self._tell("starting", {"round": round, "rank": rank, "world": world})

    def started(self, processes: Mapping[int, tuple[int, int]]) -> None:
        """The processes have started: their ids, with the rank and the local rank of each."""
        self._tell("started", {"processes": [[pid, *ranks] for pid, ranks in processes.items()]})

    def failed(self, round: int, world: int, rank: int, code: int) -> bool:
        """Of the processes of this agent, ``rank`` failed first, with this code.

        Returns when the agent may go on, which is never when the supervisor ends this worker: whether it has
        all its restarts again, because there were new steps since the failure before.
        """
        self._tell("failed", {"round": round, "world": world, "rank": rank, "code": code})
        if self._answer >= 0 and readable(self._answer, _ANSWER_SECONDS):
            while (answer := os.read(self._answer, 1)) == STOP:
                time.sleep(60)
            return answer == REFILL
        return False

    def _tell(self, what: str, facts: Mapping[str, Any]) -> None:
        if self._report >= 0:
            os.write(self._report, json.dumps({what: facts}).encode() + b"\n")


class Listener:
    """The supervisor's end for one run of torchrun. ``environment`` is for the agent.

    Its hearers ``starting``, ``started`` and ``failed`` are called in a thread with what the agent tells. The
    last returns the answer to it.
    """

    def __init__(self, **hearers: Callable[[Mapping[str, Any]], bytes | None]) -> None:
        self._hearers = hearers
        self._reading, report = os.pipe()
        answer, self._answering = os.pipe()
        self._theirs = (report, answer)
        for descriptor in self._theirs:
            os.set_inheritable(descriptor, True)
        self.environment = {REPORT_FD: str(report), ANSWER_FD: str(answer)}
        self._end: Mapping[str, Any] = {}
        self._thread = threading.Thread(target=self._listen, name="bireme-report", daemon=True)

    def started(self) -> None:
        """The agent has its ends of the pipes."""
        for descriptor in self._theirs:
            os.close(descriptor)
        self._thread.start()

    def end(self) -> Mapping[str, Any]:
        """What the agent, which has ended, said of that: cause, code and error; empty if nothing."""
        self._thread.join(5.0)
        return self._end

    def _listen(self) -> None:
        with os.fdopen(self._reading, "rb") as lines:
            for line in lines:
                for what, facts in json.loads(line).items():
                    answer = self._heard(what, facts)
                    with contextlib.suppress(OSError):
                        os.write(self._answering, answer)
        os.close(self._answering)

    def _heard(self, what: str, facts: Mapping[str, Any]) -> bytes:
        """The answer. A failure must not end the thread: the agent would wait, and its end be lost."""
        try:
            if what != "ended":
                return self._hearers[what](facts) or b""
            self._end = facts
        except Exception as error:
            log_of("report")(f"what the agent tells ({what}) was not carried out: {error!r}")
            return GO_ON if what == "failed" else b""
        return b""
