"""Recipes of root file systems (hack/images): what they inherit, and when they are made again."""

from __future__ import annotations

import hashlib
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import rootfs

from bireme.core.errors import BiremeError

ROOT = Path(__file__).parents[2]


def test_a_recipe_like_another_adds_to_its_lists_and_keeps_its_other_fields() -> None:
    base, own = rootfs.load_rootfs("torch-2.6"), rootfs.load_rootfs("mpi")
    assert own.packages[: len(base.packages)] == base.packages
    assert "openmpi-bin" in own.packages
    assert set(base.leave_out) < set(own.leave_out)
    assert (own.suite, own.env) == (base.suite, base.env)
    assert own.check != base.check


def test_a_root_file_system_is_made_again_when_its_build_script_or_a_source_changes(tmp_path: Path) -> None:
    script, source = tmp_path / "build.sh", tmp_path / "main.c"
    script.write_text("gcc\n")
    source.write_text("int main;")
    recipe = replace(rootfs.load_rootfs("python"), build=(rootfs.Build(str(script), str(source), ("gcc",)),))
    digests = [rootfs.load_rootfs("python").digest, recipe.digest]
    assert recipe.digest == digests[-1]
    for file in (script, source):
        file.write_text(file.read_text() + "\n")
        digests.append(recipe.digest)
    assert len({*digests}) == 4


def test_a_change_that_does_not_affect_the_content_keeps_the_digest() -> None:
    recipe = rootfs.load_rootfs("python")
    assert replace(recipe, env={"A": "b"}, name="snake").digest == recipe.digest
    assert replace(recipe, run=("true",)).digest != recipe.digest


def test_a_package_is_fetched_by_name_and_only_with_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "sum-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("sum-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: sum\nVersion: 1.0\n")
        files.writestr("sum-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    fetched = rootfs.fetch(f"sum==1.0 --hash=sha256:{digest}", tmp_path / "source")
    assert (fetched.name, fetched.read_bytes()) == (wheel.name, wheel.read_bytes())
    other = f"sum==1.0 --hash=sha256:{'0' * 64}"
    with pytest.raises(BiremeError, match=rf"pip cannot fetch {re.escape(other)}:\n.*HASHES"):
        rootfs.fetch(other, tmp_path / "other")


def test_an_unknown_recipe_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        BiremeError, match=r"no root file system pyton: hack/images/recipes.toml has python, "
    ):
        rootfs.load_rootfs("pyton")
