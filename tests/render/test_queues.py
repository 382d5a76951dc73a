"""What `bireme plan` says of the queue of a job and of the quota that it takes there."""

from __future__ import annotations

from tests.support.rendered import PlanChart

QUEUE = ["queue.name=training", "workers=3"]


def test_a_job_takes_what_its_workers_ask_for_and_etcd_nothing(plan: PlanChart) -> None:
    sets = [*QUEUE, "queue.priorityClass=high"]
    (job,) = plan("torch-elastic", instance="p4d.24xlarge", release="t", sets=sets).queued
    assert (job.kind, job.name, job.queue, job.priority_class) == ("Job", "t-r1", "training", "high")
    assert job.pods == 3
    assert job.resources["nvidia.com/gpu"] == "24"
    assert job.resources["vpc.amazonaws.com/efa"] == "12"


def test_an_mpi_job_takes_its_launcher_too(plan: PlanChart) -> None:
    sets = [*QUEUE, "mpi.orchestrator=MPIJob", "image.repository=r", "image.tag=t"]
    (job,) = plan("mpi-training", instance="p4d.24xlarge", sets=sets).queued
    assert (job.kind, job.pods, job.resources["nvidia.com/gpu"]) == ("MPIJob", 4, "24")


def test_pservers_and_trainers_are_counted_together(plan: PlanChart) -> None:
    together = plan("paddle", release="w2v", sets=[*QUEUE, "paddle.pservers.count=2"]).queued
    assert [(each.kind, each.name, each.pods) for each in together] == [("Pods", "w2v-r1", 5)]
    apart = plan(
        "paddle", release="w2v", sets=[*QUEUE, "paddle.pservers.count=2", "queue.admission=elastic"]
    ).queued
    assert sorted((each.name, each.pods) for each in apart) == [("w2v-ps-r1", 2), ("w2v-r1", 3)]


def test_a_job_without_a_queue_takes_no_quota(plan: PlanChart) -> None:
    without = plan("torch-elastic", sets=["workers=3"])
    assert without.queued == ()
    assert "queued" not in without.to_json()
