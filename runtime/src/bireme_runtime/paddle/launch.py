"""A Paddle script as the supervisor starts it: `python3 -m bireme_runtime.paddle.launch SCRIPT ARGS…`.

It runs the script in this process with an adapted parameter-server runtime of Paddle 3.0. In the original,
trainers pull the parameters before the first trainer has pushed them to the servers, and so train on zeros;
and a restarted first trainer overwrites trained parameters with initial ones. With the adaptation, trainers
wait for the first one, and it restores the last save if there is one.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.abc
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from bireme_runtime.paddle.run import client_of_script
from bireme_runtime.process import environment
from bireme_runtime.process.errors import FAILED

_RUNTIME = "paddle.distributed.ps.the_one_ps"


def main(argv: Sequence[str]) -> None:
    """Run the script (or `-m` and a module) as Python itself would."""
    if os.environ.get("TRAINING_ROLE") == "TRAINER":
        sys.meta_path.insert(0, _Adapter())
    try:
        _run(argv)
    except BaseException as error:
        code = _exit_code(error)
        if code:
            # Paddle crashes at exit when a connection was not closed, and the exit code would be lost.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _run(argv: Sequence[str]) -> None:
    module = argv[0] == "-m"
    target, *arguments = argv[1:] if module else argv
    sys.argv = [target, *arguments]
    if module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(target))
    runpy.run_path(target, run_name="__main__")


def _exit_code(error: BaseException) -> int:
    """The exit code with which Python would end; prints what Python would print."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return FAILED
    traceback.print_exc()
    return FAILED


class _Adapter(importlib.abc.MetaPathFinder):
    """Adapts Paddle's module when the script imports it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _RUNTIME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        stock = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            stock(module)
            adapt_paddle(module)

        vars(spec.loader)["exec_module"] = exec_module
        return spec


def adapt_paddle(module: Any) -> None:
    """Make trainers wait for the initial parameters, and the first trainer restore the last save."""
    runtime = module.TheOnePSRuntime
    push, pull = runtime._init_all_params, runtime._pull_all_dense
    attempt = environment.integer(os.environ, "BIREME_PADDLE_ATTEMPT")
    run = client_of_script(os.environ)

    def push_once(self: Any, *args: Any) -> Any:
        if run.is_initialised(attempt):
            return []
        done = push(self, *args)
        restore = os.environ.get("BIREME_PADDLE_RESTORE")
        if restore:
            self._worker.load_model(restore, 0)
        run.mark_initialised(attempt)
        return done

    def pull_when_initialised(self: Any, *args: Any) -> Any:
        while not run.is_initialised(attempt, seconds=5):
            pass
        runtime._pull_all_dense = pull
        return pull(self, *args)

    runtime._init_all_params = push_once
    runtime._pull_all_dense = pull_when_initialised


if __name__ == "__main__":
    main(sys.argv[1:])
