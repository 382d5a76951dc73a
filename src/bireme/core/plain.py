"""Facts as plain JSON, for ``-o json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar


class Plain:
    """A dataclass that machines read: its fields, by their names in camelCase.

    ``hidden`` are fields that they do not get, ``optional`` those that they get only with a value, and
    ``names`` those that have another name in JSON.
    """

    hidden: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[Mapping[str, str]] = {}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, in the order of the fields."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return {
            self.names.get(name, camel(name)): _plain(value)
            for name, value in found.items()
            if name not in self.hidden and (value or name not in self.optional)
        }


def camel(name: str) -> str:
    """``min_replicas`` as JSON has it: ``minReplicas``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _plain(value: Any) -> Any:
    if isinstance(value, Plain):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
