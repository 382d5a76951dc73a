"""Which code of bireme-runtime reaches the pods of a release, and whose pods a change of it concerns."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bireme.core.paths import Paths
from bireme.helm import Render, RenderError
from tests.support.rendered import RenderChart

P4D = "p4d.24xlarge"
STAGED: dict[str, Any] = {"data": {"staging": {"claimName": "fsx-pvc", "size": "200Gi"}}}
SNAPSHOTS_IN_S3: dict[str, Any] = {
    "backup": {"enabled": True, "url": "s3://snapshots/etcd"},
    "restore": {"enabled": True, "url": "s3://snapshots/etcd"},
}
GIVEN: dict[str, dict[str, Any]] = {
    "etcd": {"backup": {"enabled": True, "claimName": "snapshots"}, "defragmentation": {"enabled": True}},
    "etcd-to-s3": SNAPSHOTS_IN_S3,
    "torch-elastic": {},
    "torch-elastic-staged": STAGED,
    "mpi-training": {"image": {"tag": "1"}},
    "mpi-training-staged": {"image": {"tag": "1"}, **STAGED},
    "paddle": {},
    "paddle-dynamic": {"paddle": {"dispatch": "dynamic"}, "etcd": {"enabled": True}},
    "torch-elastic-dynamic": {
        "data": {"dispatcher": {"enabled": True}},
        "etcd": {"persistence": {"enabled": True}},
    },
    "paddle-staged": STAGED,
    "dataset": {"claim": {"name": "data", "path": "a"}, "sources": [{"url": "s3://bucket/a"}]},
}
LARGEST_BYTES = 256 * 1024
"""`kubectl apply` keeps a copy of an object in an annotation, which has no more."""


def test_each_container_gets_the_code_that_it_runs(render: RenderChart, tmp_path: Path) -> None:
    # What is imported of the same files is imported by one Python.
    shipped: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for given in GIVEN:
        used = list(entries(rendered(render, given)))
        assert used, given
        for module, files in used:
            shipped.setdefault(tuple(sorted(files.items())), set()).add(module)
    for number, (sources, entry_points) in enumerate(shipped.items()):
        folder = tmp_path / str(number)
        for path, source in sources:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(source)
        # With the whole of what it imports, at once or later, and nothing beside it.
        modules = entry_points.union(*(imported(source) for _, source in sources))
        code = f"import importlib\nfor each in {sorted(modules)}: importlib.import_module(each)"
        command = [sys.executable, "-S", "-c", code]
        done = subprocess.run(command, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True)
        assert done.returncode == 0, f"{entry_points}: {done.stderr}"


@pytest.mark.parametrize("given", GIVEN)
def test_kubectl_can_apply_each_config_map_and_a_pod_mounts_it(render: RenderChart, given: str) -> None:
    there = rendered(render, given)
    mounted = {each["name"] for pod in pods(there) for maps in runtime_volumes(pod).values() for each in maps}
    sizes = {name: sum(map(len, data.values())) for name, data in config_maps(there).items()}
    assert set(sizes) == mounted
    assert max(sizes.values()) < LARGEST_BYTES


@pytest.fixture(scope="module")
def commented(bireme_paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Copies of the charts, in each of which the modules of one folder have another comment."""

    @cache
    def copied(folder: str) -> Path:
        copy = tmp_path_factory.mktemp("copy")
        for name in ("charts", "runtime", "values"):
            shutil.copytree(bireme_paths.root / name, copy / name, symlinks=True)
        files = list((copy / "runtime/src/bireme_runtime" / folder).glob("*.py"))
        assert len(files) > 1
        for file in files:
            file.write_text(f"{file.read_text()}# a comment\n")
        return copy / "charts"

    return copied


SERVICE, SERVER, DATASET = "dispatcher/service", "etcd/server", "dataset"


