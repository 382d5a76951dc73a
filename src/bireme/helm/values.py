"""Values as Helm merges and coalesces them.

The rules are Helm's own (``pkg/cli/values`` and ``pkg/chart/common/util/coalesce.go`` in Helm 4.3); tests
hold this module against the real binaries. Where Helm 3.22 differs it is said at the place.
"""

from __future__ import annotations

import copy
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from bireme.errors import BiremeError
from bireme.helm.settings import Setting, json_object, no_reader, typed
from bireme.helm.yaml import Values, kind_of, parse_yaml
from bireme.helm.yaml import merge as merge

GLOBAL = "global"


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
            merged = merge(merged, json_object(text))
        else:
            Setting("--set-json", text, no_reader, is_json=True).apply(merged)
    for text in sets:
        Setting("--set", text, typed).apply(merged)
    for text in set_strings:
        Setting("--set-string", text, str).apply(merged)
    for text in set_files:
        Setting("--set-file", text, lambda name: read_text(Path(name), "--set-file")).apply(merged)
    return merged


def read_file(file: Path) -> Values:
    """One values file, as Helm reads it. Raises BiremeError when it is missing, broken or not a mapping."""
    return parse_yaml(read_text(file, "values file"), str(file))


def read_text(file: Path, what: str) -> str:
    """A text file; ``what`` is what errors call it. Raises BiremeError when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BiremeError(f"{what} {file} does not exist: check the path") from error
    except UnicodeDecodeError as error:
        raise BiremeError(f"{what} {file} is not UTF-8 text") from error
    except OSError as error:
        raise BiremeError(f"{what} {file} cannot be read: {error.strerror}") from error


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
        return read_text(file, "chart file") if file.is_file() else None

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
                    f"{dependency.name} is {kind_of(below)}, but {chart.name} depends on a chart of that "
                    "name: its values must be a mapping"
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
