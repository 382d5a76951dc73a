"""Train torchvision's Mask R-CNN on images with COCO's annotations, with Horovod, on any number of processes.

--data holds annotations/instances_<split>.json and <split>/<image> for the splits --train and --val. The
learning rate is said for a global batch of 8 images and follows the global batch (processes x --batch-size);
it warms up over the first steps and falls tenfold after the epochs of --lr-epochs. A run that was interrupted
goes on with the images of its epoch that it has not seen, also with another number of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import elastic
import horovod.torch as hvd
import horovod_run
import numpy as np
import torch
from imagenet import Progress, Remaining, ignore_term, precision, start_decoders
from PIL import Image
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops.misc import FrozenBatchNorm2d
from torchvision.transforms.functional import to_tensor

BATCH_OF_LEARNING_RATE = 8
"""The global batch, in images, to which --learning-rate refers, as in the reference models."""
TRAINED_LAYERS = 3
"""Trainable layers of a pretrained backbone; without pretrained weights all 5 are trained."""
MASK_THRESHOLD = 0.5
Target = dict[str, torch.Tensor]


class CocoImages(Dataset[tuple[torch.Tensor, Target]]):
    """The images of a split with their objects; for training, only images with objects, flipped at random."""

    def __init__(self, data: Path, split: str, training: bool) -> None:
        self.annotations = data / "annotations" / f"instances_{split}.json"
        self._folder, self._training = data / split, training
        try:
            facts = json.loads(self.annotations.read_text())
        except (FileNotFoundError, json.JSONDecodeError) as error:
            raise SystemExit(
                f"error: --data {data} needs annotations/instances_{split}.json in COCO's format: {error}"
            ) from None
        self.categories = sorted(category["id"] for category in facts["categories"])
        objects: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for each in facts["annotations"]:
            # Boxes without an area have no mask; crowds count only in the evaluation.
            if not each.get("iscrowd") and min(each["bbox"][2:]) >= 1:
                objects[each["image_id"]].append(each)
        # As text: each decoding process gets a copy, and copying a million small objects takes minutes.
        self._images = [
            (image["id"], image["file_name"], json.dumps(objects[image["id"]]))
            for image in sorted(facts["images"], key=lambda image: int(image["id"]))
            if objects[image["id"]] or not training
        ]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Target]:
        number, name, objects = self._images[index]
        image = to_tensor(Image.open(self._folder / name).convert("RGB"))
        target = self._target(number, json.loads(objects), *image.shape[1:])
        if self._training and torch.rand(()) < 0.5:
            return image.flip(-1), flipped(target, image.shape[2])
        return image, target

    def _target(self, number: int, objects: list[dict[str, Any]], height: int, width: int) -> Target:
        corners = [(x, y, x + w, y + h) for x, y, w, h in (each["bbox"] for each in objects)]
        masks = [mask_of(each["segmentation"], height, width) for each in objects]
        return {
            "image_id": torch.tensor(number),
            "boxes": torch.tensor(corners, dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor([self.categories.index(each["category_id"]) + 1 for each in objects]),
            "masks": torch.from_numpy(np.array(masks, dtype=np.uint8).reshape(-1, height, width)),
        }


def mask_of(segmentation: Any, height: int, width: int) -> Any:
    """An object's mask from its polygons, or from COCO's run lengths."""
    if isinstance(segmentation, dict) and isinstance(segmentation["counts"], str):
        return rle.decode(segmentation)
    encoded = rle.frPyObjects(segmentation, height, width)
    return rle.decode(rle.merge(encoded) if isinstance(encoded, list) else encoded)


def flipped(target: Target, width: int) -> Target:
    """The objects of the mirrored image."""
    left, top, right, bottom = target["boxes"].unbind(1)
    boxes = torch.stack([width - right, top, width - left, bottom], 1)
    return {**target, "boxes": boxes, "masks": target["masks"].flip(-1)}


def as_lists(batch: list[tuple[torch.Tensor, Target]]) -> tuple[list[torch.Tensor], list[Target]]:
    """Keep the images of a batch in a list, because their sizes differ."""
    images, targets = zip(*batch, strict=True)
    return list(images), list(targets)


class Training:
    """Model, data and progress of this process."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        if args.workers:
            start_decoders()
        self.run = horovod_run.Run(args.checkpoints)
        self.progress = Progress()
        self.accuracy: dict[str, float] = {}
        torch.manual_seed(args.seed + self.run.rank)
        self.train_images = CocoImages(args.data, args.train, training=True)
        self.val_images = CocoImages(args.data, args.val, training=False)
        if self.train_images.categories != self.val_images.categories:
            raise SystemExit(
                f"error: --data {args.data}: {args.train} and {args.val} have different categories"
            )
        self.global_batch = self.run.world_size * args.batch_size
        if len(self.train_images) < self.global_batch:
            raise SystemExit(
                f"error: {args.data}/{args.train} has {len(self.train_images)} images with objects, a global "
                f"batch takes {self.global_batch}: lower --batch-size, or start fewer workers"
            )
        self.model = network(args, len(self.train_images.categories)).to(self.run.device)
        trained = [(name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]
        sgd = torch.optim.SGD(
            [weight for _, weight in trained],
            args.learning_rate,
            args.momentum,
            weight_decay=args.weight_decay,
        )
        self.optimizer: Any = hvd.DistributedOptimizer(sgd, named_parameters=trained)
        self.precision = precision(args.precision, self.run.device)
        self.scaler = torch.amp.GradScaler(self.run.device.type, enabled=self.precision is torch.float16)
        if restored := self.run.restore():
            self._restore(restored)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        self.events = elastic.EventFiles(
            self.run, args.tensorboard or args.checkpoints / "tensorboard", self.progress.step
        )

    def state(self) -> elastic.State:
        """The state for the next start; the learning rate and the order of the images follow from it."""
        return {
            "backbone": self.args.backbone,
            "categories": self.train_images.categories,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "progress": asdict(self.progress),
            "accuracy": self.accuracy,
        }

    def _restore(self, state: elastic.State) -> None:
        theirs, ours = (
            (state["backbone"], state["categories"]),
            (self.args.backbone, self.train_images.categories),
        )
        if theirs != ours:
            described = [
                f"{backbone} with {len(categories)} categories" for backbone, categories in (theirs, ours)
            ]
            raise SystemExit(
                f"error: {self.args.checkpoints} holds a run of {described[0]}, not of {described[1]}: "
                "name another --checkpoints folder"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty where the precision needs none
            self.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])
        self.accuracy = state["accuracy"]

    def fit(self) -> None:
        """Train to the last epoch or step, measuring as often as asked, and mark the run as done."""
        progress, args = self.progress, self.args
        while progress.epoch < args.epochs and not self._has_all_steps():
            self._epoch()
            if self._has_all_steps():
                break
            progress.epoch, progress.seen = progress.epoch + 1, 0
            # Saved before the evaluation, which can be repeated more cheaply than the training.
            self.run.save(progress.step, self.state)
            if progress.epoch % args.evaluate_every == 0:
                self._measure()
        if progress.measured < progress.step:
            self._measure()
        self.run.finish(progress.step, self.state, epoch=progress.epoch, **self.accuracy)

    def _has_all_steps(self) -> bool:
        return bool(self.args.steps) and self.progress.step >= self.args.steps

    def _epoch(self) -> None:
        progress, args = self.progress, self.args
        sampler = Remaining(len(self.train_images), self.run, args.seed, progress, self.global_batch)
        self.model.train()
        logged_step, logged = progress.step, time.monotonic()
        for images, targets in self._loader(self.train_images, sampler, args.batch_size):
            rate = self._set_rate()
            losses = self._step(images, targets)
            progress.step += 1
            progress.seen += self.global_batch
            time.sleep(args.step_seconds)
            if progress.step % args.log_every == 0:
                seen = (progress.step - logged_step) * self.global_batch
                self._log_step(losses, rate, seen / (time.monotonic() - logged))
                logged_step, logged = progress.step, time.monotonic()
            self.run.step_done(progress.step, self.state, due=progress.step % args.checkpoint_every == 0)
            if self._has_all_steps():
                return

    def _step(self, images: list[torch.Tensor], targets: list[Target]) -> dict[str, float]:
        """One optimizer step; the losses of this process by name."""
        device = self.run.device
        images = [image.to(device, non_blocking=True) for image in images]
        targets = [
            {key: part.to(device, non_blocking=True) for key, part in each.items()} for each in targets
        ]
        with torch.autocast(device.type, self.precision, enabled=self.precision is not torch.float32):
            losses: dict[str, torch.Tensor] = self.model(images, targets)
        total = torch.stack(list(losses.values())).sum()
        if not math.isfinite(total.item()):
            raise SystemExit(
                f"error: the loss of step {self.progress.step + 1} is {total.item()}: "
                "lower --learning-rate, or lengthen --warm-up-steps"
            )
        self.optimizer.zero_grad()
        self.scaler.scale(total).backward()
        # Gradients are averaged over the processes before they are unscaled and clipped.
        self.optimizer.synchronize()
        self.scaler.unscale_(self.optimizer)
        if self.args.gradient_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.args.gradient_clip)
        with self.optimizer.skip_synchronize():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        return {"loss": total.item()} | {name: loss.item() for name, loss in losses.items()}

    def _set_rate(self) -> float:
        """Linear in the global batch; a linear warm-up in steps; tenfold less after each of --lr-epochs."""
        args, step = self.args, self.progress.step
        rate = args.learning_rate * self.global_batch / BATCH_OF_LEARNING_RATE
        if step < args.warm_up_steps:
            rate *= args.warm_up_factor + (1 - args.warm_up_factor) * step / args.warm_up_steps
        rate *= 0.1 ** sum(self.progress.epoch >= epoch for epoch in args.lr_epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return float(rate)

    def _log_step(self, losses: Mapping[str, float], rate: float, speed: float) -> None:
        sums = self.run.sum(*losses.values())
        facts = {
            **{name: round(total / self.run.world_size, 5) for name, total in zip(losses, sums, strict=True)},
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
        """COCO's mean average precision of boxes and masks; each process looks at its share of the images."""
        # Each process has its own statistics of batches.
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.model.eval()
        mine = list(range(self.run.rank, len(self.val_images), self.run.world_size))
        found = []
        for images, targets in self._loader(self.val_images, mine, 1):
            seen = self.model([image.to(self.run.device) for image in images])
            for target, objects in zip(targets, seen, strict=True):
                found += self._as_coco(int(target["image_id"]), objects)
        everything = [each for part in hvd.allgather_object(found, name="found") for each in part]
        if self.run.leads:
            self.accuracy = mean_average_precision(self.val_images.annotations, everything)
            progress = self.progress
            self.run.log("validate", step=progress.step, epoch=progress.epoch, **self.accuracy)
            self.events.record(progress.step, self.accuracy)
        self.accuracy = hvd.broadcast_object(self.accuracy, root_rank=0, name="accuracy")
        self.progress.measured = self.progress.step

    def _as_coco(self, number: int, objects: Target) -> list[dict[str, Any]]:
        """The model's detections in one image, in COCO's format for results."""
        masks = (objects["masks"][:, 0] > MASK_THRESHOLD).byte().cpu().numpy()
        parts = zip(objects["boxes"].tolist(), objects["labels"], objects["scores"], masks, strict=True)
        return [
            {
                "image_id": number,
                "category_id": self.train_images.categories[int(label) - 1],
                "bbox": [left, top, right - left, bottom - top],
                "score": float(score),
                "segmentation": rle.encode(np.asfortranarray(mask)),
            }
            for (left, top, right, bottom), label, score, mask in parts
        ]

    def _loader(self, images: CocoImages, order: Any, batch_size: int) -> DataLoader[Any]:
        return DataLoader(
            images,
            batch_size,
            sampler=order,
            collate_fn=as_lists,
            num_workers=self.args.workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=ignore_term,
            multiprocessing_context="forkserver" if self.args.workers else None,
        )


def network(args: argparse.Namespace, categories: int) -> MaskRCNN:
    """Mask R-CNN over a feature pyramid; the backbone starts from --backbone-weights if there are any."""
    weights = None
    if args.backbone_weights:
        try:
            weights = torch.load(args.backbone_weights, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError) as error:
            raise SystemExit(f"error: --backbone-weights {args.backbone_weights}: {error}") from None
    # A process has too few images for a mean and deviation, so the pretrained ones stay.
    backbone = resnet_fpn_backbone(
        backbone_name=args.backbone,
        weights=None,
        norm_layer=FrozenBatchNorm2d if weights else nn.BatchNorm2d,
        trainable_layers=TRAINED_LAYERS if weights else 5,
    )
    if weights:
        unknown = backbone.body.load_state_dict(weights, strict=False).missing_keys
        if unknown:
            raise SystemExit(
                f"error: --backbone-weights {args.backbone_weights} has no {unknown[0]}: "
                f"it is not of {args.backbone}"
            )
    short, long = args.image_size
    return MaskRCNN(
        backbone,
        num_classes=categories + 1,
        min_size=short,
        max_size=long,
        rpn_post_nms_top_n_train=2 * args.proposals,
        rpn_post_nms_top_n_test=args.proposals,
        box_batch_size_per_image=args.regions,
    )


def mean_average_precision(annotations: Path, found: list[dict[str, Any]]) -> dict[str, float]:
    """COCO's mAP, over IoU 0.5 to 0.95 and at 0.5, of boxes and masks; 0 if nothing was found."""
    accuracy = {}
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for events
        truth = COCO(str(annotations))
        results = truth.loadRes(found) if found else None
        for kind in ("bbox", "segm"):
            scores = [0.0, 0.0]
            if results:
                evaluation = COCOeval(truth, results, kind)
                evaluation.evaluate()
                evaluation.accumulate()
                evaluation.summarize()
                scores = evaluation.stats[:2]
            accuracy |= {
                f"{kind}_map": round(float(scores[0]), 4),
                f"{kind}_map50": round(float(scores[1]), 4),
            }
    return accuracy


def arguments() -> argparse.Namespace:
    parser = elastic.arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with annotations/ and the images")
    parser.add_argument("--train", default="train2017", metavar="SPLIT", help="(default: %(default)s)")
    parser.add_argument("--val", default="val2017", metavar="SPLIT", help="(default: %(default)s)")
    parser.add_argument(
        "--backbone", default="resnet50", help="ResNet of torchvision.models (default: %(default)s)"
    )
    parser.add_argument(
        "--backbone-weights", type=Path, metavar="FILE", help="its state dictionary, learned on ImageNet"
    )
    parser.add_argument(
        "--image-size",
        type=int,
        nargs=2,
        default=(800, 1333),
        metavar=("SHORT", "LONG"),
        help="pixels that the short side gets, unless the long one got longer (default: 800 1333)",
    )
    parser.add_argument(
        "--proposals",
        type=int,
        default=1000,
        help="of an image that are looked at; twice as many in training (default: %(default)s)",
    )
    parser.add_argument(
        "--regions", type=int, default=512, help="of an image that are learned from (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, help="stop after so many steps, whatever --epochs says")
    parser.add_argument(
        "--batch-size", type=int, default=4, help="images of one process (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=4, help="decoding processes of each process; 0 decodes in it"
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=0.01,
        help=f"for a global batch of {BATCH_OF_LEARNING_RATE} (default: %(default)s)",
    )
    parser.add_argument(
        "--warm-up-steps",
        type=int,
        default=1000,
        help="until the learning rate is reached (default: %(default)s)",
    )
    parser.add_argument(
        "--warm-up-factor",
        type=float,
        default=0.001,
        help="of the learning rate at first (default: %(default)s)",
    )
    parser.add_argument(
        "--lr-epochs",
        type=int,
        nargs="*",
        default=[16, 20],
        metavar="EPOCH",
        help="after which the learning rate is a tenth (default: 16 20)",
    )
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument(
        "--gradient-clip", type=float, default=0, help="largest norm of the gradients; 0: any"
    )
    parser.add_argument("--precision", choices=["auto", "bf16", "fp16", "fp32"], default="fp32")
    parser.add_argument(
        "--evaluate-every", type=int, default=1, metavar="EPOCHS", help="(default: %(default)s)"
    )
    parser.add_argument("--log-every", type=int, default=10, help="steps between two lines of the log")
    parser.set_defaults(epochs=24, checkpoint_every=1000)
    args = parser.parse_args()
    known = [
        name for name in resnet.__all__ if name.startswith(("resnet", "resnext", "wide")) and name.islower()
    ]
    if args.backbone not in known:
        parser.error(f"--backbone {args.backbone}: torchvision has no such ResNet; it has {', '.join(known)}")
    return args


def main() -> None:
    Training(arguments()).fit()


if __name__ == "__main__":
    horovod_run.execute(main)
