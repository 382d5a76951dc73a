"""Which modules of bireme-runtime reach the pods of a release."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from bireme.helm import Render

P4D = "p4d.24xlarge"
STAGED: dict[str, Any] = {"staging": {"claimName": "fsx-pvc", "size": "200Gi"}}
TO_S3: dict[str, Any] = {"backup": {"enabled": True, "url": "s3://snapshots/etcd"}}
GIVEN: dict[str, dict[str, Any]] = {
    "etcd": {},
    "etcd-to-s3": TO_S3,
    "torch-elastic": {},
    "torch-elastic-staged": STAGED,
    "mpi-training": {"image": {"tag": "1"}},
    "mpi-training-staged": {"image": {"tag": "1"}, **STAGED},
    "paddle": {},
    "paddle-dynamic": {"dispatch": "dynamic", "etcd": {"enabled": True}},
    "paddle-staged": STAGED,
    "dataset": {"claim": {"name": "data", "path": "a"}, "sources": [{"url": "s3://bucket/a"}]},
}
LARGEST_BYTES = 256 * 1024
"""`kubectl apply` keeps a copy of an object in an annotation, which has no more."""


@pytest.mark.parametrize("given", GIVEN)
def test_pods_get_the_modules_that_they_run_with_all_that_these_import(
    render: Callable[..., Render], given: str
) -> None:
    chart = re.sub("-(to-s3|staged|dynamic)$", "", given)
    rendered = render(chart, instance=P4D if "staged" in given else None, values=GIVEN[given])
    runtimes = [item for item in rendered.manifests if "-runtime-" in item.name]
    for runtime in runtimes:
        sources = {
            path.partition("__")[2].removesuffix(".py"): text for path, text in runtime["data"].items()
        }
        for module, source in sources.items():
            assert not imported(source) - set(sources), f"{module} of {runtime.name}"
        assert sum(map(len, runtime["data"].values())) < LARGEST_BYTES
    there = {path for runtime in runtimes for path in runtime["data"]}
    rest = yaml.safe_dump_all(item.thaw() for item in rendered.manifests if item not in runtimes)
    run = {f"bireme_runtime__{module}.py" for module in re.findall(r"bireme_runtime\.(\w+)(?![-\w])", rest)}
    assert run
    assert run <= there


def imported(source: str) -> set[str]:
    """Modules of the package that a source imports at its top; what only a service needs stands within."""
    if "import" not in source:
        return set()
    froms = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    modules = {node.module for node in froms if node.module}
    names = {module.partition(".")[2] for module in modules if module.startswith("bireme_runtime.")}
    return names | {a.name for node in froms if node.module == "bireme_runtime" for a in node.names}
