"""`make images MIRROR=1` on a real registry: what it copies is what the charts then ask for there.

The upstreams cannot be reached by tests, so a folder of the same registry stands in for them.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.core.paths import Paths
from bireme.helm import Renderer, RenderError, RenderRequest, SetFlags
from bireme.plan.workloads import pod_templates
from bireme.tools import Toolbox
from tests.support.registry import serving

pytestmark = pytest.mark.whole


@pytest.fixture
def registry(toolbox: Toolbox, tmp_path: Path) -> Iterator[str]:
    with serving(toolbox, tmp_path / "registry") as name:
        yield name


def make_images(root: Path, registry: str) -> list[list[str]]:
    """The commands of `make images MIRROR=1`, in words."""
    command = [sys.executable, "hack/images/publish.py", "--dry-run", "--mirror", registry]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def images_of_the_charts(
    toolbox: Toolbox, paths: Paths, registry: str, more: Mapping[str, Any] | None = None
) -> set[str]:
    """The images of all charts with global.imageRegistry, ``more`` and their ci values.

    Left out are values with registries of their own, and the containers that values add with an image.
    """
    sets = [f"global.imageRegistry={registry}"]
    requests = []
    for file in sorted(paths.root.glob("charts/*/ci/*-values.yaml")):
        region = ["region=us-west-2"] if file.parents[1].name == "efa-device-plugin" else []
        values = yaml.safe_load(file.read_text()) or {}
        if "global" in values:
            continue
        for added in ("sidecars", "initContainers"):
            values.get("pod", {}).pop(added, None)
        requests.append(
            RenderRequest(
                file.parents[1], values | dict(more or {}), settings=SetFlags(sets=[*sets, *region])
            )
        )
    found = set()
    for render in Renderer(toolbox, paths).render_many(requests):
        assert not isinstance(render, RenderError), render
        for manifest in render.manifests:
            for template in pod_templates(manifest):
                for role in ("initContainers", "containers"):
                    found |= {container["image"] for container in template["spec"].get(role, ())}
    return found


def test_after_mirroring_the_registry_has_every_image_that_a_chart_names(
    registry: str, toolbox: Toolbox, bireme_paths: Paths, tmp_path: Path
) -> None:
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        tar.addfile(tarfile.TarInfo("ship"), io.BytesIO())
    crane = str(toolbox.path("crane"))

    def run(*words: str) -> str:
        done = subprocess.run([crane, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    commands = make_images(bireme_paths.root, registry)
    for pushed in (words[words.index("--tag") + 1] for words in commands if "buildx" in words):
        run("append", "--new_layer", str(layer), "--new_tag", pushed)
    copies = [words[2:] for words in commands if words[:2] == ["crane", "copy"]]
    assert copies
    for source, target in copies:
        upstream = f"{registry}/upstream/{source}"
        run("append", "--new_layer", str(layer), "--new_tag", upstream.partition("@")[0])
        run("copy", upstream, target)
        assert run("digest", target) == run("digest", upstream)

    needed = images_of_the_charts(toolbox, bireme_paths, registry)
    for image in sorted(needed):
        run("manifest", image)

    # `make digests` prints values with which the charts name what the registry has, and no tags.
    command = [sys.executable, "hack/images/publish.py", "--digests", registry]
    done = subprocess.run(command, cwd=bireme_paths.root, capture_output=True, text=True, check=True)
    by_digest = images_of_the_charts(toolbox, bireme_paths, registry, yaml.safe_load(done.stdout))
    assert by_digest == {f"{each.rpartition(':')[0]}@{run('digest', each)}" for each in needed}
