"""YAML as Helm reads it: ``sigs.k8s.io/yaml`` reads booleans, nulls and numbers differently from PyYAML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import yaml

from bireme.core.errors import BiremeError

Values = dict[str, Any]

_EXACT = 2**53
_CONSTANTS: Mapping[str, bool | None] = {
    form: value
    for forms, value in (("y yes true on", True), ("n no false off", False), ("null", None))
    for word in forms.split()
    for form in (word, word.capitalize(), word.upper())
} | {"": None, "~": None}
_NOT_JSON = {sign + word for word in (".inf", ".Inf", ".INF") for sign in ("", "+", "-")} | {
    ".nan",
    ".NaN",
    ".NAN",
}
# Integers in Go: a prefix names the base, and a leading zero alone means octal. Underscores are gone here.
_BASED = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# Lines whose indentation or dashes could nest deeply.
_DEEP_BLOCK = re.compile(r"^(?: |- ){100}", re.MULTILINE)
_PLAIN = "plain"
_RESOLVED = {_PLAIN} | {f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "int", "null")}


class _Loader(yaml.CSafeLoader):
    """Leaves plain scalars unresolved, because PyYAML gives some of them another type than Go does."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        tag: str = super().resolve(kind, value, (False, False))  # type: ignore[no-untyped-call]
        return tag


def parse_yaml(text: str, where: str, as_written: bool = False) -> Values:
    """Read ``text`` as Helm reads a values file: YAML 1.1 booleans, Go's integers, dates as strings.

    Several documents are merged in order, as Helm 4 does (Helm 3 reads only the first). ``where`` names the
    source in errors. Raises BiremeError for broken YAML (with its line), for anything but a mapping, and with
    ``as_written`` for what would not arrive so: a key that a mapping has twice, of which Helm takes the last,
    and words of a program (`env`, `args`, `command`) that YAML reads as other text.
    """
    merged: Values = {}
    for node, document in documents(text, where):
        if as_written:
            _refuse_changed(node, where)
        if document is not None and not isinstance(document, dict):
            raise BiremeError(
                f"{where} holds {type_name(document)}, not a mapping: it must have `key: value` lines"
            )
        merged = merge(merged, document or {})
    return merged


def documents(text: str, where: str) -> Iterator[tuple[yaml.Node, Any]]:
    """Each document of ``text``: its nodes, which know their lines, and its value. Raises BiremeError."""
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            yield node, _plain(node, where, frozenset())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise BiremeError(f"{where}{line} is not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise BiremeError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error


_MOST_CHARACTERS = 2**20
_DEEPEST = 100
_MOST_NODES = 1_000_000


def refuse_bombs(text: str, where: str, most: int = _MOST_CHARACTERS) -> None:
    """Raises BiremeError for what would take forever or crash who parses it.

    That is text of more than ``most`` characters (Helm keeps values in a Secret, which has 1 MiB), deep
    nesting, and anchors that multiply.
    """
    if len(text) > most:
        raise BiremeError(f"{where} has {len(text):,} characters: it may have at most {most // 2**20} MiB")
    if "*" not in text and max(text.count("["), text.count("{")) < _DEEPEST and not _DEEP_BLOCK.search(text):
        return
    sizes, open_anchors, size = dict[str | None, int](), list[tuple[str | None, int]](), 0
    # parse_yaml says where a text is broken.
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            size += sizes.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_anchors.append((event.anchor, size))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_anchors.pop()
                if anchor:
                    sizes[anchor] = size - before + 1
            if len(open_anchors) > _DEEPEST:
                raise BiremeError(f"{where} is nested more than {_DEEPEST} deep")
            if size > _MOST_NODES:
                many = f"more than {_MOST_NODES:,} values, counted where anchors put them"
                raise BiremeError(f"{where} has {many}")


_OF_PROGRAMS = ("env", "args", "command")


def doubled_keys(root: yaml.Node | None) -> Iterator[tuple[str, int, int]]:
    """Keys that a mapping below ``root`` has again, each with its line and that of the first one."""
    for node, _ in _collections(root):
        lines = dict[str, int]()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                yield key.value, line, lines[key.value]


def _collections(root: yaml.Node | None) -> Iterator[tuple[yaml.CollectionNode, str]]:
    """The mappings and lists below ``root``, each with its key."""
    todo: list[tuple[yaml.Node | None, str]] = [(root, "")]
    seen: set[int] = set()
    while todo:
        node, name = todo.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        yield node, name
        for item in node.value:
            key, value = item if isinstance(node, yaml.MappingNode) else (None, item)
            todo.append((value, key.value if isinstance(key, yaml.ScalarNode) else ""))


def _refuse_changed(root: yaml.Node | None, where: str) -> None:
    for key, line, first in doubled_keys(root):
        raise BiremeError(
            f"{where} line {line}: the key {key} is there twice, first in line {first}: "
            "Helm would take the last and forget the first, put them together"
        )
    changed: list[str] = []
    for node, name in _collections(root):
        values = [item[1] if isinstance(node, yaml.MappingNode) else item for item in node.value]
        for value in values if name in _OF_PROGRAMS else ():
            read = (
                _scalar(value.value) if isinstance(value, yaml.ScalarNode) and value.tag == _PLAIN else None
            )
            arrives = str(read).lower() if isinstance(read, bool) else str(read)
            if read is not None and arrives != value.value:
                line = value.start_mark.line + 1
                changed.append(f"{where} line {line}: {value.value} arrives as {arrives}: put it in quotes")
    if changed:
        raise BiremeError("\n".join(changed[:10]))


def _plain(node: yaml.Node | None, where: str, inside: frozenset[int]) -> Any:
    if node is None:
        return None
    if isinstance(node, yaml.ScalarNode):
        return _tagged_scalar(node, where)
    if id(node) in inside:
        raise BiremeError(f"{where} line {node.start_mark.line + 1}: an anchor contains itself")
    if len(inside) == _DEEPEST:
        raise BiremeError(f"{where} is nested more than {_DEEPEST} deep")
    inside |= {id(node)}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, where, inside) for item in node.value]
    return _mapping(node, where, inside)


