"""Checksums that a source keeps of its objects, in the forms that S3 has.

Of an object that was uploaded in parts, S3 keeps a checksum of the whole, or one of the parts' checksums
(docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html).
"""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_CHUNK = 1 << 20


class Digest(Protocol):
    """What hashlib calls a hash."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take the next bytes."""

    def digest(self) -> bytes:
        """The digest of all bytes until now."""


Step = Callable[[bytes, int], int]


class _Crc:
    """``step`` takes the next bytes and the sum of those before."""

    def __init__(self, step: Step, size: int) -> None:
        self._step, self._size, self._value = step, size, 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = self._step(bytes(data), self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


def _sums() -> Mapping[str, tuple[Step, int]]:
    """The cyclic sums that can be computed here, best first, each with its size in bytes.

    Python has CRC-32 alone, and a loop over bytes would be slower than the network: the package awscrt has
    the two others of S3, CRC64NVME being what S3 itself adds to uploads without a checksum.
    """
    try:
        crt = importlib.import_module("awscrt.checksums")
    except ImportError:
        return {"crc32": (zlib.crc32, 4)}
    return {"crc64nvme": (crt.crc64nvme, 8), "crc32c": (crt.crc32c, 4), "crc32": (zlib.crc32, 4)}


_SUMS = _sums()
ALGORITHMS = ("sha256", "md5", "sha1", *_SUMS)


class _InParts:
    """The digest of the digests of parts, whose sizes are known."""

    def __init__(self, algorithm: str, parts: Sequence[int]) -> None:
        self._algorithm, self._left = algorithm, list(reversed(parts))
        self._part, self._whole = digest_of(algorithm), digest_of(algorithm)

    def update(self, data: bytes | memoryview, /) -> None:
        rest = memoryview(data)
        while self._left and len(rest) >= self._left[-1]:
            size = self._left.pop()
            self._part.update(rest[:size])
            rest = rest[size:]
            self._whole.update(self._part.digest())
            self._part = digest_of(self._algorithm)
        if rest and self._left:
            self._left[-1] -= len(rest)
            self._part.update(rest)

    def digest(self) -> bytes:
        return self._whole.digest()


def digest_of(algorithm: str) -> Digest:
    """A new digest by one of ALGORITHMS."""
    return _Crc(*_SUMS[algorithm]) if algorithm in _SUMS else hashlib.new(algorithm, usedforsecurity=False)


@dataclass(frozen=True)
class Checksum:
    """The digest that an object should have. With `parts`, their sizes, it is one of the parts' digests."""

    algorithm: str
    value: bytes
    parts: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The algorithm, as a sentence has it."""
        return (
            f"{self.algorithm.upper()} of {len(self.parts)} parts" if self.parts else self.algorithm.upper()
        )

    def new(self) -> Digest:
        """What computes such a digest."""
        return _InParts(self.algorithm, self.parts) if self.parts else digest_of(self.algorithm)


def compute(file: str | Path, digests: Sequence[Digest]) -> None:
    """Feed a file to all digests. Raises OSError."""
    with open(file, "rb") as content:
        while chunk := content.read(_CHUNK):
            for each in digests:
                each.update(chunk)
