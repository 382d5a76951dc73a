"""docs/coming-from.md: the values of each row put what the row says where it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.helm import Renderer
from bireme.testing.charts import RequestFor
from tests.support.rendered import container_of, environment_of

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


def pod_of(job: Any) -> Any:
    """The spec of the pods that train."""
    return job["spec"].get("mpiReplicaSpecs", {}).get("Worker", job["spec"])["template"]["spec"]


def there(wanted: Any, found: Any) -> bool:
    """Whether ``found`` has all that ``wanted`` has: keys of a mapping, items of a list of mappings."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and there(each, found[key]) for key, each in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return all(any(there(each, one) for one in found) for each in wanted)
    return bool(wanted == found)


@pytest.mark.parametrize(("chart", "values", "place", "content"), list(rows()))
def test_a_field_becomes_what_the_row_says(
    renderer: Renderer, request_for: RequestFor, chart: str, values: Any, place: str, content: Any
) -> None:
    found = renderer.render(request_for(chart, values=IMAGE.get(chart, {}) | values))
    jobs = [each.thaw() for each in found.manifests if each.kind in ("Job", "MPIJob") and not each.is_hook]
    (job,) = [each for each in jobs if any(one["name"] == "trainer" for one in pod_of(each)["containers"])]
    spec = pod_of(job)
    trainer = container_of(spec, "trainer")
    roots = {"job": job, "pod": spec, "trainer": trainer, "env": environment_of(trainer)}
    root, *path = place.split(".")
    value = roots[root]
    for key in path:
        value = value[key]
    assert there(content, value), f"{place} is {value}"
