"""What the dispatcher's client and its service agree on."""

from __future__ import annotations

from collections.abc import Iterable

BLOCK = 1000
"""The largest number of shard names in one request and in one key of etcd."""
DEFAULT_PORT = 7190


def spans(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers in short: `[first, end]` of each unbroken sequence, in order; `end` is not in it."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    return found


def numbers_of(spans: Iterable[Iterable[int]]) -> set[int]:
    """The numbers in `spans`."""
    return {number for first, end in spans for number in range(first, end)}
