"""Values as Helm reads, sets, merges and coalesces them.

The rules are Helm's own (``pkg/cli/values``, ``pkg/strvals``, ``pkg/chart/common/util/coalesce.go`` and
``sigs.k8s.io/yaml`` in Helm 4.3); tests hold this module against the real binaries. Where Helm 3.22 differs
it is said at the place.
"""

from __future__ import annotations

import copy
import json
import math
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from bireme.errors import BiremeError

GLOBAL = "global"
_EXACT = 2**53

Values = dict[str, Any]


# --- YAML as Helm reads it ---

_WORDS: Mapping[str, bool | None] = {
    form: value
    for words, value in (("y yes true on", True), ("n no false off", False), ("null", None))
    for word in words.split()
    for form in (word, word.capitalize(), word.upper())
} | {"": None, "~": None}
_NOT_JSON = {sign + word for word in (".inf", ".Inf", ".INF") for sign in ("", "+", "-")} | {
    ".nan",
    ".NaN",
    ".NAN",
}
# Go's integer syntax with a base prefix, where a leading zero alone means octal; without underscores.
_BASED = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_PLAIN = "plain"
_RESOLVED = {_PLAIN} | {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null")}


class _Loader(yaml.CSafeLoader):
    """Leaves plain scalars to this module: PyYAML's own words and numbers are not Go's."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        tag: str = super().resolve(kind, value, (False, False))  # type: ignore[no-untyped-call]
        return tag


def parse_yaml(text: str, where: str) -> Values:
    """Read ``text`` as Helm reads a values file: YAML 1.1 words, Go's integers, dates as strings.

    Several documents are merged in order, as Helm 4 does (Helm 3 reads only the first). ``where`` names the
    source in errors. Raises BiremeError for broken YAML (with its line) and for anything but a mapping.
    """
    merged: Values = {}
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            document = _plain(node, where, frozenset())
            if document is not None and not isinstance(document, dict):
                raise BiremeError(
                    f"{where} holds {_kind(document)}, not a mapping: it must be made of `key: value` lines"
                )
            merged = merge(merged, document or {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise BiremeError(f"{where}{line} is not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise BiremeError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    return merged


def _plain(node: yaml.Node | None, where: str, inside: frozenset[int]) -> Any:
    if node is None:
        return None
    if isinstance(node, yaml.ScalarNode):
        return _tagged_scalar(node, where)
    if id(node) in inside:
        raise BiremeError(f"{where} line {node.start_mark.line + 1}: an anchor contains itself")
    inside |= {id(node)}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, where, inside) for item in node.value]
    return _mapping(node, where, inside)


def _mapping(node: yaml.Node, where: str, inside: frozenset[int]) -> Values:
    result: Values = {}
    for key_node, value_node in node.value:
        if isinstance(key_node, yaml.ScalarNode) and key_node.value == "<<" and key_node.tag == _PLAIN:
            # Helm's reader merges where the `<<` stands, so keys written before it are overwritten.
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
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int):
        return str(key)
    if isinstance(key, float):
        return repr(key)
    raise BiremeError(f"{where} line {node.start_mark.line + 1}: {_kind(key)} cannot be a key")


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
    if text in _WORDS:
        return _WORDS[text]
    if not text or text[0] not in "+-.0123456789":
        return text
    if text[0] == ".":
        return _float(text) if _FLOAT.fullmatch(text) else text
    digits = text.replace("_", "")
    integer = _integer(digits)
    if integer is not None:
        return _json_number(integer)
    return _float(digits, otherwise=text) if _FLOAT.fullmatch(digits) else text


def _integer(digits: str) -> int | None:
    match = _BASED.fullmatch(digits)
    if not match:
        return None
    sign, hexadecimal, binary, octal, decimal = match.groups()
    base, body = next(
        (base, body)
        for base, body in ((16, hexadecimal), (2, binary), (8, octal), (10, decimal))
        if body is not None
    )
    value = int(sign + body, base)
    fits = -(2**63) <= value < 2**63 or (not sign and value < 2**64)
    return value if fits else None


def _float(digits: str, otherwise: str | None = None) -> Any:
    value = float(digits)
    return _json_number(value) if math.isfinite(value) else (otherwise or digits)


def _json_number(value: int | float) -> int | float:
    """A number after Helm's detour through JSON: a double, printed without a point when whole."""
    double = float(value)
    return int(double) if double.is_integer() and abs(double) <= _EXACT else double


def _kind(value: Any) -> str:
    names = {
        dict: "a mapping",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "nothing (null)",
    }
    return names.get(type(value), "a number")


# --- -f, --set-json, --set, --set-string, --set-file ---


def load(
    files: Sequence[Path],
    sets: Sequence[str] = (),
    set_strings: Sequence[str] = (),
    set_jsons: Sequence[str] = (),
    set_files: Sequence[str] = (),
) -> Values:
    """The user's values: ``files`` merged in order, then the settings, in the order Helm applies them.

    Whatever the order on the command line, Helm applies --set-json, then --set, --set-string and --set-file;
    within one kind the later wins. A null stays in the result: it deletes a chart's default in `coalesce`.
    An integer from --set is exact; any number from a file is a double, as in Helm.
    Raises BiremeError for a file that is missing or not a mapping, and for a setting that Helm refuses.
    """
    merged: Values = {}
    for file in files:
        merged = merge(merged, read_file(file))
    for text in set_jsons:
        if text.strip().startswith("{"):
            merged = merge(merged, _json_object(text))
        else:
            _Setting("--set-json", text, _no_reader, is_json=True).apply(merged)
    for text in sets:
        _Setting("--set", text, _typed).apply(merged)
    for text in set_strings:
        _Setting("--set-string", text, str).apply(merged)
    for text in set_files:
        _Setting("--set-file", text, lambda name: _read(Path(name), "--set-file")).apply(merged)
    return merged


def read_file(file: Path) -> Values:
    """One values file, as Helm reads it. Raises BiremeError when it is missing, broken or not a mapping."""
    return parse_yaml(_read(file, "values file"), str(file))


def _read(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BiremeError(f"{what} {file} does not exist: check the path") from error
    except UnicodeDecodeError as error:
        raise BiremeError(f"{what} {file} is not UTF-8 text") from error
    except OSError as error:
        raise BiremeError(f"{what} {file} cannot be read: {error.strerror}") from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """``over`` on top of ``base``: mappings merge, lists and all else replace. Neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged


def _json_object(text: str) -> Values:
    try:
        return dict(_JSON.decode(text.strip()))
    except ValueError as error:
        raise BiremeError(f"--set-json {text!r} is not valid JSON: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(
    parse_float=lambda text: _json_number(float(text)),
    parse_int=lambda text: _json_number(int(text)),
    parse_constant=_refuse_constant,
)


def _no_reader(text: str) -> Any:
    raise AssertionError(f"--set-json reads JSON, not {text!r}")


_SET_INT = re.compile(r"[+-]?[0-9]+", re.ASCII)
_SET_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}


def _typed(text: str) -> Any:
    """What --set makes of a value: true, false, null and decimal integers have a type, the rest is text."""
    if text.lower() in _SET_WORDS:
        return _SET_WORDS[text.lower()]
    if text == "0":
        return 0
    if not text.startswith("0") and _SET_INT.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    return text


class _Setting:
    """One --set style argument: ``a.b[0].c=1,d={x,y}``, applied onto a tree of values in place.

    A backslash makes the next character plain. Accepts what Helm accepts, odd corners included, because a
    command line must mean the same here and there. One corner differs between the Helms: an index without its
    closing bracket is ignored by Helm 4 and refused by Helm 3, and here.
    """

    MAX_INDEX = 65536
    MAX_DEPTH = 30

    def __init__(self, option: str, text: str, reader: Callable[[str], Any], is_json: bool = False) -> None:
        self._option = option
        self._text = text
        self._reader = reader
        self._is_json = is_json
        self._at = 0

    def apply(self, values: Values) -> None:
        while self._assign(values, 0):
            pass

    def _refuse(self, why: str) -> BiremeError:
        return BiremeError(f"{self._option} {self._text!r}: {why}")

    def _until(self, stops: str) -> tuple[str, str]:
        """The text up to one of ``stops``, and that character, or "" at the end."""
        taken: list[str] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if char in stops:
                return "".join(taken), char
            if char == "\\":
                if self._at == len(self._text):
                    break
                char = self._text[self._at]
                self._at += 1
            taken.append(char)
        return "".join(taken), ""

    def _assign(self, into: Values, depth: int) -> bool:
        """Read one ``key…=value`` into ``into``; False at the end of the text."""
        key, stop = self._until("=[,.")
        if stop == "":
            if key:
                raise self._refuse(f"key {key!r} has no value: write {key}=VALUE")
            return False
        if stop == ",":
            raise self._refuse(f"key {key!r} has no value before the comma (\\, is a plain comma)")
        if stop == ".":
            return self._nested(into, key, depth + 1)
        if stop == "[":
            index = self._index()
            found = into.get(key, [])
            if not isinstance(found, list):
                raise self._refuse(f"{key} is {_kind(found)}, not a list, so {key}[{index}] cannot be set")
            items, more = self._item(found, index, depth)
            self._put(into, key, items)
            return more
        at_end = not self._is_json and self._at == len(self._text)
        self._put(into, key, self._value())
        return not at_end

    @staticmethod
    def _put(into: Values, key: str, value: Any) -> None:
        if key:
            into[key] = value

    def _nested(self, into: Values, key: str, depth: int) -> bool:
        if depth > self.MAX_DEPTH:
            raise self._refuse(f"more than {self.MAX_DEPTH} levels of keys")
        inner = into.get(key, {})
        if not isinstance(inner, dict):
            raise self._refuse(f"{key} is {_kind(inner)}, not a mapping, so no key under it can be set")
        more = self._assign(inner, depth)
        if more and not inner:
            raise self._refuse(f"key {key!r} has no value")
        if inner:
            self._put(into, key, inner)
        return more

    def _index(self) -> int:
        text, stop = self._until("]")
        if not stop or not _SET_INT.fullmatch(text):
            raise self._refuse(f"[{text} is not a list index: write [0], [1], …")
        index = int(text)
        if not 0 <= index <= self.MAX_INDEX:
            raise self._refuse(f"list index {index} is not between 0 and {self.MAX_INDEX}")
        return index

    def _item(self, found: list[Any], index: int, depth: int) -> tuple[list[Any], bool]:
        """``found`` with its item ``index`` set; False, and nothing added, when the text ends too early."""
        rest, stop = self._until("[.=")
        if rest:
            raise self._refuse(f"unexpected {rest!r} after list index {index}")
        if stop == "":
            return found, False
        current = found[index] if index < len(found) else None
        item: Any
        if stop == "[":
            inner_index = self._index()
            if current is not None and not isinstance(current, list):
                raise self._refuse(f"item {index} is {_kind(current)}, not a list")
            item, more = self._item(current or [], inner_index, depth)
        elif stop == ".":
            item = current if isinstance(current, dict) else {}
            if index < len(found):
                found[index] = item
            more = self._assign(item, depth)
        else:
            item, more = self._value(), True
        if not more:
            return found, False
        found = found + [None] * (index + 1 - len(found))
        found[index] = item
        return found, True

    def _value(self) -> Any:
        if self._is_json:
            return self._json_value()
        if self._text[self._at : self._at + 1] == "{":
            self._at += 1
            return self._braced()
        if self._at == len(self._text):
            return ""
        return self._reader(self._until(",")[0])

    def _braced(self) -> list[Any]:
        items: list[Any] = []
        while True:
            text, stop = self._until(",}")
            if stop == "":
                raise self._refuse("a list must end with '}'")
            items.append(self._reader(text))
            if stop == "}":
                break
        if self._text[self._at : self._at + 1] == ",":
            self._at += 1
        return items

    def _json_value(self) -> Any:
        if self._skip_blank():
            return None
        try:
            value, self._at = _JSON.raw_decode(self._text, self._at)
        except ValueError as error:
            raise self._refuse(f"not valid JSON: {error}") from error
        self._skip_blank()
        return value

    def _skip_blank(self) -> bool:
        """Skip spaces, and one comma after them; True when there was no value in between."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        if self._at == len(self._text):
            return True
        if self._text[self._at] == ",":
            self._at += 1
            return True
        return False


# --- what templates see as .Values ---


@dataclass(frozen=True)
class Chart:
    """The parts of a chart that decide its values; ``dependencies`` are the charts under charts/."""

    name: str
    metadata: Mapping[str, Any]
    values: Values
    schema: Mapping[str, Any] | None
    dependencies: tuple[Chart, ...]

    @property
    def requirements(self) -> list[Mapping[str, Any]]:
        """The dependencies as Chart.yaml declares them."""
        return [entry for entry in self.metadata.get("dependencies") or [] if isinstance(entry, Mapping)]


def load_chart(chart_dir: Path) -> Chart:
    """Read a chart directory with its dependencies: directories, links and .tgz archives under charts/.

    Raises BiremeError when there is no Chart.yaml or a file in it is broken.
    """
    if not (chart_dir / "Chart.yaml").is_file():
        raise BiremeError(f"{chart_dir} is not a chart: it has no Chart.yaml")

    def read(name: str) -> str | None:
        file = chart_dir / name
        return _read(file, "chart file") if file.is_file() else None

    found = sorted((chart_dir / "charts").iterdir()) if (chart_dir / "charts").is_dir() else []
    dependencies = [load_chart(path) for path in found if (path / "Chart.yaml").is_file()]
    dependencies += [_load_archive(path) for path in found if path.suffix == ".tgz"]
    return _chart(read, str(chart_dir), tuple(dependencies))


def _load_archive(archive: Path) -> Chart:
    wanted = {"Chart.yaml", "values.yaml", "values.schema.json"}
    texts: dict[PurePosixPath, str] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                content = tar.extractfile(member) if path.name in wanted and member.isfile() else None
                if content is not None:
                    texts[path] = content.read().decode()
    except (tarfile.TarError, OSError, UnicodeDecodeError) as error:
        raise BiremeError(f"{archive} is not a packaged chart: {error}") from error
    roots = sorted(
        {path.parent for path in texts if path.name == "Chart.yaml"}, key=lambda path: len(path.parts)
    )
    if not roots:
        raise BiremeError(f"{archive} is not a packaged chart: it has no Chart.yaml")

    def build(folder: PurePosixPath) -> Chart:
        below = [root for root in roots if root.parent == folder / "charts"]
        return _chart(
            lambda name: texts.get(folder / name),
            f"{archive}:{folder}",
            tuple(build(root) for root in below),
        )

    return build(roots[0])


def _chart(read: Callable[[str], str | None], where: str, dependencies: tuple[Chart, ...]) -> Chart:
    metadata = parse_yaml(read("Chart.yaml") or "", f"{where}/Chart.yaml")
    schema = read("values.schema.json")
    try:
        parsed = json.loads(schema) if schema else None
    except ValueError as error:
        raise BiremeError(f"{where}/values.schema.json is not valid JSON: {error}") from error
    return Chart(
        name=str(metadata.get("name", "")),
        metadata=metadata,
        values=parse_yaml(read("values.yaml") or "", f"{where}/values.yaml"),
        schema=parsed,
        dependencies=dependencies,
    )


def coalesce(chart_dir: Path, user_values: Mapping[str, Any], helm: str = "helm") -> Values:
    """What the templates of ``chart_dir`` see as .Values when the user gives ``user_values``.

    Chart defaults, those of enabled dependencies under their names (or aliases), ``global`` handed down,
    ``import-values``, and a null deletes a default. ``helm`` is "helm" (4) or "helm3": Helm 4 drops keys
    whose *default* is null, Helm 3 keeps them. Raises BiremeError when a dependency's values are no mapping.
    """
    return coalesce_chart(load_chart(chart_dir), user_values, helm)[1]


def coalesce_chart(chart: Chart, user_values: Mapping[str, Any], helm: str = "helm") -> tuple[Chart, Values]:
    """Like `coalesce`, for a loaded chart; also returns the chart with only its enabled dependencies."""
    rules = _Coalescer(drop_default_nulls=helm != "helm3")
    user = copy.deepcopy(dict(user_values))
    enabled = rules.import_values(rules.enable(chart, user, ""))
    return enabled, rules.coalesce(enabled, user)


@dataclass(frozen=True)
class _Coalescer:
    drop_default_nulls: bool

    def coalesce(self, chart: Chart, given: Mapping[str, Any], merge_only: bool = False) -> Values:
        """``given`` over the defaults of ``chart``; ``merge_only`` keeps nulls for a later pass."""
        return self._onto(chart, copy.deepcopy(dict(given)), merge_only)

    def _onto(self, chart: Chart, values: Values, merge_only: bool) -> Values:
        self._defaults(chart, values, merge_only)
        for dependency in chart.dependencies:
            below = values.setdefault(dependency.name, {})
            if not isinstance(below, dict):
                raise BiremeError(
                    f"{dependency.name} is {_kind(below)}, but {chart.name} depends on a chart of that name: "
                    "its values must be a mapping"
                )
            self._hand_down_globals(values, below)
            values[dependency.name] = self._onto(dependency, below, merge_only)
        return values

    def _defaults(self, chart: Chart, values: Values, merge_only: bool) -> None:
        children = {dependency.name for dependency in chart.dependencies}
        clean = self.drop_default_nulls and not merge_only
        for key, default in copy.deepcopy(chart.values).items():
            if key not in values:
                if default is None and clean:
                    continue
                values[key] = _without_nulls(default) if clean else default
            elif values[key] is None and not merge_only:
                del values[key]
            elif isinstance(values[key], dict) and isinstance(default, dict):
                keep_nulls = merge_only or key in children
                below = _without_nulls(default) if self.drop_default_nulls and not keep_nulls else default
                self._tables(values[key], below, keep_nulls)

    def _tables(self, values: Values, defaults: Values, merge_only: bool) -> None:
        for key, default in defaults.items():
            if key not in values:
                values[key] = default
            elif values[key] is None:
                if default is not None and not merge_only:
                    del values[key]
            elif isinstance(values[key], dict) and isinstance(default, dict):
                self._tables(values[key], default, merge_only)

    def _hand_down_globals(self, parent: Values, child: Values) -> None:
        above, below = parent.get(GLOBAL, {}), child.get(GLOBAL, {})
        if not isinstance(above, dict) or not isinstance(below, dict):
            return
        for key, value in above.items():
            if not isinstance(value, dict):
                if not isinstance(below.get(key), dict):
                    below[key] = value
            elif key not in below:
                below[key] = dict(value)
            elif isinstance(below[key], dict):
                handed = dict(value)
                self._tables(handed, below[key], True)
                below[key] = handed
        child[GLOBAL] = below

    def enable(self, chart: Chart, values: Mapping[str, Any], path: str) -> Chart:
        """``chart`` without the dependencies that tags and conditions switch off, aliases applied."""
        if not chart.requirements:
            return chart
        declared = {entry.get("name") for entry in chart.requirements}
        present = [child for child in chart.dependencies if child.name not in declared]
        for entry in chart.requirements:
            match = next((child for child in chart.dependencies if child.name == entry.get("name")), None)
            if match is not None:
                present.append(replace(match, name=str(entry.get("alias") or match.name)))
        seen = self.coalesce(replace(chart, dependencies=tuple(present)), values)
        off = {_entry_name(entry) for entry in chart.requirements if not _is_enabled(entry, seen, path)}
        kept = tuple(
            self.enable(child, seen, f"{path}{child.name}.") for child in present if child.name not in off
        )
        metadata = {
            **chart.metadata,
            "dependencies": [
                {**entry, "name": _entry_name(entry)}
                for entry in chart.requirements
                if _entry_name(entry) not in off
            ],
        }
        return replace(chart, dependencies=kept, metadata=metadata)

    def import_values(self, chart: Chart) -> Chart:
        """``chart`` with the defaults that its dependencies export to it, below its own."""
        chart = replace(chart, dependencies=tuple(self.import_values(child) for child in chart.dependencies))
        if not chart.requirements:
            return chart
        own = self.coalesce(chart, {}, merge_only=True)
        imported: Values = {}
        for table in _imports(chart.requirements, own):
            self._tables(imported, table, True)
        own = copy.deepcopy(own)
        self._tables(own, imported, True)
        return replace(chart, values=own)


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(item) for key, item in value.items() if item is not None}


def _entry_name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("alias") or entry.get("name"))


def _is_enabled(entry: Mapping[str, Any], values: Mapping[str, Any], path: str) -> bool:
    for condition in str(entry.get("condition") or "").strip().split(","):
        found = lookup(values, f"{path}{condition}") if condition else None
        if isinstance(found, bool):
            return found
    known = values.get("tags")
    tags = [known.get(tag) for tag in entry.get("tags") or []] if isinstance(known, dict) else []
    return True in tags or False not in tags


def lookup(values: Any, path: str) -> Any:
    """The value at a dotted ``path``, or None where there is none."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _imports(requirements: Sequence[Mapping[str, Any]], values: Values) -> Iterator[Values]:
    for entry in requirements:
        for wanted in entry.get("import-values") or []:
            child, parent = (
                (str(wanted.get("child")), str(wanted.get("parent")))
                if isinstance(wanted, dict)
                else (f"exports.{wanted}", ".")
            )
            table = lookup(values, f"{_entry_name(entry)}.{child}")
            if not isinstance(table, dict):
                continue
            table = copy.deepcopy(table)
            for part in [] if parent == "." else reversed(parent.split(".")):
                table = {part: table}
            yield table
