"""`bireme doctor` on clusters that have a fault, and its silence on those that have none."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bireme.cli import cli
from bireme.clusters.api import Api, ApiError
from bireme.clusters.embedded import EmbeddedCluster
from bireme.core.findings import Finding
from bireme.core.manifests import Manifest
from bireme.core.paths import Paths
from bireme.live.doctor import Doctor, release
from bireme.live.release import Releases, Revision
from bireme.plan.instances import Instance
from bireme.plan.topology import expand
from bireme.tools import Toolbox
from tests.support import faults, waiting
from tests.support.instance_types import OWN_IMAGE

pytestmark = pytest.mark.embedded
JOB = {"instance": "p4d.24xlarge", "workload": "imagenet-efa"}
CORE = "/api/v1/namespaces"
EVERYWHERE = [{"operator": "Exists"}]

Before = Callable[..., list[str]]


@pytest.fixture
def namespace(cluster: EmbeddedCluster) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"doctor-{uuid.uuid4().hex[:8]}"
    cluster.api.create(CORE, {"metadata": {"name": name}})
    waiting.until_account(cluster.api, name)
    yield name
    cluster.api.delete(f"{CORE}/{name}")


def enforce(api: Api, namespace: str, standard: str) -> None:
    """Enforce a standard of pod security, and wait until the API server does."""
    labels = {"pod-security.kubernetes.io/enforce": standard}
    api.patch(f"{CORE}/{namespace}", {"metadata": {"labels": labels}})
    container = {"name": "a", "image": "a", "securityContext": {"privileged": True}}
    privileged = {"metadata": {"name": "privileged"}, "spec": {"containers": [container]}}

    def is_enforced() -> bool:
        try:
            api.create(f"{CORE}/{namespace}/pods", privileged, dryRun="All")
        except ApiError as error:
            return error.status == 403
        return False

    waiting.until(is_enforced)


@pytest.fixture
def before(
    cluster: EmbeddedCluster,
    namespace: str,
    render: Callable[..., Any],
    instances: Mapping[str, Instance],
) -> Before:
    """The sentences about a chart that is not installed: ``before("torch-elastic", sets=[…])``."""

    def look(chart: str, api: Api | None = None, **options: Any) -> list[str]:
        manifests = render(chart, release="job", namespace=namespace, **options).manifests
        plan = expand("job", namespace, manifests, instances)
        return [each.sentence for each in Doctor(api or cluster.api, plan, manifests, instances).before()]

    return look


@pytest.fixture
def after(
    cluster: EmbeddedCluster, namespace: str, instances: Mapping[str, Instance]
) -> Callable[[], tuple[Finding, ...]]:
    """What is found about the release ``job``, whose Job a test makes itself."""
    job = Manifest({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}})

    def look() -> tuple[Finding, ...]:
        return Doctor(cluster.api, expand("job", namespace, (job,), instances), (), instances).after()

    return look


@pytest.fixture
def claim(cluster: EmbeddedCluster, namespace: str) -> None:
    """The claim of JOB, bound."""
    cluster.add_claim("fsx-pvc", namespace)
    wait_until_bound(cluster, namespace)


def add_claim(cluster: EmbeddedCluster, namespace: str, name: str = "fsx-pvc", **spec: Any) -> None:
    body = {
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, **spec},
    }
    cluster.api.create(f"{CORE}/{namespace}/persistentvolumeclaims", body)


def wait_until_bound(cluster: EmbeddedCluster, namespace: str, name: str = "fsx-pvc") -> None:
    path = f"{CORE}/{namespace}/persistentvolumeclaims/{name}"
    waiting.until(lambda: cluster.api.get(path)["status"].get("phase") == "Bound")


def make_job(cluster: EmbeddedCluster, namespace: str, **spec: Any) -> None:
    """A Job ``job`` of the release ``job`` with one pod."""
    labels = {"app": "job"}
    pod = {
        "restartPolicy": "Never",
        "tolerations": EVERYWHERE,
        "containers": [{"name": "main", "image": "busybox"} | spec.pop("container", {})],
        **spec.pop("pod", {}),
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    cluster.api.create(
        f"/apis/batch/v1/namespaces/{namespace}/jobs",
        {"metadata": {"name": "job", "labels": labels}, "spec": {"template": template, **spec}},
    )


def the_pod(cluster: EmbeddedCluster, namespace: str) -> dict[str, Any]:
    path = f"{CORE}/{namespace}/pods"
    own = "app=job"
    waiting.until(lambda: bool(cluster.api.get(path, labelSelector=own)["items"]))
    return dict(cluster.api.get(path, labelSelector=own)["items"][0])


@pytest.mark.usefixtures("claim")
def test_nothing_is_found_about_a_job_that_can_run(
    cluster: EmbeddedCluster, namespace: str, before: Before
) -> None:
    assert before("torch-elastic", **JOB) == []


def test_claims_that_are_missing_pending_or_for_one_node(
    cluster: EmbeddedCluster, namespace: str, before: Before
) -> None:
    (missing,) = before("torch-elastic", **JOB)
    assert missing == f"There is no claim fsx-pvc in namespace {namespace}, which the job mounts"
    add_claim(cluster, namespace, storageClassName="nobody")
    waiting.until(lambda: before("torch-elastic", **JOB) == ["The claim fsx-pvc is Pending"])
    cluster.api.delete(f"{CORE}/{namespace}/persistentvolumeclaims/fsx-pvc")
    path = f"{CORE}/{namespace}/persistentvolumeclaims/fsx-pvc"
    waiting.until(lambda: cluster.api.find(path) is None)
    add_claim(cluster, namespace, accessModes=["ReadWriteOnce"])
    wait_until_bound(cluster, namespace)
    assert before("torch-elastic", **JOB) == ["The claim fsx-pvc is ReadWriteOnce, and 3 workers mount it"]


def test_a_claim_in_another_zone_than_the_nodes(
    cluster: EmbeddedCluster, namespace: str, before: Before
) -> None:
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-west-2c"]}
    volume = f"far-{namespace}"
    body = {
        "metadata": {"name": volume},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "claimRef": {"name": "fsx-pvc", "namespace": namespace},
            "csi": {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-1"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
        },
    }
    cluster.api.create("/api/v1/persistentvolumes", body)
    try:
        add_claim(cluster, namespace, storageClassName="", volumeName=volume)
        wait_until_bound(cluster, namespace)
        (sentence,) = before("torch-elastic", **JOB)
    finally:
        cluster.api.delete(f"/api/v1/persistentvolumes/{volume}")
    assert sentence == "The claim fsx-pvc is in us-west-2c, and the job's nodes are in us-west-2a"


@pytest.mark.usefixtures("claim")
def test_nodes_that_are_missing_too_few_or_without_a_resource(
    cluster: EmbeddedCluster, namespace: str, before: Before
) -> None:
    p5 = before("torch-elastic", instance="p5.48xlarge", workload="imagenet-efa")
    assert p5 == [
        "3 worker pods cannot be placed: there are no p5.48xlarge nodes, 3 p5.48xlarge nodes are needed"
    ]
    trn = before("torch-elastic", instance="trn1.32xlarge", sets=["workers=2", *OWN_IMAGE])
    assert trn[:1] == ["No node offers aws.amazon.com/neuron, which the job asks for"]
    (few,) = before("torch-elastic", sets=["workers=9"], **JOB)
    assert "p4d.24xlarge" in few


def test_what_the_objects_name_and_neither_the_release_nor_the_namespace_has(
    cluster: EmbeddedCluster, namespace: str, before: Before
) -> None:
    sets = ["monitoring.webhook.existingSecret=hook", "pod.envFrom[0].configMapRef.name=lines"]
    assert before("torch-elastic", sets=sets) == [
        "there is no ConfigMap lines, which it names",
        "there is no Secret hook, which it names",
    ]
    for kind, name in (("configmaps", "lines"), ("secrets", "hook")):
        cluster.api.create(f"{CORE}/{namespace}/{kind}", {"metadata": {"name": name}})
    assert before("torch-elastic", sets=sets) == []


@pytest.fixture
def without_threads(cluster: EmbeddedCluster) -> Iterator[None]:
    """The cluster's p4d.24xlarge run without simultaneous multithreading: half of their vCPU are there."""
    nodes = [each for each in cluster.api.get("/api/v1/nodes")["items"] if "nvidia" in str(each["status"])]
    whole = {each["metadata"]["name"]: each["status"]["allocatable"]["cpu"] for each in nodes}
    for name in whole:
        cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": {"cpu": "47810m"}}})
    yield
    for name, cpu in whole.items():
        cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": {"cpu": cpu}}})


