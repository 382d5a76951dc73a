"""torchrun as the supervisor starts it: `python3 -m bireme_runtime.elastic.launch [OPTIONS] SCRIPT ARGS…`.

It is torch's own `torch.distributed.run`, with the backend registered on releases that look for no entry
points, a store that the build of torch has, an agent that stops its processes within seconds for a new round,
and a report to the supervisor of how it ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from bireme_runtime.elastic import torch_handler

# How a run of torchrun ended, as far as a supervisor cares.
SUCCESS, SCRIPT, RENDEZVOUS, CONFIG, USAGE, AGENT = (
    "success", "script", "rendezvous", "config", "usage", "agent",
)  # fmt: skip
REPORT_FD = "BIREME_REPORT_FD"


def main(argv: Sequence[str]) -> int:
    """Run torchrun with these arguments, report, and return the exit code."""
    report = _report_to(os.environ.pop(REPORT_FD, ""))
    try:
        run = importlib.import_module("torch.distributed.run")
        adapt_torch()
        run.main(list(argv))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        report(USAGE if code else SUCCESS, code, "torchrun does not understand its arguments")
        return code
    except Exception as error:
        kind, code = classify(error)
        report(kind, code, f"{type(error).__name__}: {error}".splitlines()[0])
        if kind == AGENT:
            traceback.print_exc()
        else:
            print(error, file=sys.stderr, flush=True)
        return code
    report(SUCCESS, 0, "")
    return 0


def classify(error: Exception) -> tuple[str, int]:
    """Kind and exit code of an exception that ended torchrun."""
    names = {each.__name__ for each in type(error).__mro__}
    if "ChildFailedError" in names:
        return SCRIPT, _exit_code(error)
    if "RendezvousError" in names or "DistError" in names:
        return RENDEZVOUS, 1
    if isinstance(error, (ImportError, ValueError)):
        return CONFIG, 1
    return AGENT, 1


def _exit_code(error: Any) -> int:
    """The exit code of the first process that failed; a signal's is 128 and its number, as in a shell."""
    code = int(error.get_first_failure()[1].exitcode)
    return code if 0 < code < 256 else 128 - code if -128 < code < 0 else 1


def adapt_torch() -> None:
    """Make up for what this release or build of torch lacks."""
    _register_backend()
    _announce_finished_processes()
    _stop_processes_soon(float(os.environ.get("BIREME_STOP_SECONDS", "0.5")))
    if not _has_libuv():
        _do_without_libuv()


def _register_backend() -> None:
    api = importlib.import_module("torch.distributed.elastic.rendezvous.api")
    api.rendezvous_handler_registry.register(torch_handler.BACKEND, torch_handler.create_handler)


def _announce_finished_processes() -> None:
    """Let the rendezvous know when an agent waits at the exit barrier, where it looks at nothing any more."""
    agent = importlib.import_module("torch.distributed.elastic.agent.server.api").SimpleElasticAgent
    barrier = getattr(agent, "_exit_barrier", None)
    if barrier is None:
        return

    def exit_barrier(self: Any) -> Any:
        announce = getattr(self.get_worker_group().spec.rdzv_handler, "processes_finished", None)
        if announce:
            announce()
        return barrier(self)

    agent._exit_barrier = exit_barrier


def _stop_processes_soon(longest: float) -> None:
    """Bound the time that processes have to end before a new round.

    torch grants 30 seconds after TERM. Those that handle TERM, to save before their pod goes, use them up
    when they hang in a collective with a member that is gone, and all others would wait for them.
    """
    context = importlib.import_module("torch.distributed.elastic.multiprocessing.api").PContext
    stock = context.close

    def close(self: Any, death_sig: Any = None, timeout: float = 30) -> None:
        stock(self, death_sig, min(timeout, longest))

    context.close = close


def _has_libuv() -> bool:
    if not torch_handler.takes_use_libuv():
        # Nothing in this release asks for it.
        return True
    if os.environ.get("USE_LIBUV") == "0":
        return False
    store = importlib.import_module("torch.distributed").TCPStore
    try:
        store(
            "127.0.0.1",
            0,
            is_master=True,
            timeout=timedelta(seconds=5),
            wait_for_workers=False,
            use_libuv=True,
        )
    except RuntimeError as error:
        return "libuv" not in str(error)
    return True


def _do_without_libuv() -> None:
    """Some builds (Debian's) have no libuv, and parts of torch ask for it whatever USE_LIBUV says."""
    os.environ["USE_LIBUV"] = "0"
    distributed = importlib.import_module("torch.distributed")
    c10d = importlib.import_module("torch.distributed.elastic.rendezvous.c10d_rendezvous_backend")
    stock = distributed.TCPStore

    class TCPStore(stock):  # type: ignore[valid-type,misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "use_libuv": False})

    for module in (distributed, c10d):
        module.TCPStore = TCPStore  # type: ignore[attr-defined]


def _report_to(descriptor: str) -> Callable[[str, int, str], None]:
    if not descriptor:
        return lambda kind, code, error: None
    fd = int(descriptor)
    # The training processes must not hold the pipe.
    os.set_inheritable(fd, False)

    def report(kind: str, code: int, error: str) -> None:
        os.write(fd, json.dumps({"kind": kind, "code": code, "error": error[:500]}).encode())

    return report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
