"""Make a folder of real pictures in two classes: pieces of the two photographs that come with scikit-learn.

python3 photos.py FOLDER writes FOLDER/train/<class>/*.jpg (24 each) and FOLDER/val/<class>/*.jpg (9 each).
"""

import pathlib
import random
import sys

from PIL import Image
from sklearn.datasets import load_sample_images

SIDE = 160

photos = load_sample_images()
random.seed(0)
for name, photo in zip(photos.filenames, photos.images, strict=True):
    for part, count in (("train", 24), ("val", 9)):
        folder = pathlib.Path(sys.argv[1], part, pathlib.Path(name).stem)
        folder.mkdir(parents=True)
        for number in range(count):
            left, top = random.randrange(640 - SIDE), random.randrange(427 - SIDE)
            Image.fromarray(photo).crop((left, top, left + SIDE, top + SIDE)).save(folder / f"{number}.jpg")
