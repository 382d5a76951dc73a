"""Train a small Mask R-CNN with the command line of Tensorpack's and AWS's programs, with Horovod or alone.

    maskrcnn.py --logdir DIR --config DATA.BASEDIR=DIR TRAIN.BASE_LR=0.01 TRAINER=horovod …

It shows with few images and on CPUs what a job does with those programs' arguments. Its backbone has four
layers and no feature pyramid (MODE_FPN changes nothing), all images get one size, and the losses of DATA.VAL
stand for the precision. Rank 0 writes log.log, stats.json, event files and checkpoints into the folder
--logdir, which is emptied first.
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw
from tensorflow.keras import layers

HEIGHT, WIDTH, STRIDE = 144, 192, 16
ANCHORS = (32.0, 64.0, 112.0)
PROPOSALS = 16
# The defaults of both programs, as far as this one has a use for them.
CONFIG: dict[str, Any] = {
    "TRAINER": "replicated",
    "MODE_MASK": True,
    "MODE_FPN": True,
    "DATA.BASEDIR": "",
    "DATA.TRAIN": ("coco_train2017",),
    "DATA.VAL": ("coco_val2017",),
    "BACKBONE.WEIGHTS": "",
    "BACKBONE.NORM": "FreezeBN",
    "PREPROC.PREDEFINED_PADDING": False,
    "TRAIN.BASE_LR": 0.01,
    "TRAIN.BATCH_SIZE_PER_GPU": 1,
    "TRAIN.CHECKPOINT_PERIOD": 20,
    "TRAIN.EVAL_PERIOD": 50,
    "TRAIN.GRADIENT_CLIP": 0,
    "TRAIN.LR_EPOCH_SCHEDULE": None,
    "TRAIN.LR_SCHEDULE": [120000, 160000, 180000],
    "TRAIN.STEPS_PER_EPOCH": 500,
    "TRAIN.WARMUP": 1000,
}


def config_of(settings: list[str]) -> dict[str, Any]:
    """The configuration with these KEY=VALUE; the last one of a key counts."""
    config = dict(CONFIG)
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in config:
            raise SystemExit(f"error: --config {key}: unknown; there are {', '.join(config)}")
        config[key] = value if isinstance(CONFIG[key], str) else ast.literal_eval(value)
    return config


class Coco:
    """The images of a split that have objects, with boxes (top, left, bottom, right), classes and masks."""

    def __init__(self, base: Path, split: str) -> None:
        split = split.removeprefix("coco_")
        facts = json.loads((base / f"annotations/instances_{split}.json").read_text())
        self.classes = sorted(each["id"] for each in facts["categories"])
        self._folder = base / split
        objects: dict[int, list[Any]] = {}
        for each in facts["annotations"]:
            objects.setdefault(each["image_id"], []).append(each)
        self._images = [(each, objects[each["id"]]) for each in facts["images"] if each["id"] in objects]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any, Any]:
        facts, objects = self._images[index]
        image = Image.open(self._folder / facts["file_name"]).convert("RGB").resize((WIDTH, HEIGHT))
        x, y = WIDTH / facts["width"], HEIGHT / facts["height"]
        boxes, masks = [], []
        for each in objects:
            left, top, width, height = each["bbox"]
            boxes.append([top * y, left * x, (top + height) * y, (left + width) * x])
            masks.append(Image.new("L", (WIDTH, HEIGHT)))
            for polygon in each["segmentation"]:
                points = [(polygon[at] * x, polygon[at + 1] * y) for at in range(0, len(polygon), 2)]
                ImageDraw.Draw(masks[-1]).polygon(points, fill=1)
        labels = [self.classes.index(each["category_id"]) + 1 for each in objects]
        pixels = (np.asarray(image, dtype=np.float32) - 120) / 58
        found = [
            pixels,
            np.array(boxes, np.float32),
            np.array(labels, np.int32),
            np.array([*map(np.array, masks)]),
        ]
        return found[0], found[1], found[2], found[3].astype(np.float32)


def overlaps(some: Any, others: Any) -> Any:
    """Intersection over union of each box with each other one."""
    first, second = some[:, None], others[None]
    sides = tf.minimum(first[..., 2:], second[..., 2:]) - tf.maximum(first[..., :2], second[..., :2])
    both = tf.reduce_prod(tf.maximum(sides, 0), -1)
    areas = [tf.reduce_prod(each[..., 2:] - each[..., :2], -1) for each in (first, second)]
    return both / tf.maximum(areas[0] + areas[1] - both, 1e-3)


def shifts(boxes: Any, targets: Any) -> Any:
    """What has to be learnt to get from boxes to targets."""
    sizes, wanted = boxes[:, 2:] - boxes[:, :2], tf.maximum(targets[:, 2:] - targets[:, :2], 1)
    centers = (targets[:, 2:] + targets[:, :2] - boxes[:, 2:] - boxes[:, :2]) / 2
    return tf.concat([centers / sizes, tf.math.log(wanted / sizes)], 1)


def shifted(boxes: Any, shift: Any) -> Any:
    """The boxes that shifts lead to, inside the image."""
    sizes = boxes[:, 2:] - boxes[:, :2]
    centers = (boxes[:, 2:] + boxes[:, :2]) / 2 + shift[:, :2] * sizes
    half = tf.exp(tf.minimum(shift[:, 2:], 2.0)) * sizes / 2
    limits = tf.constant([HEIGHT, WIDTH] * 2, tf.float32)
    return tf.clip_by_value(tf.concat([centers - half, centers + half], 1), 0, limits)


def mean_over(losses: Any, chosen: Any) -> Any:
    """The mean of the losses that are chosen; 0 of none."""
    weights = tf.cast(chosen, tf.float32)
    return tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1)


class MaskRcnn(tf.keras.Model):  # type: ignore[misc]
    """Backbone, proposals, and the heads for classes, boxes and masks."""

    def __init__(self, classes: int, masks: bool) -> None:
        super().__init__()
        self._classes, self._masks = classes, masks
        conv = {"padding": "same", "activation": "relu"}
        # The first layer has the shape of ResNet's, so that pretrained weights fit.
        self.conv0 = layers.Conv2D(64, 7, 2, use_bias=False, **conv)
        self.rest = [layers.Conv2D(64, 3, 2, **conv) for _ in range(3)]
        self.rpn = layers.Conv2D(64, 3, **conv)
        self.rpn_class, self.rpn_box = layers.Conv2D(len(ANCHORS), 1), layers.Conv2D(4 * len(ANCHORS), 1)
        self.hidden = layers.Dense(128, activation="relu")
        self.head_class, self.head_box = layers.Dense(classes + 1), layers.Dense(4)
        self.mask_conv, self.mask_up = layers.Conv2D(64, 3, **conv), layers.Conv2DTranspose(64, 2, 2, **conv)
        self.mask_out = layers.Conv2D(classes, 1)
        rows, columns = np.mgrid[0 : HEIGHT // STRIDE, 0 : WIDTH // STRIDE] * STRIDE + STRIDE / 2
        centers = np.stack([rows, columns], -1).reshape(-1, 1, 2)
        half = np.array(ANCHORS).reshape(1, -1, 1) / 2
        self._anchors = np.concatenate([centers - half, centers + half], -1).reshape(-1, 4).astype("float32")

    def call(self, inputs: tuple[Any, Any, Any, Any]) -> dict[str, Any]:
        """The losses of one image."""
        image, boxes, labels, masks = inputs
        features = self.conv0(image[None])
        for layer in self.rest:
            features = layer(features)
        hidden = self.rpn(features)
        scores = tf.reshape(self.rpn_class(hidden), [-1])
        moves = tf.reshape(self.rpn_box(hidden), [-1, 4])
        near = overlaps(self._anchors, boxes)
        best = tf.reduce_max(near, 1)
        # The best anchor of each object counts, however small the overlap is.
        wanted = (best > 0.5) | tf.reduce_any((near > 0.1) & (near == tf.reduce_max(near, 0)), 1)
        costs = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(wanted, tf.float32), scores)
        to = shifts(self._anchors, tf.gather(boxes, tf.argmax(near, 1)))
        losses = {
            "rpn_losses/label_loss": mean_over(costs, wanted) + mean_over(costs, (best < 0.3) & ~wanted),
            "rpn_losses/box_loss": mean_over(tf.reduce_sum(tf.abs(moves - to), 1), wanted),
        }
        proposals = shifted(self._anchors, tf.stop_gradient(moves))
        kept = tf.image.non_max_suppression(proposals, tf.stop_gradient(scores), PROPOSALS, 0.7)
        proposals = tf.concat([tf.gather(proposals, kept), boxes], 0)
        near = overlaps(proposals, boxes)
        matched, inside = tf.argmax(near, 1), tf.reduce_max(near, 1) > 0.5
        classes = tf.where(inside, tf.gather(labels, matched), 0)
        regions = self._crop(features, proposals, 7)
        hidden = self.hidden(tf.reshape(regions, [-1, 7 * 7 * 64]))
        costs = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, self.head_class(hidden))
        proposals = tf.maximum(proposals, tf.concat([proposals[:, :2], proposals[:, :2] + 1], 1))
        moves = tf.abs(self.head_box(hidden) - shifts(proposals, tf.gather(boxes, matched)))
        losses["fastrcnn_losses/label_loss"] = mean_over(costs, inside) + mean_over(costs, ~inside)
        losses["fastrcnn_losses/box_loss"] = mean_over(tf.reduce_sum(moves, 1), inside)
        if self._masks:
            chosen = tf.where(inside)[:, 0]
            drawn = self.mask_out(self.mask_up(self.mask_conv(tf.gather(regions, chosen))))
            channels = tf.one_hot(tf.gather(classes, chosen) - 1, self._classes)
            drawn = tf.einsum("nhwc,nc->nhw", drawn, channels)
            of = tf.cast(tf.gather(matched, chosen), tf.int32)
            true = tf.image.crop_and_resize(
                masks[..., None], self._parts(tf.gather(proposals, chosen)), of, [14, 14]
            )[..., 0]
            costs = tf.nn.sigmoid_cross_entropy_with_logits(tf.round(true), drawn)
            losses["maskrcnn_loss/maskrcnn_loss"] = tf.reduce_mean(costs)
        return losses | {"total_cost": tf.add_n(list(losses.values()))}

    def _parts(self, boxes: Any) -> Any:
        return boxes / tf.constant([HEIGHT - 1, WIDTH - 1] * 2, tf.float32)

    def _crop(self, features: Any, boxes: Any, size: int) -> Any:
        nothing = tf.zeros(tf.shape(boxes)[0], tf.int32)
        return tf.image.crop_and_resize(features, self._parts(boxes), nothing, [size, size])


class Training:
    """Model, images and progress of this process."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.config = config = config_of(args.config)
        if config["TRAINER"] == "horovod":
            hvd.init()
        self.rank, self.size = (hvd.rank(), hvd.size()) if config["TRAINER"] == "horovod" else (0, 1)
        self.logdir = args.logdir
        if self.rank == 0:
            shutil.rmtree(self.logdir, ignore_errors=True)
            self.logdir.mkdir(parents=True)
            self.events = tf.summary.create_file_writer(str(self.logdir))
        tf.keras.utils.set_random_seed(7)
        base = Path(config["DATA.BASEDIR"])
        self.train, self.val = (
            [Coco(base, split) for split in config[f"DATA.{key}"]] for key in ("TRAIN", "VAL")
        )
        batch = self.size * config["TRAIN.BATCH_SIZE_PER_GPU"]
        schedule = config["TRAIN.LR_EPOCH_SCHEDULE"]
        if schedule:  # AWS's: a rate for one image, and a schedule in epochs
            self.steps = args.images_per_epoch // batch
            self.rate, self.epochs = config["TRAIN.BASE_LR"] * batch, schedule[-1][0]
            self.drops = [epoch for epoch, factor in schedule if factor]
        else:  # Tensorpack's: a rate for eight images, and a schedule in steps with eight images
            self.steps = config["TRAIN.STEPS_PER_EPOCH"]
            self.rate = config["TRAIN.BASE_LR"] * batch / 8
            *drops, last = (step * 8 // batch // self.steps for step in config["TRAIN.LR_SCHEDULE"])
            self.drops, self.epochs = drops, last
        self.model = MaskRcnn(len(self.train[0].classes), config["MODE_MASK"])
        self.model(self.train[0][0])
        self.log(f"Rank={self.rank}, Size={self.size}, Config: {config}")
        if config["BACKBONE.WEIGHTS"]:
            self.load(config["BACKBONE.WEIGHTS"])
        self.optimizer = tf.keras.optimizers.SGD(self.rate, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        if self.size > 1:
            hvd.broadcast_variables(self.model.variables, root_rank=0)
        self.gradient = tf.function(self._gradient, reduce_retracing=True)
        self.step, self.stats = 0, []

    def log(self, text: str) -> None:
        """Print a line; rank 0's are in log.log, too."""
        line = f"[{time.strftime('%m%d %H:%M:%S')}] {text}"
        print(line, flush=True)
        if self.rank == 0:
            with (self.logdir / "log.log").open("a") as file:
                file.write(f"{line}\n")

    def load(self, file: str) -> None:
        """Take what fits from pretrained weights, whose names are Tensorpack's."""
        with np.load(file) as weights:
            if "conv0/W" not in weights:
                raise SystemExit(f"error: BACKBONE.WEIGHTS={file} has no conv0/W: it is not of a ResNet")
            self.model.conv0.set_weights([weights["conv0/W"]])
        self.log(f"Restored conv0/W from {file}")

    def _gradient(self, image: Any, boxes: Any, labels: Any, masks: Any) -> tuple[dict[str, Any], list[Any]]:
        with tf.GradientTape() as tape:
            losses = self.model((image, boxes, labels, masks))
        variables = self.model.trainable_variables
        found = tape.gradient(losses["total_cost"], variables)
        return losses, [tf.zeros_like(v) if g is None else g for g, v in zip(found, variables, strict=True)]

    def fit(self) -> None:
        """All epochs, with evaluations and checkpoints after those that the configuration names."""
        saver = tf.train.Checkpoint(model=self.model)
        manager = tf.train.CheckpointManager(saver, str(self.logdir), 10, checkpoint_name="model")
        config = self.config
        for epoch in range(1, self.epochs + 1):
            self.log(f"Start Epoch {epoch} ...")
            began = time.monotonic()
            sums = [self._one_step(epoch) for _ in range(self.steps)]
            means = {name: float(np.mean([each[name] for each in sums])) for name in sums[0]}
            self.log(
                f"Epoch {epoch} (global_step {self.step}) finished, time:{time.monotonic() - began:.1f} s."
            )
            if config["TRAIN.EVAL_PERIOD"] and epoch % config["TRAIN.EVAL_PERIOD"] == 0:
                images = [split[index] for split in self.val for index in range(len(split))]
                costs = [float(self.gradient(*image)[0]["total_cost"]) for image in images]
                means["val_total_cost"] = float(np.mean(costs))
            if self.rank == 0:
                self._record(epoch, means | {"learning_rate": float(self.optimizer.learning_rate)})
                if epoch % config["TRAIN.CHECKPOINT_PERIOD"] == 0 or epoch == self.epochs:
                    self.log(f"Model saved to {manager.save(self.step)}.")
        self.log("Training has finished!")

    def _one_step(self, epoch: int) -> dict[str, float]:
        config, images = self.config, [(split, index) for split in self.train for index in range(len(split))]
        count = config["TRAIN.BATCH_SIZE_PER_GPU"]
        first = (self.step * self.size + self.rank) * count
        order = np.random.default_rng(first // len(images)).permutation(len(images))
        batch = [images[order[(first + at) % len(images)]] for at in range(count)]
        found = [self.gradient(*split[index]) for split, index in batch]
        gradients = [tf.add_n(list(each)) / count for each in zip(*(each for _, each in found), strict=True)]
        if self.size > 1:
            gradients = hvd.grouped_allreduce(gradients)
        if config["TRAIN.GRADIENT_CLIP"]:
            gradients, _ = tf.clip_by_global_norm(gradients, config["TRAIN.GRADIENT_CLIP"])
        self.step += 1
        self.optimizer.learning_rate = self.rate * 0.1 ** sum(epoch > drop for drop in self.drops)
        if self.step < config["TRAIN.WARMUP"]:
            self.optimizer.learning_rate = self.rate * self.step / config["TRAIN.WARMUP"]
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        losses = {name: float(np.mean([float(each[name]) for each, _ in found])) for name in found[0][0]}
        if not np.isfinite(losses["total_cost"]):
            raise SystemExit(
                f"error: the loss of step {self.step} is {losses['total_cost']}: lower TRAIN.BASE_LR"
            )
        return losses

    def _record(self, epoch: int, facts: dict[str, float]) -> None:
        self.stats.append({"epoch_num": epoch, "global_step": self.step, **facts})
        (self.logdir / "stats.json").write_text(json.dumps(self.stats))
        with self.events.as_default(step=self.step):
            for name, value in facts.items():
                tf.summary.scalar(name, value)
        self.events.flush()
        self.log(", ".join(f"{name}: {value:.5g}" for name, value in facts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logdir", type=Path, default=Path("train_log/maskrcnn"))
    parser.add_argument("--images_per_epoch", type=int, default=120000, help="with TRAIN.LR_EPOCH_SCHEDULE")
    parser.add_argument("--config", nargs="+", default=[], metavar="KEY=VALUE")
    training = Training(parser.parse_args())
    training.fit()
    if training.size > 1:
        hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
