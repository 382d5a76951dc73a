"""Where values arrive: each row of fields.yaml is rendered by its charts, and has its fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.helm import Render
from tests.support.rendered import RenderChart, job_of, the

TABLE = yaml.safe_load(Path(__file__).with_name("fields.yaml").read_text(encoding="utf-8"))
ROOTS = {
    "podLabels": "spec template metadata labels",
    "podAnnotations": "spec template metadata annotations",
    "pod": "spec template spec",
    "trainer": "spec template spec containers trainer",
    "env": "spec template spec containers trainer env",
    "worker": "spec mpiReplicaSpecs Worker template",
    "launcher": "spec mpiReplicaSpecs Launcher template",
}


def rows() -> Iterator[Any]:
    """(chart, options of `render`, fields by object), named by the chart and the first field."""
    for charts, of_them in TABLE.items():
        for row in of_them:
            options = {key: each for key, each in row.items() if key != "has"}
            ((item, fields), *_) = row["has"].items()
            for chart in charts.split(", "):
                yield pytest.param(
                    chart, options, row["has"], id=f"{chart}: {item} {next(iter(fields or ['']))}"
                )


def field(content: Any, keys: str) -> Any:
    """What stands under the keys, None for nothing. All but the last have to be there."""
    root, *rest = keys.split()
    for key in (*ROOTS.get(root, root).split(), *rest):
        if isinstance(content, list) and key.isdigit():
            content = content[int(key)] if int(key) < len(content) else None
        elif isinstance(content, list):
            content = next((each for each in content if key in each.values()), None)
        else:
            content = content.get(key)
    return content


def found(rendered: Render, item: str) -> Any:
    """The object, None if there is no such one."""
    kind, *name = item.split()
    if kind == "job":
        return job_of(rendered)
    is_there = any(each.kind == kind and not each.is_hook for each in rendered.manifests)
    return the(rendered, kind, *name).thaw() if is_there else None


@pytest.mark.parametrize(("chart", "options", "has"), list(rows()))
def test_a_value_arrives_in_its_field(
    render: RenderChart, chart: str, options: Mapping[str, Any], has: Mapping[str, Any]
) -> None:
    rendered = render(chart, **options)
    for item, fields in has.items():
        content = found(rendered, item)
        if fields is None:
            assert content is None, item
        else:
            assert {keys: field(content, keys) for keys in fields} == fields


def test_an_mpijob_is_the_same_where_the_cluster_says_that_it_has_the_kind(render: RenderChart) -> None:
    values = {"image": {"repository": "team/train", "tag": "1"}, "mpi": {"orchestrator": "MPIJob"}}
    known = render("mpi-training", values=values, api_versions=("kubeflow.org/v2beta1/MPIJob",))
    assert the(known, "MPIJob") == the(render("mpi-training", values=values), "MPIJob")
