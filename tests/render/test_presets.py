"""The name of an instance type is enough: its facts come from inside the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.plan.instances import load_instances
from tests.support.instance_types import TYPES, image_for
from tests.support.rendered import RenderChart

JOBS = ["torch-elastic", "mpi-training", "paddle"]


@pytest.mark.parametrize(
    ("chart", "instance"), [*((chart, "p4d.24xlarge") for chart in JOBS), ("torch-elastic", "trn1.32xlarge")]
)
def test_the_type_alone_renders_what_its_values_file_renders(
    render: RenderChart, chart: str, instance: str
) -> None:
    image = image_for(instance)
    by_name = render(chart, sets=[f"instance.type={instance}", *image])
    by_file = render(chart, instance=instance, sets=image)
    assert by_name.manifests == by_file.manifests


def test_the_chart_knows_every_type_of_values_instances(bireme_paths: Any) -> None:
    inside: Path = bireme_paths.charts / "training/files/instances"
    assert sorted(file.stem for file in inside.glob("*.yaml")) == TYPES


def test_the_values_for_nvidias_device_plugin_select_each_node_with_its_gpus(bireme_paths: Any) -> None:
    given = yaml.safe_load((bireme_paths.values / "nvidia-device-plugin.yaml").read_text())
    required = given["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("node.kubernetes.io/instance-type", "In")
    facts = load_instances(bireme_paths)
    wanted = {name for name in TYPES if facts[name].accelerator.resource == "nvidia.com/gpu"}
    assert {name for name in expression["values"] if not name.startswith("ml.")} == wanted
    assert given["tolerations"] == [{"operator": "Exists"}]
    # docs/gpu.md says why these and no others: no time slicing, and a node whose driver is broken fails.
    assert given.keys() == {"affinity", "tolerations", "migStrategy"}
    assert given["migStrategy"] == "none"
