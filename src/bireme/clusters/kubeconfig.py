"""Kubeconfigs. Others write them, so all that the client library would stumble over is looked for first."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from bireme.core.errors import BiremeError
from bireme.helm import ChartValues
from bireme.helm import values as value_files
from bireme.schemas.problems import violations

_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def load(file: Path, context: str | None, configuration: Any) -> None:
    """Put ``context`` of ``file``, or its current one, into a ``configuration`` of the client library.

    Logs in if need be. Raises BiremeError when the file cannot be used.
    """
    # Imported here because it takes half a second, which `bireme --help` should not.
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import KubeConfigLoader

    content = value_files.read_file(file, "kubeconfig")
    wanted = context or content.get("current-context")
    try:
        _check(content, wanted)
        folder = str(file.absolute().parent)
        loader = KubeConfigLoader(content, wanted, config_base_path=folder)  # type: ignore[no-untyped-call]
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, BiremeError, OSError, ValueError) as error:
        raise BiremeError(f"{file} cannot be used as kubeconfig: {error}") from error


def merged(files: Sequence[Path]) -> Path:
    """The kubeconfigs ``files`` as one, for this process: of equal names the first counts, as in kubectl.

    Raises BiremeError when one cannot be read.
    """
    whole: dict[str, Any] = {"apiVersion": "v1", "kind": "Config"}
    for file in files:
        content = value_files.read_file(file, "kubeconfig")
        whole["current-context"] = whole.get("current-context") or content.get("current-context")
        for kind in ("contexts", "clusters", "users"):
            known = {each["name"] for each in whole.setdefault(kind, [])}
            items = [each for each in content.get(kind) or () if isinstance(each, dict) and "name" in each]
            whole[kind] += [_absolute(each, file) for each in items if each["name"] not in known]
    descriptor, name = tempfile.mkstemp(prefix="bireme-kubeconfig-")
    atexit.register(Path(name).unlink, missing_ok=True)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(whole, stream)
    return Path(name)


def _absolute(item: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """``item`` with the paths of certificates and keys, which are relative to ``file``, made absolute."""
    kind, body = next(((key, value) for key, value in item.items() if isinstance(value, dict)), ("", {}))
    paths = {key: str(file.absolute().parent / body[key]) for key in _FILES if body.get(key)}
    return {**item, kind: {**body, **paths}} if kind else dict(item)


def _check(content: Mapping[str, Any], context: Any) -> None:
    """Raises BiremeError for the first thing in ``content`` that keeps ``context`` from being used."""
    schema = json.loads(resources.files("bireme.clusters").joinpath("kubeconfig.schema.json").read_text())
    found = next(violations(ChartValues("kubeconfig", content, schema, ())), None)
    if found:
        raise BiremeError(str(found))
    contexts = {each["name"]: each["context"] for each in content["contexts"]}
    if context not in contexts:
        names = ", ".join(contexts) or "none"
        what = f"it has no context {context}" if context else "it names no current context"
        raise BiremeError(f"{what}; there are: {names}")
    users = {each["name"]: each["user"] for each in content.get("users") or ()}
    name = contexts[context].get("user")
    user = users.get(name, {})
    token = user.get("token") or ""
    if not token.isascii() or not token.isprintable():
        raise BiremeError(f"the token of user {name} has characters that no token has")
    program = (user.get("exec") or {}).get("command")
    if program and "/" not in program and not shutil.which(program):
        raise BiremeError(f"user {name} logs in by {program}, which is not on PATH: install it")
