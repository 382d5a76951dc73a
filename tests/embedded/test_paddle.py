"""Paddle jobs on a real control plane: what is observed is what was planned."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.errors import BiremeError
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory

INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(autouse=True)
def efs_claim(cluster: EmbeddedCluster, test_namespace: str) -> None:
    """The stand-in for EFS: a claim that every fake node can mount."""
    cluster.add_claim("efsvol", test_namespace)


def pods(release: InstalledRelease, component: str) -> list[Mapping[str, Any]]:
    """The live pods of a role, by index."""
    found = [
        pod
        for pod in release.objects("pods")
        if "deletionTimestamp" not in pod["metadata"]
        and pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    return sorted(found, key=lambda pod: int(pod["metadata"]["labels"][INDEX]))


def environments(release: InstalledRelease, component: str, container: str) -> list[dict[str, str]]:
    """The environment of ``container`` in each pod of a role, as the kubelet computes it."""
    found = []
    for pod in pods(release, component):
        there = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        (spec,) = [each for each in there if each["name"] == container]
        (source,) = spec["envFrom"]
        maps = release.objects("configmaps")
        (settings,) = [each for each in maps if each["metadata"]["name"] == source["configMapRef"]["name"]]
        own = {each["name"]: each["value"] for each in spec["env"] if "value" in each}
        fields = {
            each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"]
            for each in spec["env"]
            if "fieldRef" in each.get("valueFrom", ())
        }
        rank = f"metadata.annotations['{INDEX}']"
        ranks = {name: pod["metadata"]["annotations"][INDEX] for name, path in fields.items() if path == rank}
        found.append({**settings["data"], **own, **ranks})
    return found


def token(release: InstalledRelease) -> bytes:
    """The release's token."""
    (secret,) = [
        each for each in release.objects("secrets") if each["metadata"]["name"] == f"{release.name}-token"
    ]
    return base64.b64decode(secret["data"]["token"])


def uids(release: InstalledRelease) -> list[str]:
    return [pod["metadata"]["uid"] for pod in pods(release, "trainer")]


def test_the_tutorials_three_pods_are_pserver_and_trainer_each(release: ReleaseFactory) -> None:
    job = release("paddle", name="tutorial", workload="paddle-tutorial", sets=["data.prep.enabled=false"])
    assert job.differences() == ()
    found = pods(job, "trainer")
    assert [pod["spec"]["hostname"] for pod in found] == [f"tutorial-r1-{index}" for index in range(3)]
    assert {pod["spec"]["subdomain"] for pod in found} == {"tutorial"}
    hosts = [f"tutorial-r1-{index}.tutorial.{job.namespace}.svc" for index in range(3)]
    for container, role in (("trainer", "TRAINER"), ("pserver", "PSERVER")):
        seen = environments(job, "trainer", container)
        assert [each["PADDLE_TRAINER_ID"] for each in seen] == ["0", "1", "2"]
        assert [each["PADDLE_INIT_TRAINER_ID"] for each in seen] == ["0", "1", "2"]
        for each in seen:
            assert each["TRAINING_ROLE"] == role
            assert each["PADDLE_PSERVERS_IP_PORT_LIST"] == ",".join(f"{host}:7164" for host in hosts)
            assert each["PADDLE_INIT_PSERVERS"] == ",".join(hosts)
            assert each["PADDLE_TRAINERS_NUM"] == each["CONF_PADDLE_GRADIENT_NUM"] == "3"


@pytest.mark.whole
def test_word_vectors_train_on_two_pservers_and_three_trainers(release: ReleaseFactory) -> None:
    sets = ["data.prep.enabled=false", "data.jobClaim.existingClaim=efsvol"]
    job = release("paddle", name="w2v", workload="paddle-word2vec", sets=sets)
    assert job.differences() == ()
    assert [pod["spec"]["hostname"] for pod in pods(job, "pserver")] == ["w2v-ps-r1-0", "w2v-ps-r1-1"]
    assert [pod["spec"]["hostname"] for pod in pods(job, "trainer")] == [f"w2v-r1-{i}" for i in range(3)]
    servers = [f"w2v-ps-r1-{index}.w2v-ps.{job.namespace}.svc:7164" for index in range(2)]
    for seen in environments(job, "trainer", "trainer") + environments(job, "pserver", "pserver"):
        assert seen["PADDLE_PSERVERS_IP_PORT_LIST"] == ",".join(servers)
        assert seen["BIREME_PADDLE_COORDINATOR"] == servers[0].replace(":7164", ":7163")
    ranks = [each["PADDLE_TRAINER_ID"] for each in environments(job, "trainer", "trainer")]
    assert ranks == ["0", "1", "2"]


def test_scaling_trainers_3_to_6_to_2_keeps_the_job_and_the_remaining_trainers(
    release: ReleaseFactory,
) -> None:
    same = ["data.jobClaim.existingClaim=efsvol"]
    job = release("paddle", sets=["workers=3", *same])
    made = token(job)
    assert len(made) == 32
    before, servers = uids(job), [pod["metadata"]["uid"] for pod in pods(job, "pserver")]
    job.upgrade(sets=["workers=6", *same])
    assert job.differences() == ()
    assert (uids(job)[:3], len(uids(job))) == (before, 6)
    assert token(job) == made
    assert environments(job, "trainer", "trainer")[0]["PADDLE_TRAINERS_NUM"] == "6"
    job.upgrade(sets=["workers=2", *same])
    assert job.differences() == ()
    assert uids(job) == before[:2]
    assert [pod["metadata"]["uid"] for pod in pods(job, "pserver")] == servers


@pytest.mark.whole
def test_another_number_of_pservers_needs_the_next_run(release: ReleaseFactory) -> None:
    same = ["data.jobClaim.existingClaim=efsvol"]
    job = release("paddle", sets=same)
    with pytest.raises(BiremeError, match="number of pservers"):
        job.upgrade(sets=[*same, "paddle.pservers.count=3"])


@pytest.mark.whole
@pytest.mark.parametrize("keep", [True, False])
def test_uninstalling_keeps_the_claim_only_if_configured(release: ReleaseFactory, keep: bool) -> None:
    # This cluster provisions no volumes: pods wait for their claims, as they do without a storage class.
    sets = [f"data.jobClaim.keep={str(keep).lower()}"]
    job = release("paddle", sets=sets, expect_differences=True)
    claim = f"{job.name}-job"
    assert claim in job.names("persistentvolumeclaims")
    job.uninstall()
    kinds = "pods jobs services configmaps secrets serviceaccounts statefulsets deployments"
    assert {kind: job.names(kind) for kind in kinds.split() if job.names(kind)} == {}
    assert (claim in job.names("persistentvolumeclaims")) is keep
