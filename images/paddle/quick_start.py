"""Classify texts, as the tutorial's quick_start does: is a review of a product for it or against it?

The reviews are made here, by chance: sixteen words each, some of which praise or blame. Words are embedded
by a sparse table on the parameter servers. Started by itself, without a job around it, the script trains the
same network in one process.

    quick_start.py --prepare DIR     write SPLIT_COUNT files of each part, and their lists
    quick_start.py --data DIR        train with them
"""

from __future__ import annotations

import re

import network
import numpy as np

BLAME, PRAISE, OTHER = (
    re.findall(r"\w+", line)
    for line in (
        "bad broken cheap dull flimsy late loud poor returned slow stale torn ugly useless weak worse",
        "best bright clear easy excellent fast fine good great handy love nice perfect quiet solid well",
        "a about after again all and any as at box but by came case did for from had have i in is it just me "
        "month more my now of on one order our part price say so that the then they this time to us was we",
    )
)
VOCABULARY = [*BLAME, *PRAISE, *OTHER]
LENGTH = 16
SHAPE = network.Shape(words=len(VOCABULARY), slots=LENGTH, width=8, hidden=16, classes=2)
REVIEWS, TRAINING_REVIEWS = 2400, 1920


def review(chance: np.random.Generator, mine: list[str], others: list[str]) -> list[str]:
    """A review: three words of its opinion, one of the other, as sceptics write, and what any text has."""
    words = [*chance.choice(mine, 3), *chance.choice(others, 1), *chance.choice(OTHER, LENGTH - 4)]
    return [str(each) for each in chance.permutation(words)]


def split() -> tuple[network.Rows, network.Rows]:
    """Reviews to train with and reviews to measure with. The label is 1 for praise."""
    chance = np.random.default_rng(7)
    praises = chance.integers(2, size=REVIEWS)
    texts = [review(chance, *((PRAISE, BLAME) if each else (BLAME, PRAISE))) for each in praises]
    numbers = {word: number for number, word in enumerate(VOCABULARY)}
    rows = np.column_stack([[[numbers[word] for word in text] for text in texts], praises]).astype("int64")
    return rows[:TRAINING_REVIEWS], rows[TRAINING_REVIEWS:]


if __name__ == "__main__":
    network.main(__doc__ or "", SHAPE, split, "train.txt")
