"""Whether a chart's values.yaml, its ``# --`` comments and its schema describe the same keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bireme.core.findings import Finding
from bireme.schemas.bundle import BUNDLE, KeyPath
from bireme.schemas.problems import resolved, written

_VALUES = "values.yaml"
# Keys that Helm itself reads or adds: a schema may list them, values.yaml does not have to.
_OF_HELM = ("enabled", "global")
_COMBINING = ("allOf", "anyOf", "oneOf")


@dataclass(frozen=True)
class Parity:
    """The rules for a schema (``root``) and the ``descriptions`` of keys.

    Every key has a property, and every property a key. Every key has a description, unless none has. Keys
    that Helm adds need none, and what stands under a dependency's name is for that chart to describe.
    """

    root: Mapping[str, Any]
    descriptions: Mapping[KeyPath, str]
    dependencies: Collection[str]

    def findings(self, values: Mapping[str, Any]) -> list[Finding]:
        """Where the keys of values.yaml, their descriptions and the schema differ."""
        return [*self.of_keys(values, self.root, ()), *self.of_properties(values, self.root, ())]

    def of_keys(self, values: Mapping[str, Any], schema: Any, path: KeyPath) -> Iterator[Finding]:
        """Keys of values.yaml that lack a property or a description."""
        properties = self._properties(schema)
        if not properties:
            return  # an open mapping: its keys are those of Kubernetes, or the user's
        whole = resolved(self.root, schema)
        others = whole.get("additionalProperties", whole.get("unevaluatedProperties", True)) is not False
        lacking = []
        for key, value in values.items():
            here = (*path, key)
            if key not in properties:
                if not any(_matches(pattern, key) for pattern in whole.get("patternProperties", {})):
                    lacking.append(key)
                continue
            below = properties[key]
            if self.descriptions and here not in self.descriptions and not self._has_own(value, below):
                yield _finding(_VALUES, here, "it has no description", "write a `# --` comment above it")
            if isinstance(value, dict) and key not in self.dependencies:
                yield from self.of_keys(value, below, here)

        if others and len(lacking) > 1:
            sentence = f"the schema takes any other keys, so it checks none of {', '.join(lacking)}"
            yield replace(_finding(BUNDLE, path, sentence, "add them"), severity="warning")
            return
        for key in lacking:
            sentence = "values.yaml has this key, the schema does not"
            found = _finding(BUNDLE, (*path, key), sentence, "add it, or remove the key")
            yield replace(found, severity="warning") if others else found

    def of_properties(self, values: Mapping[str, Any], schema: Any, path: KeyPath) -> Iterator[Finding]:
        """Properties of the schema that values.yaml does not have."""
        for key, below in resolved(self.root, schema).get("properties", {}).items():
            here = (*path, key)
            if key not in values:
                if path or key not in (*_OF_HELM, *self.dependencies):
                    yield _finding(
                        _VALUES,
                        here,
                        "the schema has this key, values.yaml does not",
                        "add it with its default",
                    )
            elif isinstance(values[key], dict) and values[key] and key not in self.dependencies:
                yield from self.of_properties(values[key], below, here)

    def _properties(self, schema: Any) -> Mapping[str, Any]:
        """The properties of ``schema`` and of the schemas that it combines."""
        whole = resolved(self.root, schema)
        combined = [each for keyword in _COMBINING for each in whole.get(keyword, [])]
        combined += [whole[keyword] for keyword in ("then", "else") if keyword in whole]
        found = {key: below for each in combined for key, below in self._properties(each).items()}
        return {**found, **whole.get("properties", {})}

    def _has_own(self, value: Any, schema: Any) -> bool:
        """Whether the keys below have descriptions of their own, or are checked for them one by one."""
        if isinstance(value, dict) and value:
            return True
        properties = self._properties(schema)
        return bool(properties) and all(
            "description" in resolved(self.root, each) for each in properties.values()
        )


def _finding(file: str, path: KeyPath, sentence: str, remedy: str) -> Finding:
    return Finding("parity", sentence, remedy, file=file, path=written(path))


def _matches(pattern: str, key: str) -> bool:
    try:
        return bool(re.search(pattern, key))
    except re.error:
        return True  # one that only Helm knows
