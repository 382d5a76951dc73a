"""`make tags` raises the default images of the charts to newer patch releases."""

from __future__ import annotations

from pathlib import Path

import pytest
import refresh
import yaml

from bireme.core.paths import Paths


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
