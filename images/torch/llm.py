"""Train a small GPT on text, its parameters sharded over any number of workers (FSDP2).

The tokens are bytes of the files in --data, by default of Python's own library. Nothing is fetched.
The order of the text follows from seed, epoch and step alone, and the processes share each global batch. So
any number of processes, restarted at any time, reads what one uninterrupted process does, every token once an
epoch. A checkpoint is a folder with a part of each process (torch.distributed.checkpoint). Another number of
processes reads it just as well.

On GPUs the network computes in bfloat16, on CPUs in float32.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shutil
import sysconfig
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import elastic
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

TOKENS = 256
"""Different tokens: the values of a byte."""
HELD_OUT = 0.05
"""The fraction of the text that measures the loss at the end and is never trained with."""
KEPT = 2
"""Checkpoints that stay."""
FOLDER = re.compile(r"step-(\d+)")


class Block(nn.Module):
    """A layer: each position looks at those before it, and then thinks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        split = self.queries_keys_values(self.before_attention(x)).view(rows, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Logits of the next token at each position."""

    def __init__(self, length: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.logits = nn.Linear(width, TOKENS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.logits(self.last(x))


class Run(elastic.Run):
    """A run whose checkpoints are folders, into which all processes write."""

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Restore both from the newest checkpoint or snapshot, if there is one; returns its step."""
        # Rank 0 decides, because the others may see an older state of the folder.
        step = int(self.sum(max(self._steps(), default=0) if self.leads else 0)[0])
        made = elastic.snapshots.here().plan.made if elastic.snapshots else None
        newer = bool(made) and made[1] > step
        if step or newer:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments}
            if newer:
                step = sharded().restore(state)
            else:
                dcp.load(state, checkpoint_id=self.folder / f"step-{step:09d}")
            set_state_dict(
                model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
            )
            self.log("resume", step=step, snapshot=newer)
        return step

    def snapshot(self, step: int, state: Callable[[], elastic.State]) -> None:
        """Keep the parts of all processes in memory."""
        sharded().save(step, state())

    def save(self, step: int, state: Callable[[], elastic.State]) -> None:
        """Write the checkpoint of ``step``; all call it together, and readers find all or nothing."""
        saving = getattr(elastic.progress, "saving", contextlib.nullcontext)
        with self._term.held(), saving():
            started = time.time()
            # A name that processes of an earlier start cannot write to.
            (start,) = self.sum(int(started * 1000) if self.leads else 0)
            partial = self.folder / f".partial-{int(start)}"
            dcp.save(state(), checkpoint_id=partial)
            if self.leads:
                self._publish(partial, self.folder / f"step-{step:09d}")
                self.log("checkpoint", step=step, seconds=round(time.time() - started, 3))
            self.sum(0)  # nobody goes on, or away, before it has its name
        getattr(elastic.progress, "checkpoint", bool)()

    def _publish(self, partial: Path, path: Path) -> None:
        if elastic.fence:
            elastic.fence.check()
        if not path.exists():  # the last step may have been saved already
            partial.rename(path)
            folder = os.open(self.folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        for old in [f"step-{step:09d}" for step in self._steps()[:-KEPT]]:
            shutil.rmtree(self.folder / old)
        for abandoned in self.folder.glob(".partial-*"):
            shutil.rmtree(abandoned)

    def _steps(self) -> list[int]:
        return sorted(int(found[1]) for name in os.listdir(self.folder) if (found := FOLDER.fullmatch(name)))


def sharded() -> Any:
    """Snapshots of sharded states, of the runtime that the chart mounts."""
    from bireme_runtime.elastic.snapshots import sharded

    return sharded


def main() -> None:
    args = arguments()
    run = Run(args.checkpoints)
    if args.batch_size < run.world_size:
        raise SystemExit(f"error: --batch-size {args.batch_size} is less than the {run.world_size} processes")
    torch.manual_seed(args.seed)
    model = shard(GPT(args.length, args.layers, args.width, args.heads).to(run.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    train(run, args, model, optimizer, run.resume(model, optimizer))


def shard(model: GPT) -> GPT:
    """Give each process its part of each parameter; a layer is whole only while it computes."""
    on_gpu = next(model.parameters()).is_cuda
    again = on_gpu or hasattr(torch.cpu.Stream, "record_event")
    if not again:
        # Torch 2.6 lacks these on CPUs, where nothing has to wait. It cannot gather twice there either.
        torch.cpu.Stream.record_event = torch.cpu.Stream.wait_event = lambda *_: None
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if on_gpu else MixedPrecisionPolicy()
    mesh = torch.distributed.init_device_mesh(
        "cuda" if on_gpu else "cpu", (torch.distributed.get_world_size(),)
    )
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    # Gloo cannot average, so torch 2.6 sums there and averages on GPUs. A divisor of one sums everywhere.
    for part in (*model.blocks, model):
        name = "set_gradient_divide_factor"
        getattr(part, name if hasattr(part, name) else "set_reduce_scatter_divide_factor")(1.0)
        # Newer torch would multiply in the collective, which gloo cannot do either.
        getattr(part, "set_force_sum_reduction_for_comms", bool)(True)
    return model


def train(
    run: Run, args: argparse.Namespace, model: GPT, optimizer: torch.optim.Optimizer, step: int
) -> None:
    """Train from ``step`` to the end."""
    rows = text(args.data, args.data_bytes, args.length)
    training = rows[: int(len(rows) * (1 - HELD_OUT))]
    steps_per_epoch = len(training) // args.batch_size
    if not steps_per_epoch:
        raise SystemExit(f"error: {len(training)} rows of text are less than --batch-size {args.batch_size}")
    steps = args.steps or args.epochs * steps_per_epoch

    def state() -> elastic.State:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    while step < steps:
        started = time.monotonic()
        epoch, position = divmod(step, steps_per_epoch)
        order = torch.randperm(
            len(training), generator=torch.Generator().manual_seed(args.seed * 100_003 + epoch)
        )
        batch = order[position * args.batch_size :][: args.batch_size]
        mine = training[batch[run.rank :: run.world_size]]
        losses = loss_of(model, mine.to(run.device))
        optimizer.zero_grad()
        # Gradients are summed over the processes: this is the mean over the tokens of the global batch.
        (losses / (args.batch_size * args.length)).backward()
        optimizer.step()
        step += 1
        time.sleep(args.step_seconds)
        # What was read, whoever read it: equal for any number of processes.
        data = sum(zlib.crc32(row.numpy().tobytes()) for row in mine)
        total, count, data = run.sum(losses.item(), len(mine) * args.length, data)
        loss = total / count
        if elastic.progress:
            elastic.progress.step(step, loss, total=steps)
        if run.leads:
            seconds = time.monotonic() - started
            run.log(
                "step",
                step=step,
                steps=steps,
                epoch=epoch,
                loss=round(loss, 6),
                tokens=int(count),
                data=int(data),
                samples_per_second=round(len(batch) / seconds, 1),
                tokens_per_second=round(count / seconds),
            )
        run.step_done(step, state, due=step % args.checkpoint_every == 0)

    run.finish(step, state, held_out_loss=round(measure(run, args, model, rows[len(training) :]), 4))


def loss_of(model: GPT, rows: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all tokens; each row has one more, the last one to be foretold."""
    logits = model(rows[:, :-1].long())
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), rows[:, 1:].flatten().long(), reduction="sum"
    )


@torch.no_grad()
def measure(run: Run, args: argparse.Namespace, model: GPT, rows: torch.Tensor) -> float:
    """The mean loss of a token of ``rows``, of one batch at most."""
    mine = rows[: args.batch_size][run.rank :: run.world_size]
    # All processes call the model, even one without rows.
    losses = loss_of(model, (mine if len(mine) else rows[:1]).to(run.device)).item() * bool(len(mine))
    total, count = run.sum(losses, len(mine) * args.length)
    return total / count


def text(folder: Path, most: int, length: int) -> torch.Tensor:
    """Up to ``most`` bytes of the files in ``folder``, as rows of ``length`` and one."""
    found = bytearray()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".txt", ".md")):
        if len(found) >= most:
            break
        found += path.read_bytes()
    count = min(len(found), most) // (length + 1)
    if count < math.ceil(1 / HELD_OUT):
        raise SystemExit(f"error: --data {folder}: {len(found)} bytes of *.py, *.txt and *.md are too few")
    return torch.frombuffer(found, dtype=torch.uint8)[: count * (length + 1)].view(count, length + 1)


def arguments() -> argparse.Namespace:
    parser = elastic.arguments(__doc__)
    library = Path(sysconfig.get_path("stdlib"))
    parser.add_argument("--data", type=Path, default=library, help="folder of text (default: %(default)s)")
    parser.add_argument(
        "--data-bytes", type=int, default=4_000_000, help="read at most (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, help="train so many steps, whatever --epochs says")
    parser.add_argument("--batch-size", type=int, default=12, help="rows of a step, of all workers together")
    parser.add_argument("--length", type=int, default=64, help="tokens of a row (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="(default: %(default)s)")
    parser.set_defaults(epochs=1, checkpoint_every=20)
    return parser.parse_args()


if __name__ == "__main__":
    elastic.execute(main)
