"""The site of the documents: every page is there, every link leads somewhere, and search finds them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from bireme.core.paths import Paths


def write(root: Path, folder: Path, **settings: Any) -> None:
    """What `mkdocs build --strict` does."""
    build(load_config(str(root / "mkdocs.yml"), site_dir=str(folder), strict=True, **settings))


@pytest.fixture(scope="module")
def site(paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write(paths.root, folder)
    return folder


def test_every_document_has_a_page(site: Path, paths: Paths) -> None:
    documents = [file.relative_to(paths.root) for file in paths.root.glob("docs/**/*.md")]
    charts = [file.relative_to(paths.root) for file in paths.root.glob("charts/*/README.md")]
    pages = [page.parent if page.name == "README.md" else page.with_suffix("") for page in documents + charts]
    assert [page for page in pages if not (site / page / "index.html").is_file()] == []


def test_the_first_page_shows_the_picture_of_a_plan(site: Path) -> None:
    assert 'src="docs/plan.svg"' in (site / "index.html").read_text()
    assert "<svg" in (site / "docs/plan.svg").read_text()


@pytest.mark.parametrize(("text", "nav"), [("[two](two.md)", ["README.md"]), ("one", ["two.md"])])
def test_a_link_or_row_that_leads_nowhere_and_a_page_without_a_row_end_it(
    paths: Paths, tmp_path: Path, text: str, nav: list[str]
) -> None:
    root = tmp_path / "project"
    (root / "docs").mkdir(parents=True)
    (root / "hack").mkdir()
    for name in ("mkdocs.yml", "hack/docs_hook.py"):
        shutil.copy(paths.root / name, root / name)
    (root / "README.md").write_text(f"# One\n\n{text}\n")
    for words in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *words], cwd=root, check=True)
    with pytest.raises(Abort, match=r"[12] warnings"):
        write(root, tmp_path / "site", nav=nav)
