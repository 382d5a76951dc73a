"""Rendered objects validated against the schemas of Kubernetes, by kubeconform."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bireme.check.kubernetes import kubernetes_schemas, unserved
from bireme.core.errors import BiremeError
from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.tools import Toolbox

Key = TypeVar("Key", bound=Hashable)


def kubeconform(
    renders: Mapping[Key, Sequence[Manifest]], version: str | None, toolbox: Toolbox
) -> dict[Key, list[Finding]]:
    """What Kubernetes ``version`` (None: the default) refuses, by the keys of ``renders``.

    All of it is checked in one kubeconform process against the offline schemas of Kubernetes' own kinds;
    other kinds are not checked. Raises BiremeError when kubeconform itself fails.
    """
    binary = toolbox.path("kubeconform")
    location = kubernetes_schemas(toolbox, version)
    refused: dict[Key, list[Finding]] = defaultdict(list)
    for key, manifests in renders.items():
        refused[key] += (found for each in manifests for found in unserved(each, Path(location).parent))
    with tempfile.TemporaryDirectory(prefix="bireme-kubeconform-") as folder:
        keys: dict[str, Key] = {}
        for number, (key, manifests) in enumerate(renders.items()):
            file = Path(folder) / f"{number}.yaml"
            # JSON is YAML, and a kubeconform file may hold several documents.
            file.write_text("\n---\n".join(json.dumps(manifest.thaw()) for manifest in manifests))
            keys[str(file)] = key
        options = ["-output", "json", "-strict", "-ignore-missing-schemas", "-schema-location", location]
        done = subprocess.run([str(binary), *options, folder], capture_output=True, text=True, check=False)
    try:
        resources = json.loads(done.stdout)["resources"] or []
    except (ValueError, KeyError) as error:
        raise BiremeError(f"kubeconform failed: {done.stderr.strip() or done.stdout.strip()}") from error
    for resource in resources:
        if resource["status"] in {"statusInvalid", "statusError"}:
            identity = f"{resource['kind']}/{resource['name']}"
            found = Finding("kubernetes", _sentence(resource), path=identity)
            refused[keys[resource["filename"]]].append(found)
    return {key: sorted(refused[key], key=str) for key in renders if refused[key]}


_LEAF = re.compile(r"- at '(?P<pointer>[^']*)': (?P<why>.*?)(?=\s+- at '|$)")


def _sentence(resource: Mapping[str, Any]) -> str:
    # `validationErrors` has only the outermost errors; the message has all of them.
    message = " ".join(str(resource.get("msg")).split())
    leaves = [found for found in _LEAF.finditer(message) if found["why"] != "validation failed"]
    fields = [(leaf["pointer"].strip("/").replace("/", ".") or "the object", leaf["why"]) for leaf in leaves]
    return "; ".join(f"{field}: {why}" for field, why in fields) or message
