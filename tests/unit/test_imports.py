"""The modules of the harness import in one direction (docs/adr/0002)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "bireme"
# Later ones may import earlier ones; those on one line stand in this order too.
ORDER = """
errors paths store pins downloads gobuild tools helm_yaml settings values instances kubeschemas manifests
schemas render topology nccl picture changes clusters release observe shards deploy views cli pytest_plugin
""".split()  # noqa: SIM905 -- a list of words reads better as words


def imported(file: Path) -> set[str]:
    """The modules of bireme that ``file`` imports, its functions' own imports included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "bireme":
            found |= {alias.name for alias in node.names if alias.name in ORDER}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bireme."):
            found.add(str(node.module).split(".")[1])
    return found


def test_every_module_has_its_place() -> None:
    there = {path.stem for path in PACKAGE.glob("*.py")} | {"clusters"}
    assert there - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_what_stands_before_it(module: str) -> None:
    files = list((PACKAGE / module).rglob("*.py")) or [PACKAGE / f"{module}.py"]
    before = ORDER[: ORDER.index(module)]
    assert {name for file in files for name in imported(file)} - {module} <= set(before)
