"""The objects of an mpi-training release."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.helm import Render
from tests.render.cases import ROOT
from tests.support.rendered import PlanChart, RenderChart, container_of, environment_of, job_of, the

P4D: dict[str, Any] = {"instance": "p4d.24xlarge"}
BOTH = pytest.mark.parametrize("orchestrator", ["Job", "MPIJob"])


def pods(rendered: Render) -> dict[str, Mapping[str, Any]]:
    """The pod templates by role; an Indexed Job has one template."""
    kinds = {item.kind for item in rendered.manifests if not item.is_hook}
    if "MPIJob" not in kinds:
        return {"worker": the(rendered, "Job")["spec"]["template"]}
    replicas = the(rendered, "MPIJob")["spec"]["mpiReplicaSpecs"]
    return {"launcher": replicas["Launcher"]["template"], "worker": replicas["Worker"]["template"]}


def container(rendered: Render, role: str = "worker") -> Mapping[str, Any]:
    found: Mapping[str, Any] = pods(rendered)[role]["spec"]["containers"][0]
    return found


def environment(rendered: Render, role: str = "worker") -> dict[str, str]:
    return environment_of(container(rendered, role))


@BOTH
@pytest.mark.parametrize(
    ("instance", "accelerators", "efa"),
    [("p3.16xlarge", 8, 0), ("p3dn.24xlarge", 8, 1), ("p4d.24xlarge", 8, 4)],
)
def test_maskrcnn_uses_whole_nodes_with_all_efa_interfaces(
    plan: PlanChart, orchestrator: str, instance: str, accelerators: int, efa: int
) -> None:
    sets = [f"mpi.orchestrator={orchestrator}", "workers=4", "mpi.np=32"]
    planned = plan("mpi-training", instance=instance, workload="maskrcnn", sets=sets, release="maskrcnn")
    workers = [pod for pod in planned.pods if pod.rank is not None]
    suffix = "-worker" if orchestrator == "MPIJob" else ""
    assert [pod.hostname for pod in workers] == [f"maskrcnn-r1{suffix}-{index}" for index in range(4)]
    assert {(pod.accelerators, pod.efa) for pod in workers} == {(accelerators, efa)}
    assert dict(planned.totals.nodes) == {instance: 4}
    assert (planned.totals.accelerators, planned.totals.efa) == (4 * accelerators, 4 * efa)


@BOTH
def test_ranks_find_their_dispatcher_and_it_its_etcd(render: RenderChart, orchestrator: str) -> None:
    sets = [f"mpi.orchestrator={orchestrator}"]
    files = ["charts/mpi-training/ci/dispatcher-values.yaml"]
    rendered = render("mpi-training", files=files, sets=sets, release="job", namespace="team")
    server = the(rendered, "Deployment", "job-dispatcher")["spec"]["template"]["spec"]["containers"][0]
    assert environment_of(server)["BIREME_ETCD_ENDPOINTS"].startswith("job-etcd.team.svc:2379,")
    assert the(rendered, "StatefulSet", "job-etcd")["spec"]["volumeClaimTemplates"]
    for role in pods(rendered):
        variables = environment(rendered, role)
        assert variables["BIREME_DISPATCHER"] == "job-dispatcher.team.svc:7190"
        # The pods of an MPIJob have no Job in common.
        assert orchestrator == "Job" or variables["BIREME_DISPATCHER_DATASET"] == "job-r1"


def test_a_dispatcher_may_use_another_etcd(render: RenderChart) -> None:
    sets = [
        "data.dispatcher.enabled=true",
        "data.dispatcher.etcd.endpoints={etcd.db.svc:2380}",
        "networkPolicy.enabled=true",
    ]
    rendered = render("mpi-training", sets=[*sets, "data.dispatcher.etcd.existingSecret=etcd-user"], **P4D)
    server = the(rendered, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert environment_of(server)["BIREME_ETCD_ENDPOINTS"] == "etcd.db.svc:2380"
    rules = the(rendered, "NetworkPolicy")["spec"]["egress"]
    assert 2380 in [port["port"] for rule in rules for port in rule.get("ports", ())]


@BOTH
def test_every_pod_has_the_same_world(render: RenderChart, orchestrator: str) -> None:
    sets = [f"mpi.orchestrator={orchestrator}", "workers=3", "mpi.mpirunArgs={--report-bindings}"]
    rendered = render("mpi-training", sets=sets, release="train", **P4D)
    hosts = {"Job": "train-r1-{}.train", "MPIJob": "train-r1-worker-{}.train-r1"}[orchestrator]
    for role in pods(rendered):
        variables = environment(rendered, role)
        assert variables["BIREME_MPI_HOSTS"] == hosts
        assert (variables["BIREME_MPI_WORKERS"], variables["BIREME_MPI_SLOTS"]) == ("3", "8")
        assert json.loads(variables["BIREME_MPI_ARGUMENTS"]) == ["--report-bindings"]


ELASTIC = ["elastic.minWorkers=2", "elastic.maxWorkers=4", "workers=3", "args={python3,train.py}"]
MPI_JOB = ["mpi.orchestrator=MPIJob"]
IN_PLACE = ["job.suspend=true", "job.ttlSecondsAfterFinished=1", "job.activeDeadlineSeconds=1"]


@pytest.mark.parametrize(
    ("job", "change", "is_in_place"),
    [
        ([], ["workers=3"], False),
        ([], ["env.A=1"], False),
        ([], [*IN_PLACE, "recovery.backoffLimit=0"], True),
        (MPI_JOB, ["workers=3"], False),
        (MPI_JOB, ["args={a.py}"], False),
        (MPI_JOB, ["launch.waitSeconds=5"], False),
        (MPI_JOB, [*IN_PLACE, "recovery.backoffLimit=0"], True),
        (ELASTIC, ["workers=4"], True),
        (ELASTIC, ["elastic.maxWorkers=5"], False),
    ],
)
def test_a_change_of_the_run_changes_the_immutable_digests_and_others_change_in_place(
    render: RenderChart, job: list[str], change: list[str], is_in_place: bool
) -> None:
    before, after = (
        job_of(render("mpi-training", sets=[*job, *sets]))["metadata"]["annotations"]["bireme/immutable"]
        for sets in ([], change)
    )
    assert (before == after) is is_in_place


def test_an_elastic_job_has_one_template_for_any_number_of_workers(
    render: RenderChart, plan: PlanChart
) -> None:
    rendered = render("mpi-training", sets=[*ELASTIC, "mpi.slots=2", "recovery.backoffLimit=5"])
    variables, spec = environment(rendered), the(rendered, "Job")["spec"]
    assert (variables["BIREME_MPI_LEAST"], variables["BIREME_MPI_WORKERS"]) == ("2", "4")
    assert variables["BIREME_MPI_SLOTS"] == "2"
    assert (spec["completions"], spec["parallelism"]) == (3, 3)
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (5, 0)
    assert "backoffLimit" not in spec
    (workers,) = plan("mpi-training", sets=ELASTIC).workloads
    assert (workers.min_replicas, workers.replicas, workers.max_replicas) == (2, 3, 4)


def test_the_check_of_an_elastic_job_looks_for_horovod(render: RenderChart) -> None:
    (check,) = [item for item in render("mpi-training", sets=ELASTIC).manifests if item.is_hook]
    variables = environment_of(check["spec"]["containers"][0])
    assert (variables["BIREME_MPI_ROLE"], variables["BIREME_MPI_LEAST"]) == ("check", "2")


@pytest.mark.parametrize("workload", ["maskrcnn-tensorpack", "maskrcnn-optimized"])
def test_the_tensorflow_workloads_need_an_image_of_the_user(render: RenderChart, workload: str) -> None:
    sets = ["image.repository=team/model", "image.tag=v1"]
    rendered = render("mpi-training", instance="p3.16xlarge", workload=workload, sets=sets, release="night")
    assert container(rendered)["image"] == "team/model:v1"
    assert "--logdir=/efs/runs/$(BIREME_NAME)" in container(rendered)["args"]
    assert environment(rendered)["BIREME_NAME"] == "night"
    values = yaml.safe_load((ROOT / f"values/workloads/{workload}.yaml").read_text())
    settings = [each for each in values["args"] if re.match(r"[A-Z_.]+=", each)]
    assert len(settings) > 10
    assert list(container(rendered)["args"][-len(settings) :]) == settings
    given = {name: str(value) for name, value in values["env"].items()}
    assert given.items() <= environment(rendered).items()


@pytest.mark.parametrize(
    ("rank", "endpoint"), [("1", "night-r1-0.night:7165"), ("2", "night-r1-1.night:7164")]
)
def test_ranks_of_mpirun_are_the_trainers_of_paddle(
    render: RenderChart, tmp_path: Path, rank: str, endpoint: str
) -> None:
    """The shell of the values file runs, as mpirun starts it, with a python3 that shows what it is given."""
    sets = ["image.repository=team/paddle", "image.tag=v1", "workers=2", "mpi.slots=2"]
    rendered = render("mpi-training", workload="paddle-mpi", sets=sets, release="night")
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@"\nenv\n')
    (tmp_path / "python3").chmod(0o755)
    given = {f"OMPI_COMM_WORLD_{key}": value for key, value in (("RANK", rank), ("SIZE", "4"))}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    started = subprocess.run(
        container(rendered)["args"],
        env={**environment(rendered), **given, **path},
        capture_output=True,
        text=True,
        check=True,
    )
    arguments, *variables = started.stdout.splitlines()
    assert arguments.startswith("/opt/bireme/collective.py --checkpoints=/efs/runs/")
    assert {
        f"PADDLE_TRAINER_ID={rank}",
        "PADDLE_TRAINERS_NUM=4",
        f"PADDLE_CURRENT_ENDPOINT={endpoint}",
        "PADDLE_TRAINER_ENDPOINTS="
        "night-r1-0.night:7164,night-r1-0.night:7165,night-r1-1.night:7164,night-r1-1.night:7165",
        "PADDLE_DISTRI_BACKEND=gloo",
    } <= set(variables)


@BOTH
@pytest.mark.parametrize(("sets", "efa"), [([], "4"), (["efa=1"], "1"), (["efa=0"], None)])
def test_nccl_tests_use_the_given_number_of_efa_interfaces(
    render: RenderChart, orchestrator: str, sets: list[str], efa: str | None
) -> None:
    sets = [f"mpi.orchestrator={orchestrator}", *sets]
    rendered = render("mpi-training", workload="nccl-tests", sets=sets, **P4D)
    assert container(rendered)["resources"]["limits"].get("vpc.amazonaws.com/efa") == efa


def test_with_a_web_hook_each_pod_of_a_job_knows_its_last_start(render: RenderChart) -> None:
    hook = ["monitoring.webhook.existingSecret=hook", "recovery.backoffLimit=2"]
    spec = the(render("mpi-training", sets=hook), "Job")["spec"]
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (2, 0)
    assert "backoffLimit" not in spec
    trainer = container_of(spec["template"]["spec"], "trainer")
    assert json.loads(environment_of(trainer)["BIREME_WEBHOOK"])["starts"] == 2
    (failed,) = [each for each in trainer["env"] if each["name"] == "BIREME_FAILED_STARTS"]
    assert "job-index-failure-count" in failed["valueFrom"]["fieldRef"]["fieldPath"]
