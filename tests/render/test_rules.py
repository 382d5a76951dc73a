"""Values that contradict each other, the schema or the instance type are refused as rules.yaml says."""

from __future__ import annotations

import pytest

from bireme.helm import Renderer, RenderError
from bireme.testing.charts import RequestFor
from tests.render.cases import RULES, Rule
from tests.support.rendered import RenderChart


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_values_are_refused_with_the_sentence_of_the_table(render: RenderChart, rule: Rule) -> None:
    with pytest.raises(RenderError) as refused:
        render(rule.chart, **rule.when)
    assert str(refused.value) == rule.says


@pytest.mark.whole
def test_helm_3_refuses_all_of_it_with_the_same_sentences(
    renderer: Renderer, request_for: RequestFor
) -> None:
    found = renderer.render_many([request_for(rule.chart, helm="helm3", **rule.when) for rule in RULES])
    assert [str(each) for each in found] == [rule.says for rule in RULES]


def test_all_broken_rules_are_reported_together(render: RenderChart) -> None:
    with pytest.raises(RenderError) as refusal:
        render(
            "torch-elastic", instance="p4d.24xlarge", sets=["accelerators=9", "efa=5", "elastic.minWorkers=2"]
        )
    assert len(str(refusal.value).splitlines()) >= 3


def test_v2_api_is_allowed_below_3_6(render: RenderChart) -> None:
    manifests = render("etcd", sets=["v2API=true", "image.tag=v3.5.21"]).manifests
    config = next(item for item in manifests if item.kind == "ConfigMap" and "etcd.json" in item["data"])
    assert '"enable-v2": true' in config["data"]["etcd.json"]


@pytest.mark.parametrize(
    ("instance", "tag"),
    [
        ("p6-b200.48xlarge", "2.7.1-cuda12.8-cudnn9-runtime"),
        ("p3.2xlarge", "2.10.0-cuda12.8-cudnn9-runtime"),
        ("p3.2xlarge", "2.12.0-cuda12.6-cudnn9-runtime"),
        ("p5.48xlarge", "2.6.0-cuda12.4-cudnn9-runtime"),
        ("p6-b200.48xlarge", "of-our-own"),
    ],
)
def test_a_torch_with_kernels_for_the_type_is_taken(render: RenderChart, instance: str, tag: str) -> None:
    render("torch-elastic", instance=instance, sets=[f"image.tag={tag}"])
