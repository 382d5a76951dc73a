"""Elastic jobs on a real control plane: what is observed is what was planned."""

from __future__ import annotations

import json
import re
import shutil
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bireme.cli import cli
from bireme.clusters.base import Cluster
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from bireme_runtime.elastic.rendezvous import topology
from tests.support import faults

P4D: dict[str, Any] = {"instance": "p4d.24xlarge", "workload": "imagenet-efa"}


def uids(release: InstalledRelease) -> dict[str, str]:
    """The UID of every live worker's pod by index."""
    return {
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: pod["metadata"]["uid"]
        for pod in release.objects("pods")
        if "deletionTimestamp" not in pod["metadata"]
        and pod["status"]["phase"] in ("Pending", "Running")
        and pod["metadata"]["labels"]["app.kubernetes.io/component"] == "worker"
    }


def job_uid(release: InstalledRelease) -> str:
    (job,) = release.objects("jobs")
    uid: str = job["metadata"]["uid"]
    return uid


def nodes_of(release: InstalledRelease, role: str = "worker") -> list[str | None]:
    return [pod.node for pod in release.pods() if pod.role == role and pod.is_live]


def worker(release: InstalledRelease, index: int) -> str:
    """The pod of a worker of the first run."""
    slot = f"{release.name}-r1-{index}"
    return next(pod.name for pod in release.pods() if pod.slot == slot and pod.is_live)


def test_imagenet_efa_with_3_workers_fills_3_p4d_nodes(release: ReleaseFactory) -> None:
    job = release("torch-elastic", name="imagenet", sets=["workers=3"], **P4D)
    assert job.differences() == ()
    assert (job.plan.totals.accelerators, job.plan.totals.efa) == (24, 12)
    workers = [pod for pod in job.pods() if pod.role == "worker"]
    assert len({pod.node for pod in workers}) == 3
    assert sum(int(pod.resources["nvidia.com/gpu"]) for pod in workers) == 24
    assert sum(int(pod.resources["vpc.amazonaws.com/efa"]) for pod in workers) == 12
    assert {pod.hostname for pod in workers} == {f"imagenet-r1-{index}" for index in range(3)}


def test_scaling_3_to_5_to_2_keeps_the_job_and_the_remaining_workers(release: ReleaseFactory) -> None:
    job = release("torch-elastic", sets=["workers=3"], **P4D)
    before, identity = uids(job), job_uid(job)
    job.upgrade(sets=["workers=5"], **P4D)
    assert job.differences() == ()
    grown = uids(job)
    assert {index: grown[index] for index in before} == before
    job.upgrade(sets=["workers=2"], **P4D)
    assert job.differences() == ()
    assert uids(job) == {index: before[index] for index in ("0", "1")}
    assert job_uid(job) == identity


def test_a_missing_efa_that_was_only_wanted_is_a_sentence_of_status(
    release: ReleaseFactory, cluster: Cluster
) -> None:
    job = release("torch-elastic", instance="p4d.24xlarge", sets=["workers=2"])
    first, _ = [pod["metadata"] for pod in job.objects("pods") if "r1" in pod["metadata"]["name"]]
    # A stand-in for the words that the container leaves: the nodes here start none.
    ended = {"exitCode": 0, "message": "EFA cannot be used, so that NCCL takes TCP: no device\n"}
    status = {"initContainerStatuses": [{"name": "devices", "state": {"terminated": ended}}]}
    path = f"/api/v1/namespaces/{job.namespace}/pods/{first['name']}/status"
    cluster.api.patch(path, {"status": status}, "application/strategic-merge-patch+json")
    target = ["-n", job.namespace, "--kubeconfig", str(cluster.kubeconfig)]
    shown = CliRunner().invoke(cli, ["status", job.name, *target])
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.output.split())
    assert words.count("! 1 of 3 pods: EFA cannot be used, so that NCCL takes TCP: no device") == 1
    told = json.loads(CliRunner().invoke(cli, ["status", job.name, *target, "-o", "json"]).output)
    lacks = {pod["name"]: pod["lack"] for pod in told["pods"]}
    assert [name for name, lack in lacks.items() if lack] == [first["name"]]


