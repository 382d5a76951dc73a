"""The matrix of the render tier: every chart, instance type and workload, and every ci values file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bireme.core.paths import Paths
from bireme.helm import Render, RenderRequest
from bireme.testing.charts import RequestFor
from bireme.tools import Toolbox
from tests.support.instance_types import TWELVE, TYPES, image_for

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Of families whose sizes differ only in numbers, one size each is rendered with every workload.
SIZES_ALIKE = {
    "g4dn": {"g4dn.2xlarge", "g4dn.4xlarge", "g4dn.16xlarge"},
    "g5g": {"g5g.xlarge", "g5g.2xlarge", "g5g.4xlarge", "g5g.8xlarge", "g5g.metal"},
    "g6e": {"g6e.2xlarge", "g6e.4xlarge", "g6e.8xlarge", "g6e.16xlarge"},
    "g6f": {"g6f.xlarge", "g6f.2xlarge", "g6f.4xlarge"},
    "gr6": {"gr6.8xlarge", "gr6f.4xlarge"},
    "g7": {"g7.2xlarge", "g7.4xlarge", "g7.8xlarge", "g7.12xlarge", "g7.24xlarge"},
    "g7e": {"g7e.2xlarge", "g7e.4xlarge", "g7e.8xlarge", "g7e.12xlarge", "g7e.24xlarge"},
}
INSTANCES = [name for name in TYPES if name not in set().union(*SIZES_ALIKE.values())]
# The chart of each workload; a test checks that no workload is missing.
WORKLOADS = {
    "imagenet-efa": "torch-elastic",
    "imagenet-fsx": "torch-elastic",
    "llm-efa": "torch-elastic",
    "llm-spot": "torch-elastic",
    "megatron": "torch-elastic",
    "neuron": "torch-elastic",
    "jax": "torch-elastic",
    "amd": "torch-elastic",
    "gaudi": "torch-elastic",
    "efs-volume": "efs",
    "imagenet": "dataset",
    "coco-2017": "dataset",
    "keras-digits": "mpi-training",
    "maskrcnn": "mpi-training",
    "maskrcnn-tensorpack": "mpi-training",
    "maskrcnn-optimized": "mpi-training",
    "nccl-tests": "mpi-training",
    "paddle-mpi": "mpi-training",
    "paddle-tutorial": "paddle",
    "paddle-word2vec": "paddle",
}
# Workloads that are rendered for a few types only: with EFA, without it, and as published.
SOME = {
    "llm-efa": ("p5.48xlarge", "p6-b200.48xlarge"),
    "llm-spot": ("g6e.12xlarge", "g6e.48xlarge"),
    "megatron": ("p5.48xlarge",),
    "neuron": ("trn1.32xlarge", "trn2.48xlarge"),
    "jax": ("g6e.48xlarge", "p5.48xlarge"),
    "amd": (None,),
    "gaudi": (None,),
    "keras-digits": (None, "p3.8xlarge"),
    "maskrcnn-tensorpack": ("p3.16xlarge", "p3dn.24xlarge"),
    "maskrcnn-optimized": ("p3.16xlarge", "p3dn.24xlarge"),
    "nccl-tests": ("p3.16xlarge", "p4d.24xlarge", "p5.48xlarge"),
    "paddle-mpi": (None, "p3.8xlarge"),
    "paddle-tutorial": (None, "p3.8xlarge"),
    "paddle-word2vec": (None, "p3.8xlarge"),
}
# Charts with a workload that is rendered for every type.
SHOWN_BY_A_WORKLOAD = {"mpi-training", "paddle"}
# Charts that do not depend on the instance type.
WITHOUT_INSTANCE = {"dataset", "efs", "fsx"}
HELMS = ("helm", "helm3")
KUBERNETES = tuple(Toolbox(Paths.discover(start=HERE)).versions("kubectl"))


@dataclass(frozen=True)
class Case:
    """One set of values for a chart: a ci values file, or an instance type with or without a workload."""

    chart: str
    instance: str | None = None
    workload: str | None = None
    ci: str | None = None

    def __str__(self) -> str:
        return "+".join(filter(None, (self.chart, self.workload, self.instance, self.ci)))


def _cases() -> Iterator[Case]:
    charts = sorted(set(WORKLOADS.values()) - WITHOUT_INSTANCE - SHOWN_BY_A_WORKLOAD)
    for file in sorted(ROOT.glob("charts/*/ci/*-values.yaml")):
        yield Case(file.parts[-3], ci=file.name)
    for chart in charts:
        yield from (Case(chart, instance) for instance in INSTANCES)
    for workload, chart in WORKLOADS.items():
        instances = [None] if chart in WITHOUT_INSTANCE else SOME.get(workload, INSTANCES)
        yield from (Case(chart, instance, workload) for instance in instances)


def _is_for_each_run(case: Case) -> bool:
    """Whether the case is one of a few; all others are for the full tier."""
    return case.instance is None or case.instance in TWELVE or case.workload in SOME


@dataclass(frozen=True)
class Rule:
    """Values that a chart refuses, as options of the fixture `render`, and all that it says then."""

    chart: str
    when: Mapping[str, Any]
    says: str

    def __str__(self) -> str:
        return f"{self.chart}: {self.says.splitlines()[0][:60]}"


def _rules() -> Iterator[Rule]:
    table = yaml.safe_load((HERE / "rules.yaml").read_text(encoding="utf-8"))
    for charts, rows in table.items():
        for row in rows:
            for chart in charts.split(", "):
                yield Rule(chart, **row)


RULES = list(_rules())
REFUSED = {
    Case(rule.chart, rule.when.get("instance"), rule.when["workload"])
    for rule in RULES
    if "workload" in rule.when and rule.when.keys() <= {"instance", "workload"}
}
"""Workloads that a type, or the chart without further values, refuses."""
ALL_CASES = [case for case in _cases() if case not in REFUSED]
CASES = [case for case in ALL_CASES if _is_for_each_run(case)]
OTHER_CASES = [case for case in ALL_CASES if case not in CASES]


Matrix = Callable[..., Render]
"""The fixture `matrix`."""


def request(case: Case, request_for: RequestFor, helm: str = "helm") -> RenderRequest:
    """How ``case`` is rendered."""
    return request_for(
        case.chart,
        instance=case.instance,
        workload=case.workload,
        files=[f"charts/{case.chart}/ci/{case.ci}"] if case.ci else [],
        sets=[] if case.workload else image_for(case.instance),
        release="matrix",
        helm=helm,
    )