@pytest.mark.usefixtures("claim")
def test_nodes_that_offer_less_than_their_type(
    cluster: EmbeddedCluster, namespace: str, before: Before, without_threads: None
) -> None:
    (sentence,) = before("torch-elastic", **JOB)
    assert sentence.startswith("3 worker pods can never fit 5 p4d.24xlarge nodes: a pod asks for 94 cpu")
    assert before("torch-elastic", sets=["instance.threadsPerCore=1"], **JOB) == []
    assert before("torch-elastic", sets=["instance.vcpu=48"], **JOB) == []


@pytest.mark.usefixtures("claim")
def test_what_daemonsets_take_of_the_nodes_is_not_there_for_workers(
    cluster: EmbeddedCluster, namespace: str, before: Before, without_threads: None
) -> None:
    labels = {"app": "agent"}
    container = {"name": "agent", "image": "agent", "resources": {"requests": {"cpu": "2"}}}
    pod = {"containers": [container], "tolerations": EVERYWHERE}
    template = {"metadata": {"labels": labels}, "spec": pod}
    body = {
        "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    cluster.api.create(path, body)
    try:
        (sentence,) = before("torch-elastic", sets=["instance.threadsPerCore=1"], **JOB)
    finally:
        cluster.api.delete(f"{path}/agent")
    assert sentence.endswith("a pod asks for 46 cpu, a whole node has 45810m")


def test_network_policies_that_nothing_holds_pods_to(cluster: EmbeddedCluster, before: Before) -> None:
    sentence = "Nothing that is known here holds pods to NetworkPolicies, so any pod reaches the job's"
    # As EKS's add-on makes it, first with its default and then with enableNetworkPolicy.
    path = "/apis/apps/v1/namespaces/kube-system/daemonsets"
    labels = {"k8s-app": "aws-node"}
    for option, found in (("false", [sentence]), ("true", [])):
        agent = {"name": "aws-eks-nodeagent", "image": "a", "args": [f"--enable-network-policy={option}"]}
        pod = {"containers": [{"name": "aws-node", "image": "a"}, agent], "nodeSelector": {"no": "node"}}
        spec = {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        cluster.api.create(path, {"metadata": {"name": "aws-node"}, "spec": spec})
        assert before("etcd") == found
        assert before("etcd", sets=["networkPolicy.enabled=false"]) == []
        cluster.api.delete(f"{path}/aws-node")


@pytest.fixture
def tainted(cluster: EmbeddedCluster) -> Iterator[str]:
    """A node with a taint more; its name."""
    nodes = cluster.api.get("/api/v1/nodes")["items"]
    node = next(each for each in nodes if each["metadata"]["name"].startswith("p4d"))
    path, taints = f"/api/v1/nodes/{node['metadata']['name']}", node["spec"]["taints"]
    more = {"key": "team", "value": "vision", "effect": "NoSchedule"}
    cluster.api.patch(path, {"spec": {"taints": [*taints, more]}})
    yield node["metadata"]["name"]
    cluster.api.patch(path, {"spec": {"taints": taints}})


@pytest.mark.usefixtures("claim")
def test_a_taint_that_the_job_does_not_tolerate(
    cluster: EmbeddedCluster, namespace: str, before: Before, tainted: str
) -> None:
    (sentence,) = before("torch-elastic", **JOB)
    assert sentence == f"Node {tainted} has the taint team:NoSchedule, which the job does not tolerate"


def test_drivers_kinds_and_secrets_that_are_missing(cluster: EmbeddedCluster, before: Before) -> None:
    volume = {"type": "csi", "fileSystemId": "fs-0123456789abcdef0"}
    values = {"checkDriver": False, "volumes": {"data": volume}}
    (driver,) = before("efs", values=values)
    assert driver == "The cluster has no CSI driver efs.csi.aws.com, which the job's volumes need"
    path = "/apis/storage.k8s.io/v1/csidrivers"
    cluster.api.create(path, {"metadata": {"name": "efs.csi.aws.com"}, "spec": {}})
    try:
        assert before("efs", values=values) == []
    finally:
        cluster.api.delete(f"{path}/efs.csi.aws.com")
    secret = before("torch-elastic", instance="p4d.24xlarge", sets=["imagePullSecrets={regcred}"])
    assert [each for each in secret if "Secret regcred" in each]
    kinds = before("mpi-training", instance="p3.8xlarge", sets=["mpi.orchestrator=MPIJob", "workers=2"])
    assert [each for each in kinds if "does not know the kind MPIJob" in each]


def test_what_may_not_be_read_is_a_sentence(
    cluster: EmbeddedCluster, namespace: str, before: Before, tmp_path: Path
) -> None:
    path = f"{CORE}/{namespace}/serviceaccounts"
    cluster.api.create(path, {"metadata": {"name": "nobody"}})
    token = cluster.api.create(f"{path}/nobody/token", {"spec": {"expirationSeconds": 3600}})
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token["status"]["token"]}
    own = tmp_path / "kubeconfig"
    own.write_text(yaml.safe_dump(config))
    sentences = before("torch-elastic", api=Api(own), **JOB)
    assert "You may not read nodes, so nothing is said about nodes" in sentences
    unread = {each.split(",")[0] for each in sentences if each.startswith("You may not read")}
    assert unread == {
        f"You may not read {each}" for each in ("nodes", "daemonsets", "fsx-pvc", "resourcequotas")
    }
    refused = f"You may not create jobs in namespace {namespace}, which an install makes"
    assert refused in sentences, sentences


def test_a_namespace_that_is_not_there(cluster: EmbeddedCluster, render: Callable[..., Any]) -> None:
    manifests = render("torch-elastic", release="job", namespace="nowhere", instance="p4d.24xlarge").manifests
    plan = expand("job", "nowhere", manifests, {})
    found = [each.sentence for each in Doctor(cluster.api, plan, manifests, {}).before()]
    assert "There is no namespace nowhere" in found


def test_a_cluster_that_is_too_old(
    cluster: EmbeddedCluster, before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is the stand-in here: no control plane below 1.32 is built."""
    get = Api.get

    def older(self: Api, path: str, **query: str) -> dict[str, Any]:
        return {"gitVersion": "v1.31.9-eks-1"} if path == "/version" else get(self, path, **query)

    monkeypatch.setattr(Api, "get", older)
    (finding,) = before("torch-elastic", instance="p4d.24xlarge")
    assert finding == "The cluster is Kubernetes 1.31, and the charts need 1.32 or newer"


def test_a_quota_that_is_too_small(cluster: EmbeddedCluster, namespace: str, before: Before) -> None:
    hard = {"requests.nvidia.com/gpu": "16", "pods": "50", "requests.cpu": "1000"}
    path = f"{CORE}/{namespace}/resourcequotas"
    cluster.api.create(path, {"metadata": {"name": "team"}, "spec": {"hard": hard}})
    waiting.until(lambda: cluster.api.get(f"{path}/team").get("status", {}).get("used"))
    (finding,) = before("torch-elastic", instance="p4d.24xlarge", sets=["workers=3"])
    assert finding == (
        f"The quota team of namespace {namespace} has 16 of 16 requests.nvidia.com/gpu left, "
        "and the job asks for 24"
    )
    assert before("torch-elastic", instance="p4d.24xlarge", sets=["workers=2"]) == []


def test_pods_that_the_namespace_would_refuse(
    cluster: EmbeddedCluster, namespace: str, before: Before
) -> None:
    enforce(cluster.api, namespace, "restricted")
    options = {"instance": "p4d.24xlarge", "sets": ["workers=2"]}
    assert before("torch-elastic", **options) == []
    options["sets"] = ["workers=2", "pod.hostNetwork=true"]
    (finding,) = before("torch-elastic", **options)
    assert finding.startswith(f"The namespace {namespace} refuses the pod of")
    assert 'violates PodSecurity "restricted:latest": host namespaces' in finding
    pods = cluster.api.get(f"{CORE}/{namespace}/pods")["items"]
    assert pods == [], "doctor only reads"


def test_a_limit_that_is_lower_than_a_worker(
    cluster: EmbeddedCluster, namespace: str, before: Before
) -> None:
    limit = {"type": "Container", "max": {"memory": "64Gi"}}
    path = f"{CORE}/{namespace}/limitranges"
    cluster.api.create(path, {"metadata": {"name": "small"}, "spec": {"limits": [limit]}})
    waiting.until(lambda: before("torch-elastic", instance="p4d.24xlarge", sets=["workers=2"]))
    found = before("torch-elastic", instance="p4d.24xlarge", sets=["workers=2"])
    assert [each for each in found if "maximum memory usage per Container is 64Gi" in each]


def test_a_job_that_reads_s3_names_who_must_have_the_right(
    cluster: EmbeddedCluster, namespace: str, render: Callable[..., Any]
) -> None:
    manifests = render("dataset", workload="imagenet", sets=["sources[0].url=s3://bucket/data"]).manifests
    (finding,) = Doctor(cluster.api, expand("job", namespace, manifests, {}), manifests, {}).unseen()
    assert "the ServiceAccount default has a role for S3" in finding.sentence
    assert "hop limit" in finding.sentence


def test_a_running_job_is_in_order(
    cluster: EmbeddedCluster, namespace: str, after: Callable[[], tuple[Finding, ...]]
) -> None:
    make_job(cluster, namespace)
    pod = the_pod(cluster, namespace)["metadata"]["name"]
    path = f"{CORE}/{namespace}/pods/{pod}"
    waiting.until(lambda: cluster.api.get(path)["status"].get("phase") == "Running")
    assert after() == ()


def test_a_suspended_job(
    cluster: EmbeddedCluster, namespace: str, after: Callable[[], tuple[Finding, ...]]
) -> None:
    make_job(cluster, namespace, suspend=True)
    (finding,) = after()
    assert finding.sentence == "The Job job is suspended by its values"
    assert finding.remedy.startswith("bireme resume job")


def test_a_job_that_has_used_up_its_restarts(
    cluster: EmbeddedCluster, namespace: str, after: Callable[[], tuple[Finding, ...]]
) -> None:
    make_job(cluster, namespace, backoffLimit=0)
    pod = the_pod(cluster, namespace)["metadata"]["name"]
    path = f"{CORE}/{namespace}/pods/{pod}"
    waiting.until(lambda: cluster.api.get(path)["status"].get("phase") == "Running")
    faults.fail(cluster, pod, 3, namespace)
    waiting.until(lambda: bool(after()))
    (finding,) = after()
    assert "The Job job has used up its restarts" in finding.sentence


def test_pods_that_the_namespace_refuses(
    cluster: EmbeddedCluster, namespace: str, after: Callable[[], tuple[Finding, ...]]
) -> None:
    enforce(cluster.api, namespace, "baseline")
    make_job(cluster, namespace, container={"securityContext": {"privileged": True}})
    waiting.until(lambda: bool(after()))
    assert "cannot make pods" in after()[0].sentence
    assert "PodSecurity" in after()[0].sentence


def test_a_pod_that_no_node_takes(
    cluster: EmbeddedCluster, namespace: str, after: Callable[[], tuple[Finding, ...]]
) -> None:
    make_job(cluster, namespace, pod={"nodeSelector": {"nowhere": "yes"}})
    waiting.until(lambda: bool(after()))
    (finding,) = after()
    assert "has no node: 0/" in finding.sentence


def test_what_is_true_of_many_pods_is_one_finding(
    cluster: EmbeddedCluster, namespace: str, after: Callable[[], tuple[Finding, ...]]
) -> None:
    make_job(cluster, namespace, parallelism=8, pod={"nodeSelector": {"nowhere": "yes"}})
    waiting.until(lambda: bool(after()) and "(also 7 more pods, up to job-" in after()[0].sentence)
    (finding,) = after()
    assert "claims to deallocate" not in finding.sentence


def test_a_queue_on_a_cluster_without_kueue(before: Before) -> None:
    found = before("torch-elastic", instance="p4d.24xlarge", sets=["queue.name=training"])
    assert "The cluster has no Kueue, so the queue training does not hold the job" in found


def test_an_image_that_is_published_nowhere_is_named_before_it_is_pulled(
    cluster: EmbeddedCluster, namespace: str, render: Callable[..., Any], instances: Mapping[str, Instance]
) -> None:
    def images(*sets: str) -> list[str]:
        options = {"instance": "p3.16xlarge", "sets": ["args={python,train.py}", *sets]}
        manifests = render("mpi-training", release="job", namespace=namespace, **options).manifests
        doctor = Doctor(cluster.api, expand("job", namespace, manifests, instances), manifests, instances)
        return [each.sentence for each in doctor.unseen() if each.rule == "images"]

    assert len(images("image.repository=bireme/torch")) == 1
    assert images("image.registry=registry.example.com", "image.repository=team/train") == []


def waits(reason: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": "no such image"}}}


def restarted(times: int, code: int = 139, reason: str = "Error") -> dict[str, Any]:
    ended = {"terminated": {"exitCode": code, "reason": reason}} if code else {}
    return {"state": {"running": {}}, "restartCount": times, "lastState": ended}


def test_containers_that_wait_or_restart(
    cluster: EmbeddedCluster, namespace: str, after: Callable[[], tuple[Finding, ...]]
) -> None:
    """The status that a kubelet would write, on a pod that no simulated kubelet touches."""
    # A scheduler that is not there leaves the pod alone.
    make_job(cluster, namespace, pod={"schedulerName": "none"})
    path = f"{CORE}/{namespace}/pods/{the_pod(cluster, namespace)['metadata']['name']}/status"
    plain = {"name": "main", "image": "busybox", "imageID": "", "ready": False, "restartCount": 0}
    for status, words in (
        (waits("ImagePullBackOff"), "cannot be pulled"),
        (waits("CreateContainerConfigError"), "a Secret or ConfigMap"),
        (waits("CrashLoopBackOff") | {"restartCount": 4}, "again and again"),
        (restarted(5), "has restarted 5 times, last with code 139"),
        (restarted(1, 137, "OOMKilled"), "lack of memory"),
    ):
        cluster.api.patch(path, {"status": {"containerStatuses": [plain | status]}})
        (found,) = after()
        assert words in found.sentence
    cluster.api.patch(path, {"status": {"containerStatuses": [plain | restarted(1, 0)]}})
    assert after() == ()


def test_workers_that_leave_efa_alone_use_tcp(
    cluster: EmbeddedCluster,
    namespace: str,
    render: Callable[..., Any],
    instances: Mapping[str, Instance],
) -> None:
    def topics(*sets: str) -> list[str]:
        options = {"instance": "p4d.24xlarge", "sets": ["workers=2", *sets]}
        manifests = render("torch-elastic", release="job", namespace=namespace, **options).manifests
        plan = expand("job", namespace, manifests, instances)
        return [each.rule for each in Doctor(cluster.api, plan, manifests, instances).after()]

    assert topics("efa=0") == ["network"]
    assert topics("efa=all") == []


def test_a_release_of_another_version_than_the_chart_here(
    cluster: EmbeddedCluster, namespace: str, bireme_paths: Paths, toolbox: Toolbox, tmp_path: Path
) -> None:
    older = shutil.copytree(bireme_paths.charts / "efa-device-plugin", tmp_path / "efa-device-plugin")
    file = older / "Chart.yaml"
    file.write_text(re.sub(r"(?m)^version: .*$", "version: 0.0.1", file.read_text()))
    newest = yaml.safe_load((bireme_paths.charts / "efa-device-plugin/Chart.yaml").read_text())["version"]
    releases = Releases(cluster, toolbox)
    look = ["doctor", "efa", "-n", namespace, "-o", "json"]

    def sentences(chart: Path) -> list[str]:
        releases.install(chart, "efa", namespace, {"region": "us-west-2"})
        done = CliRunner().invoke(cli, [*look, "--kubeconfig", str(cluster.kubeconfig)])
        return [each["sentence"] for each in json.loads(done.stdout)["findings"]]

    said = f"The release efa was installed by efa-device-plugin 0.0.1, and the chart here is {newest}"
    try:
        assert said in sentences(older)
        assert said not in sentences(bireme_paths.charts / "efa-device-plugin")
    finally:
        releases.uninstall("efa", namespace)


@pytest.mark.parametrize("status", ["failed", "pending-upgrade"])
def test_a_release_that_helm_did_not_finish(status: str, bireme_paths: Paths) -> None:
    revision = Revision("job", "default", 2, status, "other-1.0.0", "")
    (finding,) = release(revision, bireme_paths.charts)
    assert finding.sentence == f"Helm left the release job as {status}"


def test_the_command_prints_findings_as_json_ends_with_1_and_changes_nothing(
    cluster: EmbeddedCluster, namespace: str, bireme_paths: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["-f", "p4d.24xlarge", "-f", "imagenet-efa", "-n", namespace, "-o", "json"]
    chart = str(bireme_paths.charts / "torch-elastic")
    command = ["doctor", chart, *options, "--kubeconfig", str(cluster.kubeconfig)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 1, done.output
    finding, *notes = json.loads(done.stdout)["findings"]
    assert (finding["rule"], finding["severity"]) == ("storage", "error")
    assert finding["remedy"].startswith("helm install")
    cluster.add_claim("fsx-pvc", namespace)
    wait_until_bound(cluster, namespace)
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["findings"] == notes
    assert {(each["rule"], each["severity"]) for each in notes} == {("images", "note"), ("network", "note")}
    asked, create = set(), Api.create

    def noted(api: Api, path: str, body: Mapping[str, Any], **query: str) -> dict[str, Any]:
        asked.add(path if "dryRun" not in query else "dry run")
        return create(api, path, body, **query)

    monkeypatch.setattr(Api, "create", noted)
    for verb in ("replace", "patch", "delete"):
        monkeypatch.delattr(Api, verb)
    said = CliRunner().invoke(cli, [*command, "-o", "text"]).stderr.splitlines()[0]
    assert asked == {"dry run", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}, "changes nothing"
    assert said.startswith(f"doctor of chart {chart}: context ")
    assert "; looks at version, nodes, storage, drivers, kinds, references, policies, queues" in said
