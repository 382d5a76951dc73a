"""Regular expressions of schemas that must mean the same to Helm (RE2) and to Python."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

_TOKEN = re.compile(
    r"""\\(?:x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|.)          # an escape
      | \[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]            # a character class
      | \(\?(?:P[<=>]|<[=!]?|[a-zA-Z-]*[:)]|.)             # a group with a meaning of its own
      | (?:[*+?]|\{\d*,?\d*\})\+                           # a quantifier that does not give back
      | \{\d+(?:,\d*)?\}                                   # a count
    """,
    re.VERBOSE,
)
_ESCAPES = re.compile(r"\\(?:[dDwWsSbBAnrtfv]|x[0-9A-Fa-f]{2}|[^\w\s])")
_GROUPS = re.compile(r"\(\?(?:P<|[ims-]*[:)])")
_MOST_REPEATS = 1000


def foreign_patterns(schema: Any) -> list[str]:
    """Patterns of a schema that do not mean the same to Helm (RE2) and to Python, a sentence each."""
    return [
        f"pattern {pattern}: {part}: write it otherwise"
        for pattern in _patterns(schema)
        for part in _foreign_parts(pattern)
    ]


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        if isinstance(schema.get("patternProperties"), dict):
            yield from schema["patternProperties"]
        for value in schema.values():
            yield from _patterns(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _patterns(item)


def _foreign_parts(pattern: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # about POSIX classes, which are named below
            re.compile(pattern)
    except re.error as error:
        yield f"Python refuses it ({error.msg})"
        return
    for token in (found.group() for found in _TOKEN.finditer(pattern)):
        if token.startswith("\\") and not _ESCAPES.fullmatch(token):
            yield f"{token} is not in both RE2 and Python"
        elif token.startswith("["):
            inner = re.findall(r"\\x[0-9A-Fa-f]{2}|\\.", token)
            foreign = [escape for escape in inner if not _ESCAPES.fullmatch(escape)]
            yield from (f"{escape} is not in both RE2 and Python" for escape in foreign)
            if "[:" in token[1:]:
                yield f"{token} is a POSIX class, which Python does not know"
        elif token.startswith("(?") and not _GROUPS.fullmatch(token):
            yield f"{token} is not in both RE2 and Python"
        elif token[0] in "*+?{" and token.endswith("+"):
            yield f"{token} is possessive, which RE2 does not know"
        elif token.startswith("{") and max(map(int, re.findall(r"\d+", token))) > _MOST_REPEATS:
            yield f"{token} repeats more than {_MOST_REPEATS} times, the most in RE2"
