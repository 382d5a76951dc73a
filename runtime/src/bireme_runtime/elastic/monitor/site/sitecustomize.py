"""Python imports this first in the agent and in training processes, which tell on request what they do.

A signal makes them print their stacks, and whoever opens a FIFO gets the collectives that torch has recorded.

It runs before the script and in every Python process that the script starts, so it imports little and changes
nothing else. A sitecustomize of the image, which this one hides, runs as without it.
"""

import contextlib
import os
import sys


def _print_stacks_on_a_signal() -> None:
    number = os.environ.get("BIREME_STACKS_SIGNAL")
    if number:
        import faulthandler

        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            faulthandler.register(int(number), file=2, all_threads=True)


def record_on_request() -> None:
    """In a training process, start the thread that writes torch's Flight Recorder to a file when asked.

    A thread, because the main one may wait in a collective and run no Python.
    """
    folder = os.environ.get("BIREME_RECORDS")
    if folder and "RANK" in os.environ:
        import threading

        path = os.path.join(folder, str(os.getpid()))
        threading.Thread(target=_record, args=(path,), name="bireme-recorder", daemon=True).start()


def _record(path: str) -> None:
    with contextlib.suppress(Exception):
        # An earlier process may have had the same number.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        while True:
            with open(path, "rb") as request:
                request.read()
            c10d = sys.modules.get("torch._C._distributed_c10d")
            # The first is of torch 2.14, which also records gloo. The second is there with NCCL.
            names = [name for name in ("_dump_fr_trace", "_dump_nccl_trace") if hasattr(c10d, name)]
            with open(f"{path}.new", "wb") as file:
                file.write(getattr(c10d, names[0])() if names else b"")
            os.rename(f"{path}.new", f"{path}.dump")


def _run_the_next() -> None:
    from importlib import machinery, util

    here = os.path.dirname(os.path.abspath(__file__))
    spec = machinery.PathFinder.find_spec(
        "sitecustomize", [p for p in sys.path if os.path.abspath(p) != here]
    )
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(util.module_from_spec(spec))


_print_stacks_on_a_signal()
record_on_request()
_run_the_next()