def _mapping(node: yaml.Node, where: str, inside: frozenset[int]) -> Values:
    result: Values = {}
    for key_node, value_node in node.value:
        if isinstance(key_node, yaml.ScalarNode) and key_node.value == "<<" and key_node.tag == _PLAIN:
            # Helm merges at the position of `<<`, which overwrites the keys that stand before it.
            sources = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            for source in reversed(sources):
                merged = _plain(source, where, inside)
                if not isinstance(merged, dict):
                    raise BiremeError(f"{where} line {value_node.start_mark.line + 1}: `<<` needs a mapping")
                result.update(merged)
            continue
        result[_key(_plain(key_node, where, inside), where, key_node)] = _plain(value_node, where, inside)
    return result


def _key(key: Any, where: str, node: yaml.Node) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool | int | float):
        return json.dumps(key)
    raise BiremeError(f"{where} line {node.start_mark.line + 1}: {type_name(key)} cannot be a key")


def _tagged_scalar(node: yaml.ScalarNode, where: str) -> Any:
    text: str = node.value
    if node.tag not in _RESOLVED:
        return text
    if text in _NOT_JSON:
        raise BiremeError(
            f"{where} line {node.start_mark.line + 1}: {text} is not a number JSON has; Helm refuses it"
        )
    return _scalar(text)


def _scalar(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if not text or text[0] not in "+-.0123456789":
        return text
    if text[0] == ".":
        return _float(text) if _FLOAT.fullmatch(text) else text
    digits = text.replace("_", "")
    integer = _integer(digits)
    if integer is not None:
        return json_number(integer)
    return _float(digits, otherwise=text) if _FLOAT.fullmatch(digits) else text


def _integer(digits: str) -> int | None:
    # Longer ones are too large, and Python refuses to read them.
    if len(digits) > 4000 or not _BASED.fullmatch(digits):
        return None
    # Python wants 0o755 where Go takes 0755 too.
    value = int(re.sub(r"^([+-]?)0(?=\d)", r"\g<1>0o", digits), 0)
    fits = -(2**63) <= value < 2**63 or (digits[0] not in "+-" and value < 2**64)
    return value if fits else None


def _float(digits: str, otherwise: str | None = None) -> Any:
    value = float(digits)
    return json_number(value) if math.isfinite(value) else (otherwise or digits)


def json_number(value: int | float) -> int | float:
    """A number as Helm keeps it after converting YAML to JSON: a double, an int when it is whole."""
    double = float(value)
    return int(double) if double.is_integer() and abs(double) <= _EXACT else double


_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|.)")


def as_json(values: Mapping[str, Any]) -> str:
    """``values`` as JSON for Helm, whose YAML reader takes no escaped pairs of surrogates."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), default=dict, allow_nan=False)
    return _ESCAPE.sub(lambda each: json.loads(f'"{each[0]}"') if len(each[0]) == 12 else each[0], text)


def type_name(value: Any) -> str:
    """The type of ``value``, as error messages name it."""
    names = {
        dict: "a mapping",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "nothing (null)",
    }
    return names.get(type(value), "a number")


class _Representer(yaml.representer.SafeRepresenter):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def block(self, text: str) -> yaml.ScalarNode:
        # PyYAML takes 1e-3 and 08 for text, which Helm and Kubernetes read as numbers.
        style = "|" if "\n" in text else None if isinstance(_scalar(text), str) else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Representer.add_representer(str, _Representer.block)


class _Quick(_Representer, yaml.CSafeDumper):
    pass


class _Exact(_Representer, yaml.SafeDumper):
    pass


def block_text(documents: Iterable[Any], width: int = 1000) -> str:
    """``documents`` as YAML for people: text of several lines as such, and nothing by reference."""
    documents = list(documents)
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": width}
    with suppress(UnicodeEncodeError):  # a lone surrogate
        text: str = yaml.dump_all(documents, Dumper=_Quick, **options)
        # libyaml escapes emoji, and so writes the text around them in one line.
        if "\\U" not in text:
            return text
    exact: str = yaml.dump_all(documents, Dumper=_Exact, **options)
    return exact


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """``over`` on top of ``base``: mappings merge, lists and all else replace. Neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged
