"""Where the project, its cache and its state are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.core import paths as paths_module
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    for folder in ("charts/common", "values/instances", "hack/tools"):
        (root / folder).mkdir(parents=True)
    return root


def test_in_a_folder_of_a_clone_the_clone_is_the_root(checkout: Path) -> None:
    deep = checkout / "charts" / "common"

    found = Paths.discover({"HOME": "/home/someone"}, start=deep)

    assert found.root == checkout
    assert (found.charts, found.values) == (checkout / "charts", checkout / "values")
    assert (found.schemas, found.hack) == (checkout / "schemas", checkout / "hack")


def test_outside_a_clone_the_clone_of_the_package_is_the_root(
    tmp_path: Path,
) -> None:
    found = Paths.discover({"HOME": "/home/someone"}, start=tmp_path)

    assert (found.root / "src" / "bireme" / "core" / "paths.py").is_file()


def test_the_error_without_any_clone_says_where_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths_module, "__file__", str(tmp_path / "site-packages" / "paths.py"))

    with pytest.raises(BiremeError, match=f"no Bireme checkout around {tmp_path}: run bireme inside a clone"):
        Paths.discover({}, start=tmp_path)


@pytest.mark.parametrize(
    ("environ", "cache", "state"),
    [
        ({"HOME": "/h"}, "/h/.cache/bireme", "/h/.local/state/bireme"),
        (
            {"HOME": "/h", "XDG_CACHE_HOME": "/x/c", "XDG_STATE_HOME": "/x/s"},
            "/x/c/bireme",
            "/x/s/bireme",
        ),
        (
            {"HOME": "/h", "XDG_CACHE_HOME": "/x/c", "BIREME_CACHE": "/b/c", "BIREME_STATE": "/b/s"},
            "/b/c",
            "/b/s",
        ),
    ],
    ids=["home", "xdg", "own variables win"],
)
def test_environment_variables_move_the_cache_and_the_state(
    checkout: Path, environ: dict[str, str], cache: str, state: str
) -> None:
    found = Paths.discover(environ, start=checkout)

    assert (found.cache, found.state) == (Path(cache), Path(state))
