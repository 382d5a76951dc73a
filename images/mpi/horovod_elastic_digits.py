"""Train a small network on scikit-learn's handwritten digits with elastic Horovod, while workers come and go.

As horovod_digits.py. Every step is committed: after the loss of a worker the others repeat the step in which
it was lost, and newcomers get the state from rank 0. So no step is left out or made twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import elastic
import horovod.torch as hvd
import horovod_run
from digits import arguments, resume, start, train


class Run(horovod_run.Run):
    """One process of an elastic job, whose rank and world size change while it runs."""

    def __init__(self, folder: Path) -> None:
        self._state: Any = None
        super().__init__(folder)

    def join_world(self, state: Any) -> None:
        """Take part in the world that has just formed; all its processes have the same ``state``."""
        self._state = state
        self.rank, self.world_size = hvd.rank(), hvd.size()
        self.log("world", step=state.step)

    def sum(self, *values: float) -> list[float]:
        # Nothing waits for others before the world has formed: those that train do not expect it.
        return super().sum(*values) if self._state else list(values)

    def step_done(self, step: int, state: Callable[[], elastic.State], due: bool = False) -> None:
        super().step_done(step, state, due)
        self._state.step = step
        self._state.commit()


def main() -> None:
    args = arguments()
    run = Run(args.checkpoints)
    network, sgd = start(args, run.device)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=network.named_parameters())
    step = resume(run, network, optimizer)

    @hvd.elastic.run  # type: ignore[untyped-decorator, unused-ignore]
    def train_together(state: Any) -> None:
        run.join_world(state)
        train(run, args, network, network, optimizer, state.step)

    train_together(hvd.elastic.TorchState(model=network, optimizer=optimizer, step=step))


if __name__ == "__main__":
    horovod_run.execute(main)
