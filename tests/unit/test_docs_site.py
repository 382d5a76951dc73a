"""The site of the documents: every page is there, every link leads somewhere, and search finds them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import docs_site
import pytest
from mkdocs.exceptions import Abort

from bireme.core.paths import Paths

CHARTS = sorted(file.parent.name for file in Path(__file__).parents[2].glob("charts/*/README.md"))


@pytest.fixture(scope="module")
def site(paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    docs_site.write(paths, folder)
    return folder


def test_every_document_has_a_page(site: Path, paths: Paths) -> None:
    pages = [page.with_suffix("") for page in docs_site.pages(paths.root) if page.suffix == ".md"]
    expected = [page.parent if page.name == "README" else page for page in pages]
    assert [page for page in expected if not (site / page / "index.html").is_file()] == []


@pytest.mark.parametrize("chart", CHARTS)
def test_the_values_of_a_chart_come_from_its_schema(site: Path, paths: Paths, chart: str) -> None:
    page = (site / f"charts/{chart}/values/index.html").read_text()
    schema = json.loads((paths.charts / chart / "values.schema.json").read_text())
    assert [key for key in schema["properties"] if f"<code>{key}</code>" not in page] == []


def test_the_first_page_shows_the_picture_of_a_plan(site: Path) -> None:
    assert 'src="docs/plan.svg"' in (site / "index.html").read_text()
    assert "<svg" in (site / "docs/plan.svg").read_text()


def test_search_finds_fsx(site: Path) -> None:
    index: dict[str, Any] = json.loads((site / "search/search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "fsx" in entry["text"].lower()}
    assert {"charts/fsx/", "charts/fsx/values/"} <= found


def test_a_link_that_leads_nowhere_ends_it(paths: Paths, own_paths: Paths, tmp_path: Path) -> None:
    root = tmp_path / "project"
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    shutil.copy(paths.root / "mkdocs.yml", root)
    (root / "README.md").write_text("# One\n\n[two](two.md)\n")
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    with pytest.raises(Abort, match="1 warnings"):
        docs_site.write(Paths(root, own_paths.cache, own_paths.state), tmp_path / "site")
