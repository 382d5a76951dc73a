"""`bireme export`: the way out, as plain manifests of another kind with the same plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from bireme.adopt.export import Exported, export
from bireme.adopt.jobs import EQUAL, Adopted, Adopter
from bireme.audit.documents import read
from bireme.audit.rules import Auditor
from bireme.cli import cli
from bireme.core.errors import BiremeError
from bireme.helm import Renderer
from bireme.plan.instances import Instance
from bireme.testing.charts import RequestFor
from tests.render.conftest import AdopterWith

# Pods of EFA nodes, with what the runtime alone can do.
VALUES: Mapping[str, Any] = {
    "workers": 3,
    "instance": {"type": "p4d.24xlarge"},
    "args": ["/app/train.py", "--epochs=3"],
    "launch": {"files": {"more.txt": "trainer"}},
    "elastic": {"minWorkers": 2, "maxWorkers": 4, "spares": 1},
    "recovery": {"hang": {"seconds": 100}},
    "queue": {"name": "team-a"},
    "job": {"suspend": None, "ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 900},
    "env": {"NAME": "trainer"},
}
HOSTS = {
    "Job": "train-r1-0.train.default.svc",
    "JobSet": "train-r1-worker-0-0.train.default.svc",
    "TrainJob": "train-r1-node-0-0.train.default.svc",
}


ExportOf = Callable[..., Exported]


@pytest.fixture
def exported(renderer: Renderer, request_for: RequestFor, instances: Mapping[str, Instance]) -> ExportOf:
    """``exported("torch-elastic", "Job", values={…})``: what a job of the chart is as another kind."""
    return lambda chart, kind, **options: export(renderer, request_for(chart, **options), kind, instances)


@pytest.mark.parametrize("kind", ["TrainJob", "JobSet", "PyTorchJob", "Job"])
def test_the_plan_stays_and_what_is_lost_is_named(
    kind: str, exported: ExportOf, adopter_with: AdopterWith, tmp_path: Path
) -> None:
    found = exported("torch-elastic", kind, values=VALUES, release="train")
    lost = [each.partition(":")[0] for each in found.lost]
    assert lost[:6] == [
        "rendezvous", "fence", "recovery", "monitoring", "recovery.hang.seconds", "elastic.spares",
    ]  # fmt: skip
    # No further difference of the plans.
    assert not [each for each in found.lost if "of the chart" in each or "are planned" in each]
    text = yaml.safe_dump_all(found.objects)
    assert not [word for word in ("helm.sh", "BIREME_", "bireme_runtime", "etcd") if word in text]
    if kind in HOSTS:
        assert f"{HOSTS[kind]}:29400" in text
    assert "value: trainer" in text
    assert "team-a" in str(found.objects[-1]["metadata"]["labels"])
    adopted = adopted_again(found, adopter_with({"instance": VALUES["instance"]}), tmp_path)
    assert (adopted.values["workers"], adopted.values["args"]) == (3, VALUES["args"])


def adopted_again(found: Exported, adopter: Adopter, folder: Path) -> Adopted:
    """The exported job, adopted with an equal plan. `bireme audit` finds no error in it."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all(found.objects))
    documents, passed_over = read([str(file)], {})
    assert passed_over == []
    auditor = Auditor(adopter.instances)
    assert [str(each) for each in auditor.audit(documents) if each.severity == "error"] == []
    adopted = adopter.adopt(documents[-1], documents)
    plans = [each for each in adopted.outcomes if each.field in ("pods", "ranks", "bounds", "processes")]
    assert plans
    assert [each for each in plans if each.outcome != EQUAL] == []
    return adopted


MPI_JOB, ELASTIC = (
    {"files": [f"charts/mpi-training/ci/{name}-values.yaml"]} for name in ("mpijob", "elastic")
)
OTHERS = [
    ("mpi-training", MPI_JOB, "MPIJob", []),
    ("paddle", {"files": ["charts/paddle/ci/dynamic-values.yaml"]}, "Job", []),
    *(
        pytest.param(each, marks=pytest.mark.whole)
        for each in (
            ("mpi-training", ELASTIC, "Job", ["elastic.maxWorkers", "workers"]),
            ("mpi-training", MPI_JOB, "Job", ["mpi.launcher.nodeSelector"]),
            ("mpi-training", {"workload": "keras-digits"}, "MPIJob", ["launcher"]),
            ("paddle", {"workload": "paddle-tutorial"}, "Job", []),
        )
    ),
]


@pytest.mark.parametrize("case", OTHERS)
def test_jobs_of_other_charts_keep_their_plan_and_come_back(
    exported: ExportOf, adopter_with: AdopterWith, tmp_path: Path, case: tuple[str, dict[str, Any], str, Any]
) -> None:
    chart, given, kind, lost = case
    found = exported(chart, kind, **given)
    # After what every job of the chart loses.
    always = {"ranks", "recovery", "stopping", "release"}
    assert [path for each in found.lost if (path := each.partition(":")[0]) not in always] == lost
    assert not [each for each in found.lost if "of the chart" in each]
    # The pods of paddle need their runtime, which the manifests have.
    mounted = [each["metadata"]["name"] for each in found.objects if each["kind"] == "ConfigMap"]
    assert any("runtime" in each for each in mounted) == (chart == "paddle")
    assert adopted_again(found, adopter_with({}), tmp_path).chart == chart


def test_what_stock_torchrun_cannot_run_is_refused(exported: ExportOf) -> None:
    values = {"launch": {"launcher": "accelerate"}, "args": ["train.py"]}
    with pytest.raises(BiremeError, match=r"without our runtime .* launch.launcher"):
        exported("torch-elastic", "Job", values=values)
    with pytest.raises(BiremeError, match="the chart paddle is exported as Job, not as JobSet"):
        exported("paddle", "JobSet")
    with pytest.raises(BiremeError, match="the chart etcd has no job to export"):
        exported("etcd", "Job")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["export", "torch-elastic", *arguments], catch_exceptions=False)


def test_manifests_go_to_stdout_and_losses_to_stderr() -> None:
    arguments = ("train", "--set", "workers=2,args={train.py}", "--as", "PyTorchJob")
    result, kinds = run(*arguments), ["NetworkPolicy", "PyTorchJob"]
    assert [each["kind"] for each in yaml.safe_load_all(result.stdout)] == kinds
    assert result.stderr.startswith("lost: rendezvous: ")
    told = json.loads(run(*arguments, "-o", "json").stdout)
    assert [each["kind"] for each in told["objects"]] == kinds
    assert len(told["lost"]) == len(result.stderr.splitlines())
