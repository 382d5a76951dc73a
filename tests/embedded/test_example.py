"""The plugin serves a team with a chart of its own (tests/example), in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from bireme.paths import Paths
from bireme.tools import Toolbox


def test_a_team_tests_its_own_chart_with_the_fixtures(bireme_paths: Paths, toolbox: Toolbox) -> None:
    path = os.pathsep.join([str(toolbox.path("kubectl").parent), os.environ["PATH"]])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    suite = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/example",
        "--cluster-type",
        "embedded",
    ]
    finished = subprocess.run(
        suite,
        cwd=bireme_paths.root,
        env={**environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "3 passed" in finished.stdout
