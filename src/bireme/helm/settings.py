"""``--set`` and its kin, parsed as Helm's ``pkg/strvals`` does and held against the real Helm by tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from bireme.errors import BiremeError
from bireme.helm.yaml import Values, json_number, kind_of


def json_object(text: str) -> Values:
    """The object of --set-json '{…}'. Raises BiremeError when it is not JSON."""
    try:
        return dict(_JSON.decode(text.strip()))
    except ValueError as error:
        raise BiremeError(f"--set-json {text!r} is not valid JSON: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(
    parse_float=lambda text: json_number(float(text)),
    parse_int=lambda text: json_number(int(text)),
    parse_constant=_refuse_constant,
)


def no_reader(text: str) -> Any:
    """Stands where a setting reads JSON and not text."""
    raise AssertionError(f"--set-json reads JSON, not {text!r}")


_SET_INT = re.compile(r"[+-]?[0-9]+", re.ASCII)
_SET_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}


def typed(text: str) -> Any:
    """What --set makes of a value: true, false, null and decimal integers have a type, the rest is text."""
    if text.lower() in _SET_WORDS:
        return _SET_WORDS[text.lower()]
    if text == "0":
        return 0
    if not text.startswith("0") and _SET_INT.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    return text


class Setting:
    """One --set style argument: ``a.b[0].c=1,d={x,y}``, applied onto a tree of values in place.

    A backslash makes the next character plain. Accepts what Helm accepts, odd corners included, because a
    command line must mean the same here and there. One corner differs between the Helms: an index without its
    closing bracket is ignored by Helm 4 and refused by Helm 3, and here.
    """

    MAX_INDEX = 65536
    MAX_DEPTH = 30

    def __init__(self, option: str, text: str, reader: Callable[[str], Any], is_json: bool = False) -> None:
        self._option = option
        self._text = text
        self._reader = reader
        self._is_json = is_json
        self._at = 0

    def apply(self, values: Values) -> None:
        while self._assign(values, 0):
            pass

    def _refuse(self, why: str) -> BiremeError:
        return BiremeError(f"{self._option} {self._text!r}: {why}")

    def _until(self, stops: str) -> tuple[str, str]:
        """The text up to one of ``stops``, and that character, or "" at the end."""
        taken: list[str] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if char in stops:
                return "".join(taken), char
            if char == "\\":
                if self._at == len(self._text):
                    break
                char = self._text[self._at]
                self._at += 1
            taken.append(char)
        return "".join(taken), ""

    def _assign(self, into: Values, depth: int) -> bool:
        """Read one ``key…=value`` into ``into``; False at the end of the text."""
        key, stop = self._until("=[,.")
        if stop == "":
            if key:
                raise self._refuse(f"key {key!r} has no value: write {key}=VALUE")
            return False
        if stop == ",":
            raise self._refuse(f"key {key!r} has no value before the comma (\\, is a plain comma)")
        if stop == ".":
            return self._nested(into, key, depth + 1)
        if stop == "[":
            index = self._index()
            found = into.get(key, [])
            if not isinstance(found, list):
                raise self._refuse(f"{key} is {kind_of(found)}, not a list, so {key}[{index}] cannot be set")
            items, more = self._item(found, index, depth)
            self._put(into, key, items)
            return more
        at_end = not self._is_json and self._at == len(self._text)
        self._put(into, key, self._value())
        return not at_end

    @staticmethod
    def _put(into: Values, key: str, value: Any) -> None:
        if key:
            into[key] = value

    def _nested(self, into: Values, key: str, depth: int) -> bool:
        if depth > self.MAX_DEPTH:
            raise self._refuse(f"more than {self.MAX_DEPTH} levels of keys")
        inner = into.get(key, {})
        if not isinstance(inner, dict):
            raise self._refuse(f"{key} is {kind_of(inner)}, not a mapping, so no key under it can be set")
        more = self._assign(inner, depth)
        if more and not inner:
            raise self._refuse(f"key {key!r} has no value")
        if inner:
            self._put(into, key, inner)
        return more

    def _index(self) -> int:
        text, stop = self._until("]")
        if not stop or not _SET_INT.fullmatch(text):
            raise self._refuse(f"[{text} is not a list index: write [0], [1], …")
        index = int(text)
        if not 0 <= index <= self.MAX_INDEX:
            raise self._refuse(f"list index {index} is not between 0 and {self.MAX_INDEX}")
        return index

    def _item(self, found: list[Any], index: int, depth: int) -> tuple[list[Any], bool]:
        """``found`` with its item ``index`` set; False, and nothing added, when the text ends too early."""
        rest, stop = self._until("[.=")
        if rest:
            raise self._refuse(f"unexpected {rest!r} after list index {index}")
        if stop == "":
            return found, False
        current = found[index] if index < len(found) else None
        item: Any
        if stop == "[":
            inner_index = self._index()
            if current is not None and not isinstance(current, list):
                raise self._refuse(f"item {index} is {kind_of(current)}, not a list")
            item, more = self._item(current or [], inner_index, depth)
        elif stop == ".":
            item = current if isinstance(current, dict) else {}
            if index < len(found):
                found[index] = item
            more = self._assign(item, depth)
        else:
            item, more = self._value(), True
        if not more:
            return found, False
        found = found + [None] * (index + 1 - len(found))
        found[index] = item
        return found, True

    def _value(self) -> Any:
        if self._is_json:
            return self._json_value()
        if self._text[self._at : self._at + 1] == "{":
            self._at += 1
            return self._braced()
        if self._at == len(self._text):
            return ""
        return self._reader(self._until(",")[0])

    def _braced(self) -> list[Any]:
        items: list[Any] = []
        while True:
            text, stop = self._until(",}")
            if stop == "":
                raise self._refuse("a list must end with '}'")
            items.append(self._reader(text))
            if stop == "}":
                break
        if self._text[self._at : self._at + 1] == ",":
            self._at += 1
        return items

    def _json_value(self) -> Any:
        if self._skip_blank():
            return None
        try:
            value, self._at = _JSON.raw_decode(self._text, self._at)
        except ValueError as error:
            raise self._refuse(f"not valid JSON: {error}") from error
        self._skip_blank()
        return value

    def _skip_blank(self) -> bool:
        """Skip spaces, and one comma after them; True when there was no value in between."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        if self._at == len(self._text):
            return True
        if self._text[self._at] == ",":
            self._at += 1
            return True
        return False
