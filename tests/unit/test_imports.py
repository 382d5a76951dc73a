"""Each package imports in the one direction that docs/adr/0002 lists, and without circles."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADR = ROOT / "docs/adr/0002-one-direction-of-imports.md"
PACKAGES = ["src/bireme", "runtime/src/bireme_runtime", "runtime/src/bireme_runtime/elastic"]


def order(package: str) -> list[str]:
    """The modules and folders of ``package``, the earliest first: the ADR's indented block about it."""
    block = re.search(rf"^`{package}`:\n\n((?: {{4}}.+\n)+)", ADR.read_text(), re.MULTILINE)
    assert block, f"{ADR.name} has no block about {package}"
    return re.findall(r"\w+", block[1])


def modules(package: str) -> dict[str, Path]:
    """The modules of ``package`` by their dotted name in it; a folder's own name stands for its __init__."""
    root, found = ROOT / package, {}
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = file
    return {name: file for name, file in found.items() if name}


@functools.cache
def imports(package: str) -> dict[str, set[str]]:
    """The modules of ``package`` that each of them imports, also inside its functions."""
    there, name = modules(package), package.partition("src/")[2].replace("/", ".")

    def module_of(dotted: str) -> str | None:
        """The module that ``dotted`` is, or that defines it."""
        parts = dotted.removeprefix(f"{name}.").split(".") if dotted.startswith(f"{name}.") else []
        longer_first = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((each for each in longer_first if each in there), None)

    found: dict[str, set[str]] = {module: set() for module in there}
    for module, file in there.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                dotted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                dotted = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            found[module] |= {each for each in map(module_of, dotted) if each} - {module}
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_its_place_in_the_order(package: str) -> None:
    assert sorted({module.split(".")[0] for module in modules(package)}) == sorted(order(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_imports_only_what_stands_before_it(package: str) -> None:
    places = order(package)
    for module, imported in imports(package).items():
        place = module.split(".")[0]
        used = {each.split(".")[0] for each in imported} - {place}
        assert used <= set(places[: places.index(place)]), module


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    graphlib.TopologicalSorter(imports(package)).prepare()
