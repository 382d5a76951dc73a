"""torchrun as the supervisor starts it.

`python3 -m bireme_runtime.elastic.agent.launch [OPTIONS] SCRIPT ARGS…`

It runs torch's own `torch.distributed.run` with these changes: the backend is registered also on releases
without entry points, the store uses a transport that the build of torch has, the agent stops its processes
within seconds before a new round, it succeeds only together with all others, and the supervisor is told when
processes start, when one fails and how the run ended.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from bireme_runtime.elastic import fence
from bireme_runtime.elastic.agent import launchers, pairs, report, torch_handler, warm
from bireme_runtime.elastic.rendezvous import membership
from bireme_runtime.elastic.snapshots import plan
from bireme_runtime.process import children, devices, environment
from bireme_runtime.process.errors import CONFIG, TEMPORARY, BiremeError, Stop, Unreachable, as_shell
from bireme_runtime.process.log import log_of

# Seconds after which a process that got SIGKILL is given up.
_KILL_SECONDS = 5.0
# Keys of a round's store with `c10d`, and how long those that have finished wait for each other.
_FINISHED, _SEEN = "bireme/finished", "bireme/seen"
_SEEN_SECONDS = 30.0


def main(argv: Sequence[str], template: warm.Template | None = None) -> int:
    """Run torchrun with these arguments, report, and return the exit code.

    ``template``: ranks are forked from it.
    """
    reporter = report.Reporter.from_env()
    try:
        check_release(importlib.import_module("torch").__version__)
        run = importlib.import_module("torch.distributed.run")
        adapt_torch(reporter)
        if template is not None:
            warm.fork_ranks_from(template, log_of("agent"))
        check_arguments(run, argv)
        check_kernels(importlib.import_module("torch.cuda").get_arch_list(), devices.gpu_capabilities())
        run.main(list(argv))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        reporter.ended(report.USAGE if code else report.SUCCESS, code, "torchrun rejects its arguments")
        return code
    except Exception as error:
        cause, code = classify(error)
        said = str(error) if isinstance(error, BiremeError) else f"{type(error).__name__}: {error}"
        reporter.ended(cause, code, said.partition("\n")[0])
        if cause == report.AGENT:
            traceback.print_exc()
        else:
            print(error, file=sys.stderr, flush=True)
        return code
    reporter.ended(report.SUCCESS, 0, "")
    return 0


def check_kernels(architectures: Sequence[str], capabilities: Mapping[str, str]) -> None:
    """Raise Stop unless torch was built for every model of GPU; it names none without CUDA."""
    for model, capability in capabilities.items():
        if architectures and not devices.has_kernels(architectures, capability):
            has = f"has kernels for {' '.join(architectures)} only"
            raise Stop(CONFIG, f"{model} has compute capability {capability}, but this torch {has}")


def check_release(version: str) -> None:
    """Raise Stop when the agent does not know a torch as old as ``version``, e.g. 2.6.0+cu124."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < (2, 1):
        needs = "the agent needs 2.1: set launch.runtime=false"
        raise Stop(CONFIG, f"this image has torch {version}, and {needs}")


def check_arguments(run: Any, argv: Sequence[str]) -> None:
    """Raise Stop when torchrun cannot use a value, or when this machine lacks devices that one asks for."""
    try:
        run.config_from_args(run.parse_args(list(argv)))
    except ValueError as error:
        raise Stop(TEMPORARY if "not available" in str(error) else CONFIG, str(error)) from error


def classify(error: Any) -> tuple[str, int]:
    """The cause and the exit code for an exception that ended torchrun."""
    names = {each.__name__ for each in type(error).__mro__}
    if "ChildFailedError" in names:
        # The exit code of the first process that failed, as a shell reports it.
        code = int(error.get_first_failure()[1].exitcode)
        return report.SCRIPT, as_shell(code) if -128 < code < 256 and code else 1
    if "RendezvousError" in names or "DistError" in names or isinstance(error, Unreachable):
        return report.RENDEZVOUS, 1
    if isinstance(error, ModuleNotFoundError) or (isinstance(error, Stop) and error.code == CONFIG):
        return report.CONFIG, 1
    if isinstance(error, (ImportError, Stop, membership.ThreadEnded)):
        return report.MACHINE, 1
    return report.AGENT, 1


