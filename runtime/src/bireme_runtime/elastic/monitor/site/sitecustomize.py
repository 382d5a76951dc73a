"""Python imports this first in the agent and in training processes: a signal makes them print their stacks.

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


def _run_the_next() -> None:
    from importlib import machinery, util

    here = os.path.dirname(os.path.abspath(__file__))
    spec = machinery.PathFinder.find_spec(
        "sitecustomize", [p for p in sys.path if os.path.abspath(p) != here]
    )
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(util.module_from_spec(spec))


_print_stacks_on_a_signal()
_run_the_next()
