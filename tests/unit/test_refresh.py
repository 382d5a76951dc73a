"""`make tags` raises the default images of the charts to newer patch releases."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest
import refresh
import yaml

from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.tools import Toolbox
from tests.support.registry import serving


@pytest.mark.parametrize(
    ("tag", "there", "newest"),
    [
        ("3.13.5-slim-bookworm", ["3.13.11-slim-bookworm", "3.13.9-slim-bookworm"], "3.13.11-slim-bookworm"),
        ("3.13.5-slim-bookworm", ["3.13.11-slim", "3.13.11-alpine", "3.14.0-slim-bookworm", "latest"], ""),
        ("v3.6.5", ["v3.6.10", "v3.6.6-arm64", "v3.7.0", "3.6.11"], "v3.6.10"),
        ("2.9.1-cuda12.8-runtime", ["2.9.2-cuda13.0-runtime", "2.9.2-cuda12.8-devel"], ""),
        ("v0.5.22-eksbuild.9", ["v0.5.22-eksbuild.10", "v0.5.22"], "v0.5.22-eksbuild.10"),
        (
            "4.6.0-4.8.3-distroless",
            ["4.6.1-4.8.4-distroless", "4.7.0-4.9.0-distroless"],
            "4.6.1-4.8.4-distroless",
        ),
    ],
)
def test_the_newest_is_a_patch_release_of_the_same_variant(tag: str, there: list[str], newest: str) -> None:
    assert refresh.newest(tag, there) == (newest or tag)


def test_a_newer_patch_release_is_written_wherever_a_chart_names_the_image(
    bireme_paths: Paths, tmp_path: Path
) -> None:
    for file in [*bireme_paths.charts.glob("*/values.yaml"), *bireme_paths.charts.glob("*/Chart.yaml")]:
        copy = tmp_path / file.relative_to(bireme_paths.charts)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(file.read_text())
    asked = set()

    def tags(image: str) -> list[str]:
        asked.add(image)
        return ["v3.6.999"] if image.endswith("/etcd") else []

    (sentence,) = refresh.refresh(tmp_path, tags, write=True)
    assert sentence == "charts/etcd: quay.io/coreos/etcd is v3.6.5, v3.6.999 is there"
    assert yaml.safe_load((tmp_path / "etcd/values.yaml").read_text())["image"]["tag"] == "v3.6.999"
    assert yaml.safe_load((tmp_path / "etcd/Chart.yaml").read_text())["appVersion"] == "3.6.999"
    assert refresh.refresh(tmp_path, tags, write=False) == []
    assert {"docker.io/library/python", "docker.io/pytorch/pytorch", "docker.io/alpine/git"} < asked


@pytest.mark.whole
def test_the_tags_of_an_image_are_those_of_its_registry(toolbox: Toolbox, tmp_path: Path) -> None:
    crane = toolbox.path("crane")
    layer = tmp_path / "layer.tar"
    tarfile.open(layer, "w").close()
    with serving(toolbox, tmp_path / "registry") as registry:
        for tag in ("3.13.5-slim", "3.13.11-slim"):
            pushed = [str(crane), "append", "-f", str(layer), "-t", f"{registry}/library/python:{tag}"]
            subprocess.run(pushed, check=True, capture_output=True)
        assert set(refresh.tags_of(f"{registry}/library/python", crane)) == {"3.13.5-slim", "3.13.11-slim"}
    with pytest.raises(BiremeError, match=r"library/python: .*refused"):
        refresh.tags_of(f"{registry}/library/python", crane)


def test_two_images_of_one_chart_with_the_same_tag_are_raised_each_by_its_own(tmp_path: Path) -> None:
    image = "image:\n  registry: quay.io\n  # what\n  repository: {}\n  # which\n  tag: 1.2.3\n"
    (tmp_path / "both").mkdir()
    (tmp_path / "both/Chart.yaml").write_text('appVersion: "1.2.3"\n')
    values = tmp_path / "both/values.yaml"
    values.write_text(image.format("one") + image.format("other"))
    refresh.refresh(tmp_path, lambda name: ["1.2.4"] if name == "quay.io/other" else [], write=True)
    assert values.read_text() == image.format("one") + image.format("other").replace("1.2.3", "1.2.4")
