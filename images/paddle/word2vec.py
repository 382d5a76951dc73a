"""Word vectors from n-grams: four words predict the fifth. The vectors are on parameter servers.

The text is the descriptions that scikit-learn ships with its datasets. Started by itself, without a job
around it, the script trains the same network in one process.

    word2vec.py --prepare DIR     write the n-grams as SPLIT_COUNT files train.txt-0000N, and their list
    word2vec.py --data DIR        train with them
"""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files

import network
import numpy as np

GRAM = 5
WORDS = 800
"""Size of the vocabulary: the most frequent words; all others are word 0."""
SHAPE = network.Shape(words=WORDS, slots=GRAM - 1, width=32, hidden=64, classes=WORDS)
TESTED = 20
"""One n-gram of so many is used to measure the loss."""


def split() -> tuple[network.Rows, network.Rows]:
    """N-grams to train with and n-grams to measure with."""
    pages = [each for each in files("sklearn.datasets.descr").iterdir() if each.name.endswith(".rst")]
    texts = [each.read_text() for each in sorted(pages, key=lambda each: each.name)]
    words = re.findall(r"[a-z]+", " ".join(texts).lower())
    known = {word: number for number, (word, _) in enumerate(Counter(words).most_common(WORDS - 1), 1)}
    numbers = np.array([known.get(word, 0) for word in words], dtype="int64")
    grams = np.lib.stride_tricks.sliding_window_view(numbers, GRAM)
    grams = grams[np.random.default_rng(7).permutation(len(grams))]
    tested = np.arange(len(grams)) % TESTED == 0
    return grams[~tested], grams[tested]


if __name__ == "__main__":
    network.main(__doc__ or "", SHAPE, split, "train.txt")