@pytest.mark.parametrize(
    ("given", "folder", "changed"),
    [
        ("paddle-dynamic", SERVICE, {"Deployment"}),
        ("paddle-dynamic", SERVER, {"StatefulSet"}),
        ("paddle-dynamic", DATASET, set()),
        ("paddle-dynamic", "paddle", {"Job"}),
        ("paddle-staged", DATASET, {"Job"}),
        ("torch-elastic", SERVICE, set()),
        ("torch-elastic-dynamic", SERVICE, {"Deployment"}),
        ("torch-elastic", SERVER, {"StatefulSet"}),
        ("torch-elastic", DATASET, set()),
        ("torch-elastic", "elastic", {"Job"}),
        ("torch-elastic-staged", DATASET, {"Job"}),
        ("mpi-training", SERVICE, set()),
        ("mpi-training", SERVER, set()),
        ("mpi-training", DATASET, set()),
        ("mpi-training", "mpi", {"Job"}),
        ("etcd", DATASET, set()),
        ("etcd", "sources", set()),
        ("etcd-to-s3", "sources", {"StatefulSet", "CronJob"}),
    ],
)
def test_a_changed_comment_reaches_the_pods_that_run_the_code_and_no_others(
    render: RenderChart, commented: Callable[[str], Path], given: str, folder: str, changed: set[str]
) -> None:
    before = templates(rendered(render, given))
    after = templates(rendered(render, given, commented(folder)))
    assert before.keys() == after.keys()
    assert {kind for kind, name in before if before[kind, name] != after[kind, name]} == changed


# --- what is rendered ---


def rendered(render: RenderChart, given: str, charts: Path | None = None) -> Render:
    """One of GIVEN; ``charts`` are those of a changed copy."""
    chart = re.sub("-(to-s3|staged|dynamic)$", "", given)
    instance = P4D if "staged" in given else None
    return render(charts / chart if charts else chart, instance=instance, values=GIVEN[given])


def config_maps(there: Render) -> dict[str, Mapping[str, str]]:
    """The runtime's ConfigMaps by name."""
    return {item.name: item["data"] for item in there.manifests if "-runtime-" in item.name}


def templates(there: Render) -> dict[tuple[str, str], Any]:
    """What Kubernetes makes pods from, by kind and name. A test's pod is made anew for each test."""
    owners = [item for item in there.manifests if not item.is_hook and list(pods_in(item.get("spec", {})))]
    return {(item.kind, item.name): item.thaw()["spec"] for item in owners}


def pods(there: Render) -> Iterator[Mapping[str, Any]]:
    """The specification of every pod that the release may have."""
    for item in there.manifests:
        yield from pods_in(item.thaw())


def pods_in(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, Mapping):
        if "containers" in content:
            yield content
        else:
            for each in content.values():
                yield from pods_in(each)


def runtime_volumes(pod: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The volumes with the runtime's code by name, each with its ConfigMaps."""
    found = {}
    for volume in pod.get("volumes", ()):
        maps = [each.get("configMap", {}) for each in volume.get("projected", {}).get("sources", ())]
        if any("-runtime-" in each.get("name", "") for each in maps):
            found[volume["name"]] = maps
    return found


def entries(there: Render) -> Iterator[tuple[str, dict[str, str]]]:
    """Every module that a container starts, and the files that it finds on PYTHONPATH."""
    data = config_maps(there)
    for pod in pods(there):
        volumes = runtime_volumes(pod)
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            words = [*container.get("command", ()), *container.get("args", ())]
            mounts = [each["name"] for each in container.get("volumeMounts", ()) if each["name"] in volumes]
            for module in (word for word in words if word.startswith("bireme_runtime.")):
                (name,) = mounts
                yield (
                    module,
                    {
                        item["path"]: data[source["name"]][item["key"]]
                        for source in volumes[name]
                        for item in source["items"]
                    },
                )


def imported(source: str) -> set[str]:
    """Modules of the package that a source imports at its top; what only a service needs stands within."""
    if "import" not in source:
        return set()
    froms = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    return {node.module for node in froms if node.module and node.module.startswith("bireme_runtime")}


@pytest.mark.parametrize("chart", ["torch-elastic", "mpi-training", "paddle", "dataset"])
def test_a_chart_whose_links_were_dropped_is_refused_with_a_sentence(
    render: RenderChart, bireme_paths: Paths, tmp_path: Path, chart: str
) -> None:
    # As Flux does it with a git source: links are left out, then what Chart.yaml names in file:// is put in.
    def copy(name: str, target: Path) -> None:
        links = (link.name for link in (bireme_paths.charts / name).rglob("*") if link.is_symlink())
        shutil.copytree(bireme_paths.charts / name, target, ignore=shutil.ignore_patterns(*links))

    copy(chart, tmp_path / chart)
    for link in (bireme_paths.charts / chart / "charts").iterdir():
        copy(link.name, tmp_path / chart / "charts" / link.name)
    with pytest.raises(RenderError, match="to which symbolic links lead in a clone: take the packed chart"):
        render(tmp_path / chart, values=GIVEN[chart])
