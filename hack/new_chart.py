"""Make the chart of a training job: charts/NAME with its schema and golden files.

The files come from hack/chart, where NAME stands for the name. Values that all job charts share come from
charts/torch-elastic, with their descriptions. The new chart runs one Indexed Job, whose workers read their
rank and the address of worker 0, and passes the tests as it is.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import generate
from rich.console import Console

from bireme import schemas
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.core.progress import step
from bireme.tools import Toolbox

SKELETON = Path(__file__).with_name("chart")
PATTERN = "torch-elastic"
"""The chart whose values.yaml describes the shared keys."""
COMMON = "schemas/common.schema.json"
DOCUMENT = "docs/charts.md"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_NAME = 30


@click.command(help=__doc__)
@click.argument("name")
def main(name: str) -> None:
    paths = Paths.discover(start=Path(__file__))
    for file in make_chart(paths, name):
        click.echo(file.relative_to(paths.root))
    toolbox = Toolbox(paths)
    with step(Console(stderr=True), "Writing its schema, README and golden files"):
        schemas.write(paths)
        (paths.charts / name / "README.md").write_text(generate.chart_readme(paths, toolbox, name))
        subprocess.run([sys.executable, "-m", "tests.render.golden"], cwd=paths.root, check=True)
    click.echo(
        f"charts/{name} is made. Next: its description in Chart.yaml, its environment in _pod.tpl, values,"
        f"\nits row in {DOCUMENT}; then make schemas docs golden, and make test"
    )


def make_chart(paths: Paths, name: str) -> list[Path]:
    """Write the files that are not generated; returns them. Raises BiremeError for a name that cannot be."""
    chart = paths.charts / name
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise BiremeError(
            f"{name} cannot name a chart: use lower-case words and dashes, at most {_LONGEST_NAME} characters"
        )
    if chart.exists():
        raise BiremeError(f"charts/{name} exists already: take another name, or remove it")
    shutil.copytree(SKELETON, chart)
    for file in sorted(chart.rglob("*")):
        if file.is_file():
            file.write_text(file.read_text().replace("NAME", name))
    schema = paths.root / f"schemas/{name}.schema.json"
    shutil.move(chart / "schema.json", schema)
    shared = (paths.charts / PATTERN / "values.yaml").read_text()
    own = (chart / "values.yaml").read_text()
    (chart / "values.yaml").write_text(merged_values(shared, own, shared_keys(paths)))
    (chart / "charts").mkdir()
    (chart / "charts/common").symlink_to("../../common")
    document = paths.root / DOCUMENT
    document.write_text(_with_row(document.read_text(), name))
    return [*sorted(file for file in chart.rglob("*") if file.is_file()), schema]


def shared_keys(paths: Paths) -> set[str]:
    """The top-level values that every job chart has."""
    definitions: Mapping[str, Any] = json.loads((paths.root / COMMON).read_text())["$defs"]
    keys: set[str] = set()
    definition = definitions["trainingJob"]
    while True:
        keys |= set(definition["properties"])
        if "extends" not in definition:
            return keys
        definition = definitions[definition["extends"].rpartition("/")[2]]


def merged_values(shared: str, own: str, keys: set[str]) -> str:
    """The blocks of ``keys`` in ``shared``; those of ``own`` replace them or come last."""
    mine = _blocks(own)
    kept = {key: block for key, block in _blocks(shared).items() if key in keys}
    replaced = {key: _gap(block) + mine.pop(key) for key, block in kept.items() if key in mine}
    return "".join([*(kept | replaced).values(), "\n", *mine.values()])


def _blocks(values: str) -> dict[str, str]:
    """The text of each top-level key of a values.yaml, with the comments and empty lines above it."""
    block = r"^(?:#.*\n|\n)*(?P<key>\w+):.*\n(?: .*\n)*"
    return {found["key"]: found[0] for found in re.finditer(block, values, re.MULTILINE)}


def _gap(block: str) -> str:
    return "\n" if block.startswith("\n") else ""


def _with_row(document: str, name: str) -> str:
    """The document with the chart's command at the end of its first table."""
    before, separator, rest = document.partition("\n\nThe images of")
    row = f"| one {name} job | `helm install {name} charts/{name} --set workers=2` |"
    return f"{before}\n{row}{separator}{rest}"


if __name__ == "__main__":
    try:
        main()
    except BiremeError as error:
        sys.exit(f"error: {error}")
