"""Train a network on scikit-learn's handwritten digits, with its parameters on parameter servers.

Each of the 64 pixels and its brightness together are a word; words are embedded by a sparse table, and two
dense layers read the digit from the embeddings. So both kinds of parameters are on the servers. Started by
itself, without a job around it, the script trains the same network in one process.

    digits.py --prepare DIR     write the training images as SPLIT_COUNT files digits-0000N, and their list
    digits.py --data DIR        train with them
"""

from __future__ import annotations

import network
import numpy as np
from sklearn.datasets import load_digits

PIXELS, LEVELS = 64, 17
SHAPE = network.Shape(words=PIXELS * LEVELS, slots=PIXELS, width=8, hidden=32, classes=10)
TRAINING_SAMPLES = 1437
"""Rows to train with, of 1797; the others measure the accuracy."""


def split() -> tuple[network.Rows, network.Rows]:
    """Rows to train with and rows to measure with."""
    data = load_digits()
    words = data.data.astype("int64") + LEVELS * np.arange(PIXELS)
    rows = np.column_stack([words, data.target.astype("int64")])
    rows = rows[np.random.default_rng(7).permutation(len(rows))].astype("int64")
    return rows[:TRAINING_SAMPLES], rows[TRAINING_SAMPLES:]


if __name__ == "__main__":
    network.main(__doc__ or "", SHAPE, split, "digits")
