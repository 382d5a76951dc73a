"""Make a small set in COCO's format: pieces of scikit-learn's two photographs, with outlines.

    python3 tiny_coco.py FOLDER

Runs in the image, which has scikit-learn and Pillow; nothing is random.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

TOWER, TREE, FLOWER = 1, 3, 7  # like COCO's own, the numbers have gaps
CATEGORIES = [{"id": TOWER, "name": "tower"}, {"id": TREE, "name": "tree"}, {"id": FLOWER, "name": "flower"}]
BLOSSOM = [
    (308 + 137 * math.cos(angle / 8 * math.pi), 221 + 137 * math.sin(angle / 8 * math.pi))
    for angle in range(16)
]
OUTLINES: dict[str, list[tuple[int, list[tuple[float, float]]]]] = {
    "china.jpg": [
        (TOWER, [(195, 32), (215, 32), (215, 62), (320, 125), (298, 160), (330, 175), (322, 238), (352, 252),
                 (340, 315), (372, 335), (318, 395), (205, 385), (75, 335), (62, 268), (100, 238), (84, 178),
                 (120, 160), (95, 122), (188, 70)]),
        (TREE, [(600, 135), (640, 150), (640, 427), (572, 427), (575, 320), (545, 225)]),
    ],
    "flower.jpg": [
        (FLOWER, BLOSSOM),
        (FLOWER, [(290, 427), (292, 400), (340, 376), (400, 378), (440, 398), (467, 427)]),
    ],
}  # fmt: skip
SIZES = {"train2017": 12, "val2017": 4}
SCALE, WIDTH, HEIGHT = 0.4, 200, 150


def main(folder: Path) -> None:
    photos = load_sample_images()
    named = {
        Path(name).name: Image.fromarray(image)
        for name, image in zip(photos.filenames, photos.images, strict=True)
    }
    for split, count in SIZES.items():
        make(folder, split, count, named)


def make(folder: Path, split: str, count: int, photos: dict[str, Image.Image]) -> None:
    """One split: the photos in turn, each at another place of a smaller frame, every third mirrored."""
    (folder / split).mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    for number in range(count):
        name = sorted(photos)[number % 2]
        left, top = number * 5 % 57, number * 3 % 21
        photo = photos[name].resize((round(640 * SCALE), round(427 * SCALE)))
        piece = photo.crop((left, top, left + WIDTH, top + HEIGHT))
        mirrored = number % 3 == 2
        (ImageOps.mirror(piece) if mirrored else piece).save(folder / split / f"{number:012d}.jpg")
        images.append({"id": number, "file_name": f"{number:012d}.jpg", "width": WIDTH, "height": HEIGHT})
        for category, outline in OUTLINES[name]:
            points = [inside(x * SCALE - left, y * SCALE - top, mirrored) for x, y in outline]
            xs, ys = zip(*points, strict=True)
            box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
            if min(box[2:]) < 4:
                continue
            objects.append({
                "id": len(objects) + 1, "image_id": number, "category_id": category, "iscrowd": 0,
                "bbox": box, "area": box[2] * box[3],
                "segmentation": [[part for point in points for part in point]],
            })  # fmt: skip
    (folder / "annotations").mkdir(exist_ok=True)
    facts = {"info": {}, "categories": CATEGORIES, "images": images, "annotations": objects}
    (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(facts))


def inside(x: float, y: float, mirrored: bool) -> tuple[float, float]:
    x, y = min(max(x, 0), WIDTH), min(max(y, 0), HEIGHT)
    return (WIDTH - x if mirrored else x), y


if __name__ == "__main__":
    main(Path(sys.argv[1]))
