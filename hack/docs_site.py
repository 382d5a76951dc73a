"""Write the documents as a site: `docs_site.py FOLDER`.

The pages are the project's Markdown files where they are, so that their links hold, and for each chart a page
that lists what its schema accepts. A link to a page or a heading that is not there ends it.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from bireme.core.paths import Paths

_LEFT_OUT = re.compile(r"^\.github/")


def pages(root: Path) -> list[Path]:
    """The Markdown files of the clone at ``root``, and all files of docs/, seen from there."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True)
    names = listed.stdout.splitlines()
    found = [name for name in names if name.endswith(".md") or name.startswith("docs/")]
    return [Path(name) for name in found if not _LEFT_OUT.search(name)]


def values_page(chart: str, schema: Mapping[str, Any]) -> str:
    """The page that lists what a chart's schema accepts: a table of single keys, and one for each group."""
    tables = {key: list(_rows(schema, part, key)) for key, part in schema["properties"].items()}
    single = [rows[0] for rows in tables.values() if len(rows) == 1]
    groups = {key: rows for key, rows in tables.items() if len(rows) > 1}
    lines = [f"# Values of {chart}", "", "What the schema accepts; the [README](README.md) has the defaults."]
    for title, rows in ({"Single values": single} | groups).items():
        lines += ["", f"## {title}", "", "| value | takes | what it is |", "|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def _rows(schema: Mapping[str, Any], part: Mapping[str, Any], name: str) -> Iterator[str]:
    part = _resolved(schema, part)
    what = str(part.get("description", "")).replace("|", "\\|").replace("\n", " ")
    yield f"| `{name}` | {_accepts(part)} | {what} |"
    for key, inner in part.get("properties", {}).items():
        yield from _rows(schema, inner, f"{name}.{key}")
    for inner, suffix in ((part.get("additionalProperties"), ".NAME"), (part.get("items"), "[]")):
        if isinstance(inner, dict) and _resolved(schema, inner).get("properties"):
            yield from _rows(schema, inner, f"{name}{suffix}")


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in part:
        return part
    target = schema["$defs"][part["$ref"].rpartition("/")[2]]
    own = {key: value for key, value in part.items() if key != "$ref"}
    return {**_resolved(schema, target), **own}


def _accepts(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{json.dumps(each)}`" for each in part["enum"])
    kinds = part.get("type", [])
    words = [" or ".join([kinds] if isinstance(kinds, str) else kinds)]
    words += [f"{word} {part[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in part]
    return " ".join(words)


def collect(paths: Paths, folder: Path) -> None:
    """Put the pages into ``folder``."""
    for page in pages(paths.root):
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(paths.root / page, folder / page)
    for schema in sorted(paths.charts.glob("*/values.schema.json")):
        name = schema.parent.name
        text = values_page(name, json.loads(schema.read_text(encoding="utf-8")))
        (folder / "charts" / name / "values.md").write_text(text, encoding="utf-8")


def navigation(folder: Path) -> list[dict[str, Any]]:
    """The menu: the charts with their values, the documents, the walkthroughs, the decisions."""

    def titled(*patterns: str) -> list[dict[str, str]]:
        files = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
        return [{_title(file): str(file.relative_to(folder))} for file in files]

    charts = [
        {name: [{"Chart": f"charts/{name}/README.md"}, {"Values": f"charts/{name}/values.md"}]}
        for name in sorted(file.parent.name for file in folder.glob("charts/*/README.md"))
    ]
    return [
        {"Bireme": "README.md"},
        {"Charts": charts},
        {"Documents": titled("docs/*.md", "images/README.md", "hack/*/README.md")},
        {"Walkthroughs": titled("docs/walkthroughs/*.md")},
        {"Decisions": titled("docs/adr/*.md")},
        {"Project": titled("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")},
    ]


def _title(page: Path) -> str:
    found = re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].strip() if found else page.stem


def write(paths: Paths, folder: Path) -> None:
    """Write the site into ``folder``. Raises Abort when a link leads nowhere."""
    with tempfile.TemporaryDirectory() as source:
        collect(paths, Path(source))
        config = load_config(
            str(paths.root / "mkdocs.yml"),
            docs_dir=source,
            site_dir=str(folder.resolve()),
            nav=navigation(Path(source)),
            strict=True,
        )
        build(config)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    try:
        write(Paths.discover(), options.parse_args().folder)
    except Abort as error:
        sys.exit(str(error))
