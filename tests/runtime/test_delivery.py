"""The runtime as pods get it: files on PYTHONPATH, Python 3.9 or newer, no other packages."""

from __future__ import annotations

import ast
import email
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bireme_runtime
from bireme_runtime.elastic.rendezvous import rules
from tests.runtime.etcd_servers import RUNTIME

PACKAGE, METADATA = RUNTIME / "bireme_runtime", RUNTIME / "bireme_runtime.dist-info"
PROJECT = tomllib.loads((RUNTIME.parent / "pyproject.toml").read_text())["project"]
FILES = sorted(path for path in [*PACKAGE.rglob("*.py"), *METADATA.iterdir()])
MODULES = [
    ".".join(path.relative_to(RUNTIME).with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
    if path.suffix == ".py"
]
FIND_BACKEND = """
import importlib.metadata as metadata
points = metadata.entry_points()
group = "torchrun.handlers"
found = points.get(group, []) if isinstance(points, dict) else points.select(group=group)
for point in found:
    print(point.name, point.load()().__name__, metadata.version("bireme-runtime"))
"""


def run(code: str, *paths: Path) -> str:
    """The output of Python with only these folders on PYTHONPATH."""
    env = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """The files as the volume of a ConfigMap has them: links to links."""
    data = tmp_path / "..data"
    for source in FILES:
        target = data / source.relative_to(RUNTIME)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    folder = tmp_path / "runtime"
    folder.mkdir()
    for name in (PACKAGE.name, METADATA.name):
        (folder / name).symlink_to(data / name)
    return folder


def test_torchrun_finds_the_backend_when_only_the_folder_is_on_the_path(mounted: Path) -> None:
    assert run(FIND_BACKEND, mounted) == f"bireme-etcd create_handler {bireme_runtime.__version__}\n"


def test_beside_an_installed_distribution_the_backend_is_found_once(mounted: Path, tmp_path: Path) -> None:
    installed = tmp_path / "site" / f"bireme_runtime-{bireme_runtime.__version__}.dist-info"
    installed.mkdir(parents=True)
    for path in METADATA.iterdir():
        (installed / path.name).write_bytes(path.read_bytes())
    assert run(FIND_BACKEND, mounted, installed.parent).count("bireme-etcd") == 1


def test_every_module_imports_without_any_third_party_package(mounted: Path) -> None:
    # Its classes are torch's, so only scripts with torch import it.
    modules = [name for name in MODULES if name != "bireme_runtime.elastic.snapshots.sharded"]
    imports = "; ".join(f"import {name}" for name in modules)
    assert run(f"{imports}; import sys; print('torch' in sys.modules)", mounted) == "False\n"


def test_the_oldest_supported_python_understands_each_module() -> None:
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text(), str(file), feature_version=(3, 9))
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
        roots = {each.partition(".")[0] for each in names}
        assert roots <= set(sys.stdlib_module_names) | {"bireme_runtime"}, file


def test_the_metadata_in_the_folder_is_that_of_the_distribution() -> None:
    metadata = email.message_from_string((METADATA / "METADATA").read_text())
    assert (metadata["Name"], metadata["Version"], metadata["Summary"], metadata["Requires-Python"]) == (
        PROJECT["name"], PROJECT["version"], PROJECT["description"], PROJECT["requires-python"],
    )  # fmt: skip
    assert bireme_runtime.__version__ == PROJECT["version"]
    assert PROJECT["dependencies"] == []
    written = (METADATA / "entry_points.txt").read_text().split()
    ((group, points),) = PROJECT["entry-points"].items()
    assert written == [f"[{group}]", *(word for key, value in points.items() for word in (key, "=", value))]


def test_the_paths_of_the_files_can_be_keys_of_a_config_map() -> None:
    keys = {str(path.relative_to(RUNTIME)).replace("/", "__") for path in FILES}
    assert len(keys) == len(FILES)
    assert all(key.replace("_", "").replace(".", "").replace("-", "").isalnum() for key in keys)


# A constant, or several in a line, and where a variable is read by a name and with a default.
CONSTANTS = r"^(\w+(?:, \w+)*) = ([^()\n]+)$"
READ = r'(?:setting|integer|seconds|choice|get)\((?:(?:env|os\.environ), )?([\w".]+)(?:, |\) or )([^\s,)]+)'


def defaults_in_code(places: list[str]) -> dict[str, set[str]]:
    """The defaults, as text, with which modules in these places read each variable."""
    text = "\n".join(path.read_text() for place in places for path in PACKAGE.glob(place))
    constants: dict[str, str] = {}
    for names, values in re.findall(CONSTANTS, text, re.MULTILINE):
        constants |= zip(names.split(", "), values.split(", "), strict=False)
    found: dict[str, set[str]] = {}
    for pair in re.findall(READ, text):
        name, default = (constants.get(re.sub(r"^[a-z]\w*\.", "", each), each).strip('"') for each in pair)
        found.setdefault(name, set()).add(re.sub(r"\.0$", "", default))
    return found


def defaults_in_document(text: str) -> dict[str, str]:
    """The default of each variable that has one word as a default in the tables of a document."""
    found = {}
    row = r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \| ([^|]+) \|"
    for names, defaults in re.findall(row, text, re.MULTILINE):
        base, values = "", defaults.split(", ")
        # One default is that of all variables of a row, and `_NAME` has the beginning of the one before.
        for at, name in enumerate(re.findall("[A-Z_]+", names)):
            base = base if name[0] == "_" else name
            full = base.rpartition("_")[0] + name if name[0] == "_" else name
            found[full] = values[min(at, len(values) - 1)].strip("`")
    return {name: default for name, default in found.items() if re.fullmatch(r"[^ –]+", default)}


@pytest.mark.parametrize(
    ("document", "places"),
    [
        ("runtime.md", ["elastic/**/*.py", "etcd/client.py"]),
        ("mpi.md", ["mpi/*.py"]),
    ],
)
def test_variables_have_the_defaults_of_the_document(document: str, places: list[str]) -> None:
    text = (RUNTIME.parents[1] / "docs" / document).read_text()
    told, read = defaults_in_document(text), defaults_in_code(places)
    wanted = {name: {default} for name, default in told.items() if default != "unset"}
    assert len(wanted) > 5
    assert {name: read.get(name, set()) - {""} for name in wanted} == wanted


def test_the_settings_of_the_rendezvous_have_the_defaults_of_the_document() -> None:
    text = (RUNTIME.parents[1] / "docs/runtime.md").read_text()
    (row,) = re.findall(r"^\| `PET_RDZV_CONF` .*", text, re.MULTILINE)
    told = {name: float(default) for name, default in re.findall(r"`(\w+)` (\d+)", row)}
    settings = vars(rules.RunSettings("run", 1, 1))
    assert told == {
        name: settings[name] for name in settings if re.search("_(timeout|interval|attempt)$", name)
    }
