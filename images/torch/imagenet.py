"""Train an image classifier of torchvision on a folder of images, on any number of workers.

--data holds train/<class>/<image> and val/<class>/<image>. The learning rate follows the global batch
(processes x --batch-size x --accumulate), which changes when workers come or go; an epoch that was
interrupted goes on with the images it has not seen.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import elastic
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue."""


@dataclass
class Progress:
    """Optimizer steps, complete epochs, images seen of the next epoch, and epochs evaluated."""

    step: int = 0
    epoch: int = 0
    seen: int = 0
    measured: int = 0


class Remaining(Sampler[int]):
    """The indices that remain for one process in an epoch, in whole global batches.

    The order follows from seed and epoch; every ``world_size``-th image from ``seen`` on is this process's.
    """

    def __init__(
        self, images: int, run: elastic.Run, seed: int, progress: Progress, global_batch: int
    ) -> None:
        order = torch.randperm(images, generator=torch.Generator().manual_seed(seed + progress.epoch))
        steps = (images - progress.seen) // global_batch
        self.steps = steps
        self._mine = order[progress.seen :][: steps * global_batch][run.rank :: run.world_size].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self._mine)

    def __len__(self) -> int:
        return len(self._mine)


class Training:
    """Model, data and progress of this process."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        if args.workers:
            start_decoders()
        self.run = elastic.Run(args.checkpoints)
        self.progress = Progress()
        self.accuracy = self.best = 0.0
        torch.manual_seed(args.seed)
        torch.backends.cudnn.benchmark = True
        self.train_images, self.val_images = folders(args)
        self.global_batch = self.run.world_size * args.batch_size * args.accumulate
        if len(self.train_images) < self.global_batch:
            raise SystemExit(
                f"error: {args.data}/train has {len(self.train_images)} images, a global batch takes "
                f"{self.global_batch}: lower --batch-size or --accumulate, or start fewer workers"
            )
        classes = len(self.train_images.classes)
        self.network = models.get_model(args.arch, num_classes=classes).to(self.run.device)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=args.learning_rate,
            momentum=0.9,
            weight_decay=args.weight_decay,
            nesterov=True,
        )
        self.precision = precision(args.precision, self.run.device)
        self.scaler = torch.amp.GradScaler(self.run.device.type, enabled=self.precision is torch.float16)
        if restored := self.run.restore():
            self._restore(restored)
        devices = [self.run.device] if self.run.device.type == "cuda" else None
        self.model = DistributedDataParallel(self.network, device_ids=devices)
        self.events = elastic.EventFiles(
            self.run, args.tensorboard or args.checkpoints / "tensorboard", self.progress.step
        )

    def state(self) -> elastic.State:
        """The state for the next start; the learning rate and the order of the images follow from it."""
        return {
            "arch": self.args.arch,
            "classes": self.train_images.classes,
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "progress": asdict(self.progress),
            "global_batch": self.global_batch,
            "accuracy": self.accuracy,
            "best": self.best,
        }

    def _restore(self, state: elastic.State) -> None:
        theirs, ours = (state["arch"], state["classes"]), (self.args.arch, self.train_images.classes)
        if theirs != ours:
            described = [f"{arch} with {len(classes)} classes" for arch, classes in (theirs, ours)]
            raise SystemExit(
                f"error: {self.args.checkpoints} holds a run of {described[0]}, not of {described[1]}: "
                "name another --checkpoints folder"
            )
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty where the precision needs none
            self.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])
        self.accuracy, self.best = state["accuracy"], state["best"]
        if state["global_batch"] != self.global_batch and self.run.leads:
            self.run.log(
                "rescale",
                step=self.progress.step,
                global_batch=self.global_batch,
                was=state["global_batch"],
                learning_rate=self._peak_rate(),
            )

    def fit(self) -> None:
        """Train to the last epoch, measuring accuracy after each, and mark the run as done."""
        progress = self.progress
        while True:
            if progress.measured < progress.epoch:
                self._measure()
            if progress.epoch >= self.args.epochs:
                break
            self._epoch()
            progress.epoch, progress.seen = progress.epoch + 1, 0
            # Saved before the evaluation, which can be repeated more cheaply than the training.
            self.run.save(progress.step, self.state)
        self.run.finish(
            progress.step, self.state, epoch=progress.epoch, accuracy=self.accuracy, best=self.best
        )

    def _epoch(self) -> None:
        progress, args = self.progress, self.args
        sampler = Remaining(len(self.train_images), self.run, args.seed, progress, self.global_batch)
        batches = iter(loader(self.train_images, args, sampler))
        self.model.train()
        logged_step, logged = progress.step, time.monotonic()
        for _ in range(sampler.steps):
            rate = self._set_rate()
            loss = self._step(batches)
            progress.step += 1
            progress.seen += self.global_batch
            time.sleep(args.step_seconds)
            if progress.step % args.log_every == 0:
                mean_loss = self.run.sum(loss.item())[0] / self.run.world_size
                images = (progress.step - logged_step) * self.global_batch
                self._log_step(mean_loss, rate, images / (time.monotonic() - logged))
                logged_step, logged = progress.step, time.monotonic()
            self.run.step_done(progress.step, self.state, due=progress.step % args.checkpoint_every == 0)

    def _step(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """One optimizer step: ``--accumulate`` batches; the mean loss of this process."""
        total = torch.zeros((), device=self.run.device)
        for micro in range(1, self.args.accumulate + 1):
            images, labels = (part.to(self.run.device, non_blocking=True) for part in next(batches))
            # Gradients are exchanged once, with the last batch.
            with nullcontext() if micro == self.args.accumulate else self.model.no_sync():
                with self._autocast():
                    loss = cross_entropy(self.model(images), labels, self.args.label_smoothing)
                self.scaler.scale(loss / self.args.accumulate).backward()
            total += loss.detach() / self.args.accumulate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.run.device.type, self.precision, enabled=self.precision is not torch.float32
        )

    def _peak_rate(self) -> float:
        return self.args.learning_rate * self.global_batch / 256

    def _set_rate(self) -> float:
        """Linear warm-up, then a cosine, over the images seen, so that the size of a step does not matter."""
        epochs = self.progress.epoch + self.progress.seen / len(self.train_images)
        warm_up = min(self.args.warm_up, self.args.epochs)
        if epochs < warm_up:
            share = (epochs + self.global_batch / len(self.train_images)) / warm_up
        else:
            share = (1 + math.cos(math.pi * (epochs - warm_up) / max(self.args.epochs - warm_up, 1e-9))) / 2
        rate = self._peak_rate() * min(share, 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _log_step(self, loss: float, rate: float, speed: float) -> None:
        facts = {
            "loss": round(loss, 5),
            "learning_rate": round(rate, 7),
            "samples_per_second": round(speed, 2),
            "global_batch": self.global_batch,
        }
        if self.run.leads:
            position = asdict(self.progress)
            self.run.log("step", **position, **facts)
            self.events.record(self.progress.step, facts | {"world_size": self.run.world_size})

    @torch.no_grad()
    def _measure(self) -> None:
        """Accuracy on val/, each process measuring its share; every image counts once."""
        for buffer in self.network.buffers():
            torch.distributed.broadcast(buffer, 0)
        self.network.eval()
        mine = list(range(self.run.rank, len(self.val_images), self.run.world_size))
        first = fifth = 0
        for images, labels in loader(self.val_images, self.args, mine):
            with self._autocast():
                scores = self.network(images.to(self.run.device, non_blocking=True))
            ranked = scores.topk(min(5, scores.shape[1])).indices == labels.to(self.run.device).unsqueeze(1)
            first += int(ranked[:, 0].sum())
            fifth += int(ranked.any(1).sum())
        top1, top5 = (count / len(self.val_images) for count in self.run.sum(first, fifth))
        self.accuracy, self.best = round(top1, 4), max(self.best, round(top1, 4))
        self.progress.measured = self.progress.epoch
        if self.run.leads:
            facts = {"accuracy": self.accuracy, "accuracy_top5": round(top5, 4)}
            self.run.log("validate", step=self.progress.step, epoch=self.progress.epoch, **facts)
            self.events.record(self.progress.step, facts)


def cross_entropy(scores: Any, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The loss; GoogLeNet and Inception return scores of side branches too, which count 0.3."""
    main, *sides = [scores] if isinstance(scores, torch.Tensor) else scores
    losses = [nn.functional.cross_entropy(each, labels, label_smoothing=smoothing) for each in (main, *sides)]
    return losses[0] + 0.3 * sum(losses[1:])


