"""elastic.Run for processes that mpirun started and that communicate through Horovod.

Everything else is as under torchrun: checkpoints in a folder that all share, from which another start goes
on; SIGTERM makes all processes agree on a checkpoint of the step they are in; JSON lines; a mark when all is
done. An MPI job lives and dies as one: when it ends early, its Job starts all of it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import elastic
import horovod.torch as hvd
import torch


class Run(elastic.Run):
    """One process of the job; ``rank`` and ``world_size`` are Horovod's."""

    def __init__(self, folder: Path) -> None:
        hvd.init()
        os.environ.update(RANK=str(hvd.rank()), WORLD_SIZE=str(hvd.size()), LOCAL_RANK=str(hvd.local_rank()))
        super().__init__(folder)

    def sum(self, *values: float) -> list[float]:
        """The sums of ``values`` over all processes, computed on CPUs so that nothing waits for the GPUs."""
        total = hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=hvd.Sum)
        return list(total.tolist())

    def _join(self) -> None:
        pass  # hvd.init() did


def execute(main: Callable[[], None]) -> NoReturn:
    """Call ``main`` and end the process with its status.

    mpirun treats an exit without MPI_Finalize as a failure; after a failure, Finalize could wait for ever.
    """

    def finalized() -> None:
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        hvd.shutdown()

    elastic.execute(finalized)
