"""A page of memory that the processes of a worker share."""

from __future__ import annotations

import mmap
import os
from typing import ClassVar, TypeVar

Shared = TypeVar("Shared", bound="Page")


class Page:
    """One page, which the process that made it names to the others by ``path``."""

    NAME: ClassVar[str]

    def __init__(self, descriptor: int, path: str) -> None:
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        self.path = path

    @classmethod
    def new(cls: type[Shared]) -> Shared:
        """An empty page. It ends with this process, which leaves its descriptor open."""
        descriptor = os.memfd_create(cls.NAME)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        return cls(descriptor, f"/proc/{os.getpid()}/fd/{descriptor}")

    @classmethod
    def at(cls: type[Shared], path: str) -> Shared:
        """The page that another process made. Raises OSError when that process is gone."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(descriptor, path)
        finally:
            os.close(descriptor)
