"""hack/agents.py says what upstream has that the charts of the node agents lack."""

from __future__ import annotations

from pathlib import Path

import agents
import pytest
import yaml

from bireme.core.paths import Paths

TABLE = """
### `{gpu}`
| |karpenter.k8s.aws/instance-gpu-manufacturer|nvidia|
### `m9.large`
| |kubernetes.io/arch|amd64|
"""


@pytest.fixture
def upstream(tmp_path: Path, bireme_paths: Paths) -> Path:
    """A copy of what upstream says, which is what the clone says."""
    charts = bireme_paths.charts
    types = agents.known_types(bireme_paths)
    efa = yaml.safe_load((charts / "efa-device-plugin/values.yaml").read_text())["image"]["tag"]
    dcgm = yaml.safe_load((charts / "gpu-metrics/values.yaml").read_text())["dcgm"]["image"]["tag"]
    put(tmp_path / agents.EFA_CHART, efa_chart(efa, sorted(types["efa"])))
    put(tmp_path / agents.DCGM_CHART, yaml.safe_dump({"image": {"tag": dcgm}}))
    put(tmp_path / agents.KARPENTER, TABLE.format(gpu="g4dn.xlarge"))
    return tmp_path


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def efa_chart(tag: str, types: list[str]) -> str:
    return yaml.safe_dump({"image": {"tag": tag}, "supportedInstanceLabels": {"values": types}})


def test_a_clone_that_is_up_to_date_differs_in_nothing(upstream: Path, bireme_paths: Paths) -> None:
    assert agents.differences(bireme_paths, agents.ask(upstream.as_uri())) == []


def test_new_tags_and_types_are_named(upstream: Path, bireme_paths: Paths) -> None:
    put(upstream / agents.EFA_CHART, efa_chart("v9.0.0", ["p9.48xlarge"]))
    put(upstream / agents.KARPENTER, TABLE.format(gpu="g9.xlarge"))
    plugin, efa, nvidia = agents.differences(bireme_paths, agents.ask(upstream.as_uri()))
    assert plugin.startswith("charts/efa-device-plugin: eks/aws-efa-k8s-device-plugin is ")
    assert plugin.endswith(", upstream names v9.0.0")
    assert efa == "hack/agents.yaml: efa lacks p9.48xlarge"
    assert nvidia == "hack/agents.yaml: nvidia lacks g9.xlarge, p9.48xlarge"
