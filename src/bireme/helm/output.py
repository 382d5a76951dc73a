"""What Helm prints: rendered objects, and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from bireme.core.manifests import Manifest
from bireme.helm.yaml import parse_yaml

_SOURCE = re.compile(r"^# Source: (.+)$", re.MULTILINE)
_DOCUMENT = re.compile(r"^---[ \t]*$", re.MULTILINE)


def parse(text: str) -> tuple[Manifest, ...]:
    """The objects of a multi-document YAML text as Helm prints it; empty documents are left out.

    Raises BiremeError when a document is not an object or not YAML.
    """
    return tuple(each for document in _DOCUMENT.split(text) for each in _frozen(document))


@lru_cache(maxsize=512)
def _frozen(document: str) -> tuple[Manifest, ...]:
    """The objects of one document. Renders of a chart with other values have most documents in common."""
    return tuple(Manifest(content, source) for source, content in _objects(document))


def split(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(source, object) for every object of ``text``, those in a List too. Raises BiremeError as `parse` does.

    An item of a ConfigMapList or the like takes its kind from the list, as in kubectl and Helm.
    """
    return (each for document in _DOCUMENT.split(text) for each in _objects(document))


def _objects(document: str) -> Iterator[tuple[str, dict[str, Any]]]:
    found = _SOURCE.search(document)
    source = found.group(1).strip() if found else ""
    content = parse_yaml(document, source or "the rendered text")
    kind, items = str((content or {}).get("kind") or ""), (content or {}).get("items")
    if kind.endswith("List") and isinstance(items, list):
        given = {} if kind == "List" else {"apiVersion": content.get("apiVersion"), "kind": kind[:-4]}
        yield from ((source, given | item) for item in items if isinstance(item, dict))
    elif content:
        yield source, content


# --- errors ---

_PREFIXES = (
    re.compile(r"^Error: "),
    re.compile(r"^(INSTALLATION|UPGRADE) FAILED: "),
    re.compile(r"^execution error at \([^)]*\): "),
    re.compile(r"^template: .*error calling (fail|required): "),
)
_SCHEMA_HEADER = "values don't meet the specifications of the schema(s) in the following chart(s):"
_SCHEMA_LINE = re.compile(r"^- (?:at '(?P<pointer>[^']*)'|(?P<field>\S+)): (?P<why>.*)$")
_SETTING = re.compile(r"failed parsing (?P<option>--set[a-z-]*) data(?: JSON)?:? (?P<why>.*)", re.DOTALL)
_SHOWN = 80
_HINT = "Use --debug flag to render out invalid YAML"


def sentences(stderr: str) -> str:
    """The sentences of Helm's standard error, one per line, without its prefixes and its log lines."""
    lines = stderr.strip().splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("Error: ")), 0)
    text = "\n".join(line for line in lines[start:] if line.strip() and line.strip() != _HINT)
    for prefix in _PREFIXES:
        text = prefix.sub("", text)
    if text.startswith(_SCHEMA_HEADER):
        text = "\n".join(_schema_sentences(text.removeprefix(_SCHEMA_HEADER).splitlines()))
    setting = _SETTING.fullmatch(text)
    if setting:
        text = _setting_sentence(setting["option"], setting["why"])
    return text or "Helm failed without a message"


def _setting_sentence(option: str, why: str) -> str:
    shown = why if len(why) <= _SHOWN else f"{why[:_SHOWN]}…"
    if option == "--set-json":
        return (
            f"--set-json {shown}: it is no JSON that Helm can read; write KEY=JSON, in quotes for your shell"
        )
    if "interface conversion" in why:
        return f"{option} sets a key that has a value, and keys below it: leave one of them out"
    return f"{option}: {shown}"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _schema_sentences(lines: Sequence[str]) -> Iterator[str]:
    chart = ""
    given = [line for line in lines if line.strip()]
    for row, below in zip_longest(given, given[1:], fillvalue=""):
        line = row.strip()
        found = _SCHEMA_LINE.match(line)
        if found and found["why"].endswith("failed") and _indent(below) > _indent(row):
            continue  # the lines below it say why
        if found:
            where = (found["pointer"] or "").strip("/").replace("/", ".") or found["field"] or "the values"
            yield f"{chart}: {where}: {found['why']}"
        elif "is not valid against metaschema" in line:
            yield f"{chart}: values.schema.json is not a JSON Schema"
        elif line.endswith(":"):
            chart = line.rstrip(":")
        else:
            yield f"{chart}: {line}"
