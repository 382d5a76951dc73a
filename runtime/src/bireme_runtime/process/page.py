"""A page of memory that the processes of a worker share."""

from __future__ import annotations

import mmap
import os
import struct
from typing import ClassVar, Generic, TypeVar

Shared = TypeVar("Shared", bound="Page")
Number = TypeVar("Number", int, float, bool)


class Page:
    """One page, which the process that made it names to the others by ``path``."""

    NAME: ClassVar[str]

    def __init__(self, descriptor: int, path: str) -> None:
        self.memory = mmap.mmap(descriptor, mmap.PAGESIZE)
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


class Word(Generic[Number]):
    """A number at a place of a page, in a native format of struct: no reader sees it by halves."""

    def __init__(self, form: str, at: int) -> None:
        self._form, self._at = form, at

    def __get__(self, page: Page, _: type[Page]) -> Number:
        number: Number = struct.unpack_from(self._form, page.memory, self._at)[0]
        return number

    def __set__(self, page: Page, value: Number) -> None:
        struct.pack_into(self._form, page.memory, self._at, value)