def adapt_torch(reporter: report.Reporter) -> None:
    """Adapt torch to the supervisor and to the rendezvous."""
    api = importlib.import_module("torch.distributed.elastic.rendezvous.api")
    api.rendezvous_handler_registry.register(torch_handler.BACKEND, torch_handler.create_handler)
    _adapt_agent(reporter)

    def give_up() -> None:
        reporter.ended(report.MACHINE, 1, "a training process did not end on SIGKILL")
        # The main thread waits for that process. Nothing renews the lease any more.
        os._exit(1)

    _limit_time_to_stop(
        environment.seconds(os.environ, "BIREME_STOP_SECONDS", 0.5),
        environment.seconds(os.environ, "BIREME_JOIN_SECONDS", 30),
        give_up,
    )
    if launchers.starts_nodes(os.environ):
        children.adopt_orphans()
    if not _has_libuv():
        _do_without_libuv()


def _adapt_agent(reporter: report.Reporter) -> None:
    """Let the agent tell the supervisor of processes, and succeed only when all of its round have finished.

    When a process has failed, it waits for whether to go on. The exit barrier of torch ends with success also
    when an agent is gone, or is not there within 300 seconds. Here an agent whose processes have succeeded
    counts as healthy until all have, so that it still joins the next round when another member fails.
    """
    api = importlib.import_module("torch.distributed.elastic.agent.server.api")
    agent = importlib.import_module("torch.distributed.elastic.agent.server.local_elastic_agent")
    local = agent.LocalElasticAgent
    monitor, start, assign = local._monitor_workers, local._start_workers, local._assign_worker_ranks
    barrier = local._exit_barrier

    def assign_worker_ranks(self: Any, *arguments: Any) -> Any:
        handler = self.get_worker_group().spec.rdzv_handler
        return _unless_broken(handler, lambda: assign(self, *arguments))

    def monitor_workers(self: Any, group: Any) -> Any:
        result, handler = monitor(self, group), group.spec.rdzv_handler
        if result.state == api.WorkerState.FAILED and result.failures:
            rank, failure = min(result.failures.items(), key=lambda each: (each[1].timestamp, each[0]))
            if reporter.failed(_round(), group.group_world_size, rank, int(failure.exitcode)):
                self._remaining_restarts = group.spec.max_restarts
        if result.state != api.WorkerState.SUCCEEDED:
            return result
        if hasattr(handler, "member"):
            healthy = not handler.member.all_finished()
        elif handler.get_backend() == "c10d" and group.group_world_size > 1:
            finish = getattr(self, "_bireme_finish", None)
            if finish is None or finish.store is not self._store:
                finish = self._bireme_finish = C10dFinish(self._store, handler, group.group_world_size)
            healthy = not finish.all_finished()
            if finish.broken:
                return api.RunResult(state=api.WorkerState.UNHEALTHY)
        else:
            return result
        return api.RunResult(state=api.WorkerState.HEALTHY) if healthy else result

    def start_workers(self: Any, group: Any) -> Any:
        handler = group.spec.rdzv_handler
        here = (group.store, group.group_rank, group.group_world_size)
        if fence.ROUND in os.environ and hasattr(handler, "member"):

            def over() -> bool:
                return bool(handler.num_nodes_waiting()) and not handler.member.only_arrivals

            _unless_broken(handler, lambda: pairs.check(*here, over, log_of("agent")))
            _unless_broken(handler, lambda: plan.meet(*here, os.environ, log_of("agent")))
        if launchers.starts_nodes(os.environ):
            _unless_broken(handler, lambda: launchers.meet(*here))
        reporter.starting(_round(), group.group_rank, group.group_world_size)
        ids: Mapping[int, Any] = start(self, group)
        ranks = {int(pid): (group.workers[at].global_rank, at) for at, pid in ids.items()}
        reporter.started(ranks)
        return ids

    def exit_barrier(self: Any) -> None:
        handler = self.get_worker_group().spec.rdzv_handler
        if not hasattr(handler, "member") and handler.get_backend() != "c10d":
            barrier(self)

    local._monitor_workers, local._start_workers = monitor_workers, start_workers
    local._assign_worker_ranks, local._exit_barrier = assign_worker_ranks, exit_barrier


