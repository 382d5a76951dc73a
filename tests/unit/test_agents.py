"""hack/agents.py names the instance types of upstream that hack/agents.yaml lacks."""

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
    put(tmp_path / agents.EFA_CHART, efa_chart(sorted(agents.known_types(bireme_paths)["efa"])))
    put(tmp_path / agents.KARPENTER, TABLE.format(gpu="g4dn.xlarge"))
    return tmp_path


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def efa_chart(types: list[str]) -> str:
    return yaml.safe_dump({"supportedInstanceLabels": {"values": types}})


def test_a_clone_that_is_up_to_date_differs_in_nothing(upstream: Path, bireme_paths: Paths) -> None:
    assert agents.differences(bireme_paths, agents.ask(upstream.as_uri())) == []


def test_new_types_are_named(upstream: Path, bireme_paths: Paths) -> None:
    put(upstream / agents.EFA_CHART, efa_chart(["p9.48xlarge"]))
    put(upstream / agents.KARPENTER, TABLE.format(gpu="g9.xlarge"))
    efa, nvidia = agents.differences(bireme_paths, agents.ask(upstream.as_uri()))
    assert efa == "hack/agents.yaml: efa lacks p9.48xlarge"
    assert nvidia == "hack/agents.yaml: nvidia lacks g9.xlarge, p9.48xlarge"
