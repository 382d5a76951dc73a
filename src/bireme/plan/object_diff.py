"""What an upgrade changes in the text of each object, as lines that go and lines that come."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.core.labels import GENERATED_ANNOTATION, IMMUTABLE_ANNOTATION
from bireme.core.manifests import Manifest
from bireme.core.plain import Plain
from bireme.helm.yaml import block_text
from bireme.plan.changes import by_identity

_HIDDEN = ("data", "stringData")


@dataclass(frozen=True)
class ObjectDiff(Plain):
    """The change of one object: ``lines`` are those of a unified diff of its YAML, without a header."""

    object: str
    lines: tuple[str, ...]


def object_diffs(
    current: Iterable[Manifest], desired: Iterable[Manifest], home: str = "default"
) -> tuple[ObjectDiff, ...]:
    """What upgrading in namespace ``home`` from ``current`` to ``desired`` changes in each object's text.

    Values of Secrets are hidden. Left out are hooks, fields that the cluster generates, and digests of parts
    of the same object.
    """
    live, wanted = by_identity(current, home), by_identity(desired, home)
    found = []
    for identity, some in sorted((live | wanted).items(), key=lambda each: str(each[0])):
        texts = _texts(some, live.get(identity), wanted.get(identity))
        if lines := tuple(difflib.unified_diff(*texts, lineterm=""))[2:]:
            found.append(ObjectDiff(some.identity, lines))
    return tuple(found)


def _texts(some: Manifest, before: Manifest | None, after: Manifest | None) -> tuple[list[str], list[str]]:
    old, new = (each.thaw() if each else None for each in (before, after))
    if some.kind == "Secret":
        _hide(old or {}, new or {})
    for content in filter(None, (old, new)):
        content.pop(some.annotations.get(GENERATED_ANNOTATION, ""), None)
        ((content.get("metadata") or {}).get("annotations") or {}).pop(IMMUTABLE_ANNOTATION, None)
    return _lines(old), _lines(new)


def _hide(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Replace the values of a Secret, so that those that change still differ."""
    for field in _HIDDEN:
        was, becomes = (dict(each.get(field) or {}) for each in (old, new))
        for content, values, word in ((old, was, "before"), (new, becomes, "after")):
            if values:
                content[field] = {
                    key: "(hidden)" if was.get(key) == becomes.get(key) else f"(hidden, {word})"
                    for key in values
                }


def _lines(content: Mapping[str, Any] | None) -> list[str]:
    return [] if content is None else block_text([content]).splitlines()