class C10dFinish:
    """Who has finished a round of `c10d`, counted in the round's store, which is on worker 0."""

    def __init__(self, store: Any, handler: Any, world: int) -> None:
        self.store = store
        self._handler, self._world = handler, world
        self._told = False
        self._whole = time.monotonic()

    def all_finished(self) -> bool:
        """Whether all have, as this agent has. Without an answer of the store that is not known."""
        try:
            if not self._told:
                self.store.add(_FINISHED, 1)
                self._told = True
            if self.store.add(_FINISHED, 0) < self._world:
                return False
            # Worker 0 must not end, and with it the store, before all have read that.
            seen, deadline = self.store.add(_SEEN, 1), time.monotonic() + _SEEN_SECONDS
        except (RuntimeError, OSError):
            return False
        with contextlib.suppress(RuntimeError, OSError):
            while seen < self._world and time.monotonic() < deadline:
                time.sleep(0.1)
                seen = self.store.add(_SEEN, 0)
        return True

    @property
    def broken(self) -> bool:
        """Whether a member of the round is gone, and nobody has joined for it."""
        holder = getattr(self._handler, "_state_holder", None)
        if holder is None or len(holder.state.participants) >= self._world:
            self._whole = time.monotonic()
        return time.monotonic() - self._whole > _SEEN_SECONDS


def _unless_broken(handler: Any, ask: Callable[[], Any]) -> Any:
    """What the store of a round answers. Raises Unreachable when it does not, and the round is broken."""
    if not hasattr(handler, "member"):
        return ask()
    return torch_handler.unless(lambda: not handler.member.only_arrivals, ask)


def _round() -> int:
    """The number of the round, where there is one."""
    return int(os.environ.get(fence.ROUND, "0"))


def _limit_time_to_stop(after_loss: float, for_newcomers: float, give_up: Callable[[], None]) -> None:
    """Limit the time that processes have to end before a new round.

    torch waits 30 seconds after SIGTERM. A process that handles SIGTERM, in order to save, uses all of them
    when it hangs in a collective operation with a lost member, and all other members would wait for it. When
    there are only newcomers, nothing hangs, and the processes can save. After SIGKILL torch waits for ever;
    here the agent gives up.
    """
    agent = importlib.import_module("torch.distributed.elastic.agent.server.api").SimpleElasticAgent
    context = importlib.import_module("torch.distributed.elastic.multiprocessing.api").PContext
    restart, stock = agent._restart_workers, context.close
    longest = after_loss

    def restart_workers(self: Any, group: Any) -> None:
        nonlocal longest
        member = getattr(group.spec.rdzv_handler, "member", None)
        if member and member.only_arrivals and group.state.name == "HEALTHY":
            longest = for_newcomers
        try:
            restart(self, group)
        finally:
            longest = after_loss

    def close(self: Any, death_sig: Any = None, timeout: float = 30) -> None:
        seconds, ended = min(timeout, longest), threading.Event()

        def watch() -> None:
            # The second wait is for an agent that was paused itself, for longer than the first.
            if not (ended.wait(seconds + _KILL_SECONDS) or ended.wait(1)):
                give_up()

        threading.Thread(target=watch, daemon=True).start()
        try:
            stock(self, death_sig, seconds)
            # A launcher's own processes are in sessions of their own, and outlive it.
            if launchers.starts_nodes(os.environ) and children.kill_descendants():
                give_up()
        finally:
            ended.set()

    agent._restart_workers, context.close = restart_workers, close


def _has_libuv() -> bool:
    if not torch_handler.takes_use_libuv():
        # This release has no libuv transport.
        return True
    if os.environ.get("USE_LIBUV") == "0":
        return False
    store = importlib.import_module("torch.distributed").TCPStore
    try:
        limit = timedelta(seconds=5)
        store("127.0.0.1", 0, is_master=True, timeout=limit, wait_for_workers=False, use_libuv=True)
    except RuntimeError as error:
        return "libuv" not in str(error)
    return True


def _do_without_libuv() -> None:
    """Use no libuv: some builds (Debian's) lack it, and parts of torch ignore USE_LIBUV."""
    os.environ["USE_LIBUV"] = "0"
    distributed = importlib.import_module("torch.distributed")
    c10d = importlib.import_module("torch.distributed.elastic.rendezvous.c10d_rendezvous_backend")
    stock = distributed.TCPStore

    class TCPStore(stock):  # type: ignore[valid-type,misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "use_libuv": False})

    for module in (distributed, c10d):
        module.TCPStore = TCPStore  # type: ignore[attr-defined]


if __name__ == "__main__":
    if warm.SOCKET_FD in os.environ:
        sys.exit(warm.main(sys.argv[1:], main))
    sys.exit(main(sys.argv[1:]))
