"""Each package imports in the one direction that docs/adr/0002 lists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADR = ROOT / "docs/adr/0002-one-direction-of-imports.md"
PACKAGES = ["src/bireme"]


def order(package: str) -> list[str]:
    """The modules and folders of ``package``, the earliest first: the ADR's indented block about it."""
    block = re.search(rf"^`{package}`:\n\n((?: {{4}}.+\n)+)", ADR.read_text(), re.MULTILINE)
    assert block, f"{ADR.name} has no block about {package}"
    return re.findall(r"\w+", block[1])


def imported(file: Path, package: str) -> set[str]:
    """The modules and folders of ``package`` that ``file`` imports, also inside its functions."""
    name, found = Path(package).name, set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == name:
            dotted = [f"{name}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            dotted = [node.module or ""]
        else:
            continue
        found |= {each.split(".")[1] for each in dotted if each.startswith(f"{name}.")}
    return found - {"__version__"}


PLACES = [(package, module) for package in PACKAGES for module in order(package)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_its_place_in_the_order(package: str) -> None:
    files = [path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
    there = {path.relative_to(ROOT / package).parts[0].removesuffix(".py") for path in files}
    assert sorted(there) == sorted(order(package))


@pytest.mark.parametrize(("package", "module"), PLACES)
def test_a_module_imports_only_what_stands_before_it(package: str, module: str) -> None:
    folder, names = ROOT / package / module, order(package)
    files = list(folder.rglob("*.py")) or [folder.with_suffix(".py")]
    imports = {name for file in files for name in imported(file, package)} - {module}
    assert imports <= set(names[: names.index(module)])
