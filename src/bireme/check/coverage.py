"""What the values files of charts reach in their templates, and the values that no template reads."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from bireme.check.files import dependencies
from bireme.core.findings import Finding
from bireme.core.manifests import within
from bireme.core.quantities import counted
from bireme.helm import Arm, Covered
from bireme.helm.values import read_file

_HEAD = """\
<!doctype html><meta charset="utf-8"><title>What ran of the templates</title>
<style>
body {font-family: sans-serif} span {display: block} summary {cursor: pointer}
.ran {background: #d4f4d4} .partly {background: #fff0b0} .missed {background: #f8d0d0} .refuses {color: #888}
</style>"""
# Helm itself reads or adds these keys.
_OF_HELM = ("enabled", "global")
# So many templates are told to people, and so many places in each that did not run.
_SHOWN = 10


@dataclass(frozen=True)
class FileCoverage:
    """The arms of one template, each with its runs in all renders together."""

    file: str
    arms: tuple[Arm, ...]

    @cached_property
    def lines(self) -> Mapping[int, int]:
        """How often each line with text or an action ran."""
        found: dict[int, int] = defaultdict(int)
        for arm in self.arms:
            for line in arm.lines if not arm.refuses else ():
                found[line] = max(found[line], arm.runs)
        return dict(sorted(found.items()))

    @cached_property
    def branches(self) -> Sequence[Arm]:
        """The arms of branches, in the order of the file, without those that refuse."""
        return [arm for arm in self.arms if arm.branch and not arm.refuses]

    @cached_property
    def refusals(self) -> Sequence[Arm]:
        """The arms that run only in renders that fail."""
        return [arm for arm in self.arms if arm.refuses]

    def missed(self) -> list[str]:
        """The lines and the arms that never ran, for people."""
        groups = [
            (ran, [*group]) for ran, group in groupby(self.lines, key=lambda line: self.lines[line] > 0)
        ]
        lines = ["-".join(map(str, dict.fromkeys((them[0], them[-1])))) for ran, them in groups if not ran]
        missed = (arm for arm in self.branches if not arm.runs and all(map(self.lines.get, arm.lines)))
        return [*lines, *(f"{arm.line} {arm.name}" for arm in missed)]


@dataclass(frozen=True)
class Coverage:
    """What ran of the templates of charts."""

    files: tuple[FileCoverage, ...]

    @property
    def lines(self) -> float:
        """The part of the lines that ran, from 0 to 1."""
        return _part(runs for file in self.files for runs in file.lines.values())

    @property
    def branches(self) -> float:
        """The part of the arms of branches that ran, from 0 to 1."""
        return _part(arm.runs for file in self.files for arm in file.branches)

    def __str__(self) -> str:
        """A line for all templates, one for each of several charts, and one for each that lacks most."""
        told = [f"templates: {self.lines:.1%} of lines and {self.branches:.1%} of branches ran"]
        refusals = [arm.runs for file in self.files for arm in file.refusals]
        told[0] += f", and {sum(map(bool, refusals))} of {len(refusals)} refusals" if refusals else ""
        charts = self.charts
        told += [f"  {chart}: {one._short}" for chart, one in charts.items() if len(charts) > 1]
        lacking = [(file, missed) for file in self.files if (missed := file.missed())]
        lacking.sort(key=lambda each: -len(each[1]))
        for file, missed in lacking[:_SHOWN]:
            more = [f"and {len(missed) - _SHOWN} more"] if len(missed) > _SHOWN else []
            places = ", ".join([*missed[:_SHOWN], *more])
            told.append(f"  {file.file}: {Coverage((file,))._short}, not: {places}")
        if (others := len(lacking) - _SHOWN) > 0:
            told.append(f"  and {counted(others, 'more template')}: --coverage FILE.html shows each line")
        return "\n".join(told)

    @property
    def charts(self) -> Mapping[str, Coverage]:
        """What ran of each chart, by its folder."""
        groups = groupby(self.files, key=lambda file: file.file.rpartition("/templates/")[0])
        return {chart: Coverage(tuple(files)) for chart, files in groups}

    def write(self, file: Path) -> None:
        """Write a page into a file that ends with .html, into any other LCOV's tracefile."""
        file.write_text(self.html() if file.suffix == ".html" else self.lcov(), encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """The parts that ran, of all templates and of each."""
        files = [{"file": each.file, **Coverage((each,))._parts} for each in self.files]
        return {**self._parts, "files": files}

    @property
    def _short(self) -> str:
        return f"lines {self.lines:.0%}, branches {self.branches:.0%}"

    @property
    def _parts(self) -> dict[str, float]:
        return {"lines": round(self.lines, 4), "branches": round(self.branches, 4)}

    def lcov(self) -> str:
        """A tracefile of LCOV, as `geninfo` documents it, which editors and code hosts read."""
        told: list[str] = []
        for file in self.files:
            told.append(f"SF:{file.file}")
            runs = [arm.runs for arm in file.branches]
            for number, arm in enumerate(file.branches):
                told.append(f"BRDA:{arm.line},{arm.branch},{number},{arm.runs or '-'}")
            told += [f"BRF:{len(runs)}", f"BRH:{sum(map(bool, runs))}"]
            told += [f"DA:{line},{count}" for line, count in file.lines.items()]
            told += [f"LF:{len(file.lines)}", f"LH:{sum(map(bool, file.lines.values()))}", "end_of_record"]
        return "\n".join([*told, ""])

    def html(self) -> str:
        """A page with the text of each template: what ran, what did not, and where a branch lacks an arm."""
        told = [_HEAD, f"<h1>{escape(str(self).splitlines()[0])}</h1>"]
        for file in self.files:
            lacking: dict[int, list[str]] = defaultdict(list)
            for arm in file.branches:
                lacking[arm.line] += [] if arm.runs else [arm.name]
            refusing = {line for arm in file.refusals for line in arm.lines}
            summary = f"{Coverage((file,))._short}: {escape(file.file)}"
            told.append(f"<details{' open' * bool(file.missed())}><summary>{summary}</summary><pre>")
            for number, text in enumerate(Path(file.file).read_text("utf-8").splitlines(), 1):
                runs, lacks = file.lines.get(number), lacking[number]
                kind = "missed" if runs == 0 else "partly" if lacks else "ran" if runs else ""
                kind = kind or "refuses" * (number in refusing)
                title = f"never: {', '.join(lacks)}" if lacks else ""
                row = f"{number:5} {'' if runs is None else runs:>5}  {escape(text)}"
                told.append(f'<span class="{kind}" title="{title}">{row}</span>')
            told.append("</pre></details>")
        return "\n".join([*told, ""])


class Runs:
    """The arms of templates, each with its runs in all renders that were added."""

    def __init__(self) -> None:
        self.files: dict[Path, list[Arm]] = {}

    def add(self, chart: Path, arms: Iterable[Arm]) -> None:
        """Count what one render of ``chart`` ran."""
        for name, group in groupby(sorted(arms, key=lambda arm: arm.file), key=lambda arm: arm.file):
            file, found = (chart / name).resolve(), list(group)
            # All renders of a file number its arms alike.
            before = self.files.get(file) or [replace(arm, runs=0) for arm in found]
            self.files[file] = [
                replace(arm, runs=arm.runs + one.runs, refuses=arm.refuses and one.refuses)
                for arm, one in zip(found, before, strict=True)
            ]

    def of(self, charts: Iterable[Path]) -> Coverage:
        """What ran of ``charts``, by file.

        A library counts where it is one of the charts: what others ran of it is added up.
        """
        folders = {chart: chart.resolve() for chart in charts}
        return Coverage(
            tuple(
                FileCoverage(str(chart / file.relative_to(folder)), tuple(arms))
                for file, arms in sorted(self.files.items())
                for chart, folder in folders.items()
                if file.is_relative_to(folder / "templates")
            )
        )


def value_findings(chart: Path, renders: Sequence[Covered]) -> Iterator[Finding]:
    """Values that no render read, and those that a template reads and values.yaml does not have.

    What a library reads beside them is another chart's. A map that is handed on as a whole takes other keys.
    """
    read = {path for covered in renders for path in covered.reads}
    others = {*dependencies(chart), *_OF_HELM}
    file = chart / "values.yaml"
    own = {
        key: value
        for key, value in (read_file(file, "chart file") if file.is_file() else {}).items()
        if key not in others
    }
    left = _unreached(chart, renders)
    for path in _leaves(own, ()):
        is_read = path in read or any((*path[:end], "*") in read for end in range(len(path)))
        *above, last = map(re.escape, path)
        # What did not run may read it, or hand on a map that holds it.
        maps = "".join(rf"|\b{key}\b(?!\.)" for key in above)
        if not is_read and not re.search(rf"\b{last}\b{maps}", left):
            yield _finding(chart, path, "no template reads it", "remove it, or correct its name")
    for path in sorted({path for covered in renders for path in covered.own_reads}):
        *above, last = path
        holder = within(own, *above)
        is_open = not holder or (*above, "*") in read
        if not is_open and last not in (*holder, *others, "*"):
            sentence = "a template reads it, values.yaml does not have it"
            yield _finding(chart, path, sentence, "add it with its default")


def _unreached(chart: Path, renders: Sequence[Covered]) -> str:
    """The lines of templates that did not run, or only in part, as those with `and` and `or` may."""
    ran: dict[str, set[int]] = defaultdict(set)
    missed: dict[str, set[int]] = defaultdict(set)
    for arms in zip(*(covered.arms for covered in renders), strict=True):
        lines = ran if any(arm.runs for arm in arms) else missed
        lines[arms[0].file].update(arms[0].lines)
    found = []
    for name in ran.keys() | missed.keys():
        text = (chart / name).read_text("utf-8") if (chart / name).is_file() else ""
        for number, line in enumerate(text.splitlines(), 1):
            if number not in ran[name] - missed[name] or re.search(r"\b(and|or)\b", line):
                found.append(line)
    return "\n".join(found)


def _finding(chart: Path, path: tuple[str, ...], sentence: str, remedy: str) -> Finding:
    file = f"{chart}/values.yaml"
    return Finding("values", sentence, remedy, severity="warning", file=file, path=".".join(path))


def _leaves(values: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key)


def _part(runs: Iterable[int]) -> float:
    found = list(runs)
    return sum(map(bool, found)) / len(found) if found else 1.0
