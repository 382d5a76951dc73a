"""docs/coming-from.md: the values of each row put what the row says where it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.rendered import RenderChart, environment_of, job_of, pod_of, trainer_of

PAGE = Path(__file__).parents[2] / "docs/coming-from.md"
ROW = re.compile(r"^\| (?P<theirs>.+) \| `(?P<values>.+?)`(?P<aside>[^`|]*) \| `(?P<becomes>.+)` \|$")
IMAGE = {"mpi-training": {"image": {"repository": "team/train", "tag": "1"}}}


def rows() -> Iterator[Any]:
    """(chart, values, place, content) of each row, named by its section and by what is theirs."""
    section = chart = ""
    for line in PAGE.read_text().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        chart = line.removeprefix("Chart: ") if line.startswith("Chart: ") else chart
        if line.startswith("| ") and not line.startswith("| theirs |"):
            row = ROW.fullmatch(line)
            assert row, f"{PAGE.name} has a row of another form: {line}"
            (place, content), *more = yaml.safe_load(row["becomes"]).items()
            assert not more
            name = f"{section}: {row['theirs']}"[:70]
            yield pytest.param(chart, yaml.safe_load(row["values"]), place, content, id=name)


def there(wanted: Any, found: Any) -> bool:
    """Whether ``found`` has all that ``wanted`` has: keys of a mapping, items of a list of mappings."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and there(each, found[key]) for key, each in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return all(any(there(each, one) for one in found) for each in wanted)
    return bool(wanted == found)


@pytest.mark.parametrize(("chart", "values", "place", "content"), list(rows()))
def test_a_field_becomes_what_the_row_says(
    render: RenderChart, chart: str, values: Any, place: str, content: Any
) -> None:
    found = render(chart, values=IMAGE.get(chart, {}) | values)
    trainer = trainer_of(found)
    roots = {"job": job_of(found), "pod": pod_of(found), "trainer": trainer, "env": environment_of(trainer)}
    root, *path = place.split(".")
    value = roots[root]
    for key in path:
        value = value[key]
    assert there(content, value), f"{place} is {value}"
