"""Keys of a chart's values: what its values.yaml and its schema say about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bireme.core.errors import BiremeError, suggestion
from bireme.helm import values as value_files
from bireme.schemas.bundle import BUNDLE, comments
from bireme.schemas.problems import resolved

_LIMITS = ("enum", "minimum", "maximum", "pattern")


def explanation(chart: Path, key: str) -> dict[str, Any]:
    """Text, type, limits, default and keys below of ``key``, e.g. ``pod.shm.size``; "" stands for all.

    Raises BiremeError for a key that the chart does not have.
    """
    file = chart / "values.yaml"
    text, default = value_files.read_text(file, "values file"), value_files.read_file(file)
    schema = json.loads(value_files.read_text(chart / BUNDLE, "schema")) if (chart / BUNDLE).is_file() else {}
    value: Any = default
    part, path = resolved(schema, schema), tuple(filter(None, key.split(".")))
    for name in path:
        inside = part.get("properties", {})
        known = {*inside, *_keys(value)}
        if name not in known:
            raise BiremeError(f"{chart.name} has no value {key}: {suggestion(name, known)}")
        part, value = resolved(schema, inside.get(name)), _keys(value).get(name)
    types, below = part.get("type", "any"), sorted({*part.get("properties", {}), *_keys(value)})
    return {
        "key": key,
        "text": comments(text).get(path) or part.get("description", ""),
        "type": types if isinstance(types, str) else " or ".join(types),
        **{name: part[name] for name in _LIMITS if name in part},
        **({"keys": below} if below else {"default": value}),
    }


def _keys(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