def test_an_upgrade_that_does_not_fit_and_a_diff_with_changes_exit_with_1(release: ReleaseFactory) -> None:
    job = release("torch-elastic", sets=["workers=1"], **P4D)
    target = ["-n", job.namespace, "--kubeconfig", str(job.cluster.kubeconfig), "--reuse-values"]

    def ran(command: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, [*command.split(), *target])
        return done.exit_code, done.stdout

    assert ran(f"diff {job.name} torch-elastic") == (0, "nothing changes\n")
    code, shown = ran(f"diff {job.name} torch-elastic --set workers=40")
    assert (code, {"-  parallelism: 1", "+  parallelism: 40"} <= set(shown.splitlines())) == (1, True), shown
    code, exported = ran(f"export torch-elastic {job.name} --as Job")
    (kept,) = [each for each in yaml.safe_load_all(exported) if each["kind"] == "Job"]
    (container,) = kept["spec"]["template"]["spec"]["containers"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert (code, kept["spec"]["parallelism"], gpus) == (0, 1, "8")
    code, told = ran(f"install torch-elastic {job.name} --set workers=40 -o json --timeout 5")
    assert (code, '"category": "pending"' in told, "Insufficient" in told) == (1, True, True), told


def test_a_pod_that_leaves_an_excluded_node_is_made_again_without_being_counted(
    release: ReleaseFactory,
) -> None:
    job = release("torch-elastic", sets=["workers=2", "recovery.backoffLimitPerIndex=0"], **P4D)
    before = uids(job)
    faults.fail(job.cluster, worker(job, 0), 69, job.namespace)
    job.until(lambda: uids(job).get("0") not in (None, before["0"]))
    assert uids(job)["1"] == before["1"]


def test_a_deleted_worker_comes_back_with_its_index_and_one_that_succeeds_completes_the_job(
    release: ReleaseFactory,
) -> None:
    job = release("torch-elastic", sets=["workers=3"], **P4D)
    before = uids(job)
    job.delete_pod(worker(job, 1))
    job.until(lambda: uids(job).get("1") not in (None, before["1"]))
    assert job.wait() == ()
    after = uids(job)
    assert (after["0"], after["2"]) == (before["0"], before["2"])
    faults.complete(job.cluster, worker(job, 2), job.namespace)
    job.until(
        lambda: any(c["type"] == "Complete" for c in job.objects("jobs")[0]["status"].get("conditions", []))
    )
    assert uids(job).keys() <= {"2"}


def test_an_upgrade_changes_a_job_in_place_or_is_refused_as_predicted_and_needs_the_next_run(
    release: ReleaseFactory,
) -> None:
    job = release("torch-elastic", sets=["workers=2"], **P4D)
    before, identity = uids(job), job_uid(job)
    in_place = [
        "workers=2",
        "job.ttlSecondsAfterFinished=60",
        "job.activeDeadlineSeconds=9000",
        "queue.name=training",
    ]
    assert not job.changes(sets=in_place, **P4D).is_refused
    job.upgrade(sets=in_place, **P4D)
    assert (uids(job), job_uid(job)) == (before, identity)

    changed = ["workers=2", "image.tag=0.2.0"]
    foreseen = job.changes(sets=changed, **P4D)
    assert foreseen.is_refused
    assert "image" in " ".join(foreseen.sentences())
    with pytest.raises(BiremeError, match="image, initContainers of the Job"):
        job.upgrade(sets=changed, **P4D)
    with pytest.raises(BiremeError, match="two runs must not write one checkpoint"):
        job.upgrade(sets=["workers=2", "run=2"], **P4D)
    assert uids(job) == before, "a refused upgrade must not touch the pods"

    job.upgrade(sets=["workers=2", "job.suspend=true"], **P4D)
    job.until(lambda: not uids(job))
    job.upgrade(sets=["workers=2", "job.suspend=false"], **P4D)
    assert job.differences() == ()
    assert (len(uids(job)), job_uid(job)) == (2, identity)

    job.upgrade(sets=changed, replace=True, **P4D)
    assert job.differences() == ()
    (live,) = job.objects("jobs")
    assert live["metadata"]["name"] == f"{job.name}-r2"
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "bireme/torch:0.2.0"
    job.upgrade(sets=["workers=2", "run=5"], replace=True, **P4D)
    assert job.names("jobs") == [f"{job.name}-r5"]


@pytest.fixture
def next_chart(bireme_paths: Paths, tmp_path: Path) -> Callable[[str, str], Path]:
    """``next_chart("9.9.9", "true")``: a copy of that version, with that enableServiceLinks."""

    def made(version: str, links: str) -> Path:
        for folder in ("charts", "runtime", "values"):
            shutil.copytree(bireme_paths.root / folder, tmp_path / version / folder, symlinks=True)
        charts = tmp_path / version / "charts"
        metadata, pod = charts / "torch-elastic/Chart.yaml", charts / "training/templates/_pod.tpl"
        metadata.write_text(re.sub(r"\nversion: .*", f"\nversion: {version}", metadata.read_text()))
        pod.write_text(pod.read_text().replace("enableServiceLinks: false", f"enableServiceLinks: {links}"))
        return metadata.parent

    return made


def test_a_chart_upgrade_keeps_the_pods_or_is_refused_as_predicted(
    release: ReleaseFactory, next_chart: Callable[[str, str], Path]
) -> None:
    job = release("torch-elastic", sets=["workers=2"], **P4D)
    before, identity = uids(job), job_uid(job)
    job.chart = next_chart("9.9.8", "false")
    assert not job.changes(sets=["workers=2"], **P4D).is_refused
    job.upgrade(sets=["workers=2"], **P4D)
    (live,) = job.objects("jobs")
    assert live["metadata"]["labels"]["helm.sh/chart"] == "torch-elastic-9.9.8"
    job.chart = next_chart("9.9.9", "true")
    foreseen = job.changes(sets=["workers=2"], **P4D)
    assert foreseen.is_refused
    assert "enableServiceLinks" in " ".join(foreseen.sentences())
    with pytest.raises(BiremeError, match="enableServiceLinks of the Job"):
        job.upgrade(sets=["workers=2"], **P4D)
    assert (uids(job), job_uid(job)) == (before, identity)


def test_two_releases_train_side_by_side(release: ReleaseFactory) -> None:
    one = release("torch-elastic", name="one", sets=["workers=2"], **P4D)
    two = release("torch-elastic", name="two", sets=["workers=3"], **P4D)
    assert one.differences() == two.differences() == ()
    assert not set(nodes_of(one)) & set(nodes_of(two))


def test_uninstall_leaves_nothing(release: ReleaseFactory) -> None:
    full = {
        "files": ["charts/torch-elastic/ci/external-etcd-values.yaml"],
        "sets": ["serviceAccount.create=true"],
    }
    job = release("torch-elastic", name="gone", **full)
    assert job.differences() == ()
    job.uninstall()
    kinds = (
        "pods jobs services configmaps secrets serviceaccounts statefulsets deployments poddisruptionbudgets"
    )
    assert {kind: job.names(kind) for kind in kinds.split() if job.names(kind)} == {}


def test_helm_3_scales_a_job_with_spares_in_place_too(release: ReleaseFactory) -> None:
    job = release("torch-elastic", sets=["workers=2", "elastic.spares=1"], helm="helm3", **P4D)
    before = uids(job)
    assert len(set(nodes_of(job))) == 3, "the spare has a node of its own"
    job.upgrade(sets=["workers=3", "elastic.spares=1"], helm="helm3", **P4D)
    assert job.differences() == ()
    assert len(uids(job)) == 4
    assert before.items() <= uids(job).items()


@pytest.fixture
def relabel(cluster: Cluster) -> Iterator[Callable[[str | None, dict[str, str]], None]]:
    """Give a node labels; other tests share the cluster, so it gets its own back."""
    before: dict[str, dict[str, str | None]] = {}

    def give(node: str | None, labels: dict[str, str]) -> None:
        path = f"/api/v1/nodes/{node}"
        had = cluster.api.get(path)["metadata"]["labels"]
        before[path] = {label: had.get(label) for label in labels}
        cluster.api.patch(path, {"metadata": {"labels": labels}})

    yield give
    for path, labels in before.items():
        cluster.api.patch(path, {"metadata": {"labels": labels}})


def test_the_chart_lets_a_worker_read_the_labels_of_its_node_and_nothing_else(
    release: ReleaseFactory, relabel: Callable[[str | None, dict[str, str]], None], tmp_path: Path
) -> None:
    values = ["workers=2", "rendezvous.order=topology", "serviceAccount.create=true"]
    job = release("torch-elastic", sets=values, **P4D)
    assert job.differences() == ()
    node = next(iter(nodes_of(job)))
    labels = {"topology.kubernetes.io/zone": "use1-az1", "topology.k8s.aws/network-node-layer-2": "nn-2"}
    relabel(node, labels)
    # What the kubelet would mount.
    accounts = f"/api/v1/namespaces/{job.namespace}/serviceaccounts/{job.name}/token"
    answer = job.cluster.api.create(accounts, {"spec": {"expirationSeconds": 600}})
    ca = job.cluster.api.get(f"/api/v1/namespaces/{job.namespace}/configmaps/kube-root-ca.crt")["data"][
        "ca.crt"
    ]
    (tmp_path / "token").write_text(answer["status"]["token"])
    (tmp_path / "ca.crt").write_text(ca)
    server = urllib.parse.urlsplit(job.cluster.api.server)
    env = {
        "KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port),
        "BIREME_NODE": str(node), "BIREME_TOPOLOGY_FILE": str(tmp_path / "place"),
        "BIREME_TOPOLOGY_LABELS": f"{','.join(labels)},topology.k8s.aws/network-node-layer-3",
    }  # fmt: skip
    assert topology.main(env, tmp_path) == 0
    assert topology.place_of(env) == ("use1-az1", "nn-2", "")
    review = {"user": f"system:serviceaccount:{job.namespace}:{job.name}"}

    def may(verb: str, resource: str) -> bool:
        spec = {
            **review,
            "resourceAttributes": {"verb": verb, "resource": resource, "namespace": job.namespace},
        }
        reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(job.cluster.api.create(reviews, {"spec": spec})["status"]["allowed"])

    assert may("get", "nodes")
    asked = [("list", "nodes"), ("patch", "nodes"), ("get", "pods"), ("get", "secrets")]
    assert not any(may(*each) for each in asked)
