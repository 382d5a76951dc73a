"""Rendered objects held against the schemas of Kubernetes itself, by kubeconform."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bireme.errors import BiremeError
from bireme.lint.kubernetes import kubernetes_schemas, schema_location
from bireme.manifests import Manifest
from bireme.tools import Toolbox


def kubeconform(
    manifests_by_name: Mapping[str, Sequence[Manifest]], version: str | None, toolbox: Toolbox
) -> list[str]:
    """What Kubernetes ``version`` (None: the default) refuses, in sentences that start with the name given.

    All ``manifests_by_name`` are checked in one kubeconform process against the offline schemas of
    Kubernetes' own kinds; other kinds are passed over. Raises BiremeError when kubeconform itself fails.
    """
    binary = toolbox.path("kubeconform")
    location = schema_location(kubernetes_schemas(toolbox, version))
    with tempfile.TemporaryDirectory(prefix="bireme-kubeconform-") as folder:
        names: dict[str, str] = {}
        for number, (name, manifests) in enumerate(manifests_by_name.items()):
            file = Path(folder) / f"{number}.yaml"
            # JSON is YAML, and a kubeconform file may hold several documents.
            file.write_text("\n---\n".join(json.dumps(manifest.thaw()) for manifest in manifests))
            names[str(file)] = name
        options = ["-output", "json", "-strict", "-ignore-missing-schemas", "-schema-location", location]
        done = subprocess.run([str(binary), *options, folder], capture_output=True, text=True, check=False)
    try:
        resources = json.loads(done.stdout)["resources"] or []
    except (ValueError, KeyError) as error:
        raise BiremeError(f"kubeconform failed: {done.stderr.strip() or done.stdout.strip()}") from error
    found = [
        f"{names[resource['filename']]}: {resource['kind']}/{resource['name']}: {_what(resource)}"
        for resource in resources
        if resource["status"] in {"statusInvalid", "statusError"}
    ]
    return sorted(found)


_LEAF = re.compile(r"- at '(?P<pointer>[^']*)': (?P<why>.*?)(?=\s+- at '|$)")


def _what(resource: Mapping[str, Any]) -> str:
    # validationErrors holds only the outermost level; the message has them all.
    message = " ".join(str(resource.get("msg")).split())
    leaves = [found for found in _LEAF.finditer(message) if found["why"] != "validation failed"]
    said = [
        f"{leaf['pointer'].strip('/').replace('/', '.') or 'the object'}: {leaf['why']}" for leaf in leaves
    ]
    return "; ".join(said) or message