class Images(ImageFolder):
    """An image folder of which the list of files is kept in ``index``, for as long as the run lasts.

    Listing a million files takes minutes on a network file system, at every restart; and positions in an
    epoch mean nothing when files come and go.
    """

    def __init__(self, folder: Path, index: Path, transform: Callable[..., Any]) -> None:
        self._index = index
        super().__init__(str(folder), transform)

    def make_dataset(self, folder: str, class_to_idx: dict[str, int], *rest: Any, **options: Any) -> Any:
        """The files and their classes, as torchvision asks for them."""
        if self._index.exists():
            listed = json.loads(self._index.read_text())
        else:
            found = super().make_dataset(folder, class_to_idx, *rest, **options)
            listed = [(os.path.relpath(path, folder), label) for path, label in found]
            elastic.publish(self._index, lambda file: file.write(json.dumps(listed).encode()))
        return [(os.path.join(folder, path), label) for path, label in listed]


def folders(args: argparse.Namespace) -> tuple[Images, Images]:
    """The images to train with, varied at random, and those to measure accuracy with."""
    normal = [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    varied = [transforms.RandomResizedCrop(args.image_size), transforms.RandomHorizontalFlip()]
    centred = [transforms.Resize(round(args.image_size * 256 / 224)), transforms.CenterCrop(args.image_size)]
    indices = {part: args.checkpoints / f"{part}.json" for part in ("train", "val")}
    try:
        train = Images(args.data / "train", indices["train"], transforms.Compose([*varied, *normal]))
        val = Images(args.data / "val", indices["val"], transforms.Compose([*centred, *normal]))
    except FileNotFoundError as error:
        raise SystemExit(
            f"error: --data {args.data} needs train/<class>/ and val/<class>/ with images: {error}"
        ) from None
    if train.classes != val.classes:
        odd = ", ".join(sorted(set(train.classes) ^ set(val.classes))[:5])
        raise SystemExit(f"error: --data {args.data}: train/ and val/ don't have the same classes: {odd}")
    return train, val


def start_decoders() -> None:
    """Start the server that forks the decoding processes, so that SIGTERM does not end it.

    torchrun signals the whole process group, and the step in progress still needs its images. Decoding
    processes that were forked from this one would hold its sockets open when it is killed, and its peers
    would go on waiting for it.
    """
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forkserver.ensure_running()
    signal.signal(signal.SIGTERM, before)


def ignore_term(_: int) -> None:
    """Initialize a decoding process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def loader(
    images: Dataset[Any], args: argparse.Namespace, order: Sampler[int] | list[int]
) -> DataLoader[Any]:
    """Batches of ``images`` in that order, decoded by --workers processes."""
    return DataLoader(
        images,
        args.batch_size,
        sampler=order,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=ignore_term,
        multiprocessing_context="forkserver" if args.workers else None,
    )


def precision(name: str, device: torch.device) -> torch.dtype:
    """The type to compute in; ``auto`` is bfloat16 where the GPU has it, else float16, and float32 on CPU."""
    if name != "auto":
        return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
    if device.type != "cuda":
        return torch.float32
    # Before compute capability 8.0 bfloat16 is emulated.
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def arguments() -> argparse.Namespace:
    parser = elastic.arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and val/")
    parser.add_argument(
        "--arch", default="resnet50", help="classifier of torchvision.models (default: %(default)s)"
    )
    parser.add_argument("--image-size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--batch-size", type=int, default=32, help="images of one process at a time")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of one process that make a step")
    parser.add_argument(
        "--workers", type=int, default=4, help="decoding processes of each process; 0 decodes in it"
    )
    parser.add_argument("--learning-rate", type=float, default=0.1, help="for a global batch of 256")
    parser.add_argument("--warm-up", type=float, default=5, help="epochs until the learning rate is reached")
    parser.add_argument("--weight-decay", type=float, default=5e-5)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--precision", choices=["auto", "bf16", "fp16", "fp32"], default="auto")
    parser.add_argument("--log-every", type=int, default=10, help="steps between two lines of the log")
    parser.set_defaults(epochs=90, checkpoint_every=500)
    args = parser.parse_args()
    if args.arch not in models.list_models(models):
        known = ", ".join(models.list_models(models))
        parser.error(f"--arch {args.arch}: torchvision has no such classifier; it has {known}")
    return args


def main() -> None:
    Training(arguments()).fit()


if __name__ == "__main__":
    elastic.execute(main)
