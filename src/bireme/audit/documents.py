"""Manifests as people keep them: files, folders and stdin, with placeholders, beside other documents."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bireme.core.errors import BiremeError
from bireme.core.findings import Finding
from bireme.core.manifests import within
from bireme.helm.yaml import documents, refuse_bombs

Place = tuple[str | int, ...]
_MOST_BYTES = 2**23
_MOST_FILES = 5000
_SUFFIXES = (".yaml", ".yml", ".json")
_SET = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_PLACEHOLDER = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_TEMPLATE = re.compile(r"^[ \t]*\{\{|^[^#'\"\n]*:[ \t]+\{\{|\{%", re.MULTILINE)
_RENDER_FIRST = "it is a template: render it first, as with helm template, and audit what comes out"
# Kinds with rules of their own, which are not here.
_NOT_OURS = ("RayJob", "RayCluster", "RayService")


@dataclass(frozen=True)
class Document:
    """One object of a file, at ``prefix`` in a list of objects, with the AppWrapper ``around`` it.

    ``folder`` holds what belongs together.
    """

    file: str
    content: Mapping[str, Any]
    node: yaml.Node
    prefix: Place = ()
    around: Document | None = None

    @property
    def folder(self) -> str:
        return str(Path(self.file).parent)

    @property
    def kind(self) -> str:
        """The kind, VolcanoJob for the Job of Volcano."""
        is_volcano = str(self.content["apiVersion"]).startswith("batch.volcano.sh/")
        return f"{'Volcano' if is_volcano else ''}{self.content['kind']}"

    @property
    def name(self) -> str:
        return str(within(self.content, "metadata").get("name") or "")

    def line(self, place: Place) -> int:
        """The line of the field at ``place``, else that of the nearest field that holds it."""
        node, line = self.node, self.node.start_mark.line
        for part in (*self.prefix, *place):
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            found = [(key, value) for key, value in pairs if key.value == part]
            if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                found = [(each, each) for each in node.value[part : part + 1]]
            if not found:
                break
            line, node = found[-1][0].start_mark.line, found[-1][1]
        return line + 1


def spelled(place: Place) -> str:
    """``place`` as people write it: ``spec.containers[0].image``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The first 500 items of a list, with {} for what is no mapping. Another value has no items."""
    return [within(each) for each in value[:500]] if isinstance(value, list) else []


def read_variables(file: Path) -> dict[str, str]:
    """The NAME=value lines of ``file``; others are no variables."""
    lines = file.read_text("utf-8", errors="replace").splitlines()
    return {found[1]: found[2].strip().strip("\"'") for line in lines if (found := _SET.fullmatch(line))}


def read(paths: Sequence[str], variables: Mapping[str, str]) -> tuple[list[Document], list[Finding]]:
    """The objects in ``paths`` ("-" is stdin) with ``variables`` filled in, and a note on each file without.

    Raises BiremeError for a path that does not exist.
    """
    found: list[Document] = []
    passed_over: list[Finding] = []
    for name in dict.fromkeys(file for path in paths for file in _files(path)):
        text = ""
        try:
            text = _PLACEHOLDER.sub(lambda each: variables.get(each[1] or each[2], each[0]), _text(name))
            refuse_bombs(text, name, _MOST_BYTES)
            own = [each for node, value in documents(text, name) for each in _objects(name, node, value)]
            found += [each for each in own if each.kind not in _NOT_OURS]
            if not own or own[0].kind in _NOT_OURS:
                raise BiremeError(f"it holds {f'a {own[0].kind}' if own else 'no Kubernetes object'}")
        except BiremeError as error:
            # Braces in a string, as in a rule of Prometheus, are YAML.
            said = _RENDER_FIRST if _TEMPLATE.search(text) else str(error).removeprefix(name).strip()
            sentence = f"passed over: {said}"
            passed_over.append(Finding("passed-over", sentence, "", "note", name))
    return found, passed_over


def _files(path: str) -> Iterator[str]:
    if path != "-" and not Path(path).exists():
        raise BiremeError(f"{path} does not exist: check the path")
    if path == "-" or not Path(path).is_dir():
        yield path
        return
    found = 0
    for folder, folders, names in os.walk(path):
        # The order of the walk, which leaves hidden folders out.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.suffix in _SUFFIXES and file.is_file():
                found += 1
                if found > _MOST_FILES:
                    raise BiremeError(
                        f"{path} holds more than {_MOST_FILES} manifests: name a smaller folder"
                    )
                yield str(file)


def _text(name: str) -> str:
    with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise BiremeError("it has more than 8 MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BiremeError("it is not text") from error
    return text


def _objects(
    file: str, node: yaml.Node, value: Any, prefix: Place = (), around: Document | None = None
) -> Iterator[Document]:
    """The objects in one document: those of a List and of an AppWrapper too."""
    content = within(value)
    if not content.get("kind") or not content.get("apiVersion"):
        return
    inner: list[tuple[Place, Any]] = [
        (("items", at), each) for at, each in enumerate(mappings(content.get("items")))
    ]
    for at, each in enumerate(mappings(within(content, "spec").get("components"))):
        inner.append((("spec", "components", at, "template"), within(each, "template")))
    if content["kind"] not in ("List", "AppWrapper"):
        yield Document(file, content, node, prefix, around)
        return
    if content["kind"] == "AppWrapper":
        spec = within(content, "spec")
        rest = [{**each, "template": {}} for each in mappings(spec.get("components"))]
        around = Document(file, {**content, "spec": {**spec, "components": rest}}, node, prefix)
    for place, each in inner:
        yield from _objects(file, node, each, (*prefix, *place), around)
