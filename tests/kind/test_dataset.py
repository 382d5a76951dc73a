"""charts/dataset copies data from a real S3 API to a claim: completely or not at all, and each byte once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bireme.clusters.kind import KindCluster
from bireme.clusters.kind.cluster import SHARED
from bireme.testing.pytest_plugin import InstalledRelease, ReleaseFactory
from tests.kind.buckets import upload
from tests.kind.shell import NODE_TYPE, Shell, Values, until
from tests.kind.training import KIND, outcome

Content = dict[str, bytes]

SMALL, LARGE = 20_000, 16 << 20
REQUESTS = {"cpu": "50m", "memory": "64Mi"}
# Prints what a training finds on its node.
LOOK = """
from bireme_runtime.dataset.manifest import verify
from pathlib import Path
print(verify(Path("/staged")))
Path("/staged/n0/0.bin").read_bytes()
"""


@dataclass(frozen=True)
class Place:
    """The S3 server and the claim `staged` of a namespace, with the folders on this machine behind both."""

    cluster: KindCluster
    shell: Shell
    namespace: str
    s3: Values

    def upload(self, bucket: str, files: Content) -> None:
        """Make a bucket of these files, or add them to it."""
        folder = self.cluster.claim_folder("source", self.namespace) / bucket / "data"
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        upload(self.shell, self.namespace, bucket)

    @property
    def staged(self) -> Path:
        """The claim."""
        return self.cluster.claim_folder("staged", self.namespace)

    def read(self, path: str) -> Content:
        """The files of a published dataset, without its manifest."""
        folder = self.staged / path
        found = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
        assert found.pop("MANIFEST.jsonl").stat().st_size > 0
        return {path: file.read_bytes() for path, file in found.items()}

    def log(self, job: InstalledRelease) -> str:
        """The logs of the copying containers of a release."""
        pods = f"app.kubernetes.io/instance={job.name},app.kubernetes.io/component=copier"
        return self.shell.kubectl("logs", "-n", self.namespace, "-l", pods, "-c", "stage", "--tail=-1")

    def ends(self, job: InstalledRelease) -> str | None:
        """How the Job of a release ends."""
        until(lambda: outcome(job) is not None, 180, "the dataset's Job to end")
        return outcome(job)


@pytest.fixture(scope="module")
def place(cluster: KindCluster, shell: Shell, s3_server: Values, test_namespace: str) -> Place:
    cluster.add_claim("staged", test_namespace)
    return Place(cluster, shell, test_namespace, s3_server)


@pytest.fixture
def stage(release: ReleaseFactory, place: Place) -> Callable[..., InstalledRelease]:
    """``stage("pictures", to="here")``: a release that stages a bucket, without waiting for its end."""

    def _stage(bucket: str, to: str, **more: Any) -> InstalledRelease:
        values = {
            "sources": [{"url": f"s3://{bucket}/data"}],
            "claim": {"name": "staged", "path": to},
            "s3": place.s3,
            "parallel": 2,
            "partMiB": 1,
            "image": {"registry": "", "repository": "bireme/python", "tag": "3.13"},
            "resources": {"requests": REQUESTS},
            "tolerations": [{"operator": "Exists"}],
            **more,
        }
        return release("dataset", values=values, timeout=1, expect_differences=True)

    return _stage


def content(files: int) -> Content:
    """``files`` small files."""
    chance = random.Random(files)
    return {f"n{number % 7}/{number}.bin": chance.randbytes(SMALL + number) for number in range(files)}


# Kills the copier once its journal has more than 20 files and parts. It runs on the node, because a copy of
# small files ends within seconds.
KILL = """
for _ in {1..1200}; do
    test "0$(grep -c path "$1")" -gt 20 && exec pkill -KILL -f "[b]ireme_runtime.dataset.claim stage"
    sleep 0.1
done
exit 1
"""


def kill_copier(place: Place, job: InstalledRelease, journal: str) -> None:
    until(lambda: any(pod.is_live and pod.node for pod in job.pods()), what="the copier's pod")
    (node,) = {pod.node for pod in job.pods() if pod.is_live and pod.node}
    path = f"{SHARED}/{place.staged.name}/{journal}"
    place.cluster.on_node(node, "bash", "-c", KILL, "kill", path)


def test_a_copy_that_is_killed_half_way_goes_on_and_a_second_install_copies_nothing(
    place: Place, stage: Callable[..., InstalledRelease]
) -> None:
    files = {**content(200), "large.rec": random.Random(1).randbytes(LARGE)}
    place.upload("pictures", files)
    # A tenth of a core, so that on any machine there is time to kill it.
    slow = {"requests": REQUESTS, "limits": {"cpu": "100m", "memory": "256Mi"}}
    job = stage("pictures", to="sets/pictures", resources=slow)
    kill_copier(place, job, "sets/.pictures.staging/.bireme/journal-0.jsonl")
    assert not (place.staged / "sets/pictures").exists()
    assert place.ends(job) == "Complete", place.log(job)
    copied = int(place.log(job).partition("is complete; ")[2].split()[0])
    assert 0 < copied < sum(map(len, files.values())) - 15 * SMALL
    assert place.read("sets/pictures") == files
    place.shell.helm("test", job.name, "-n", job.namespace, "--timeout", "2m")

    again = stage("pictures", to="sets/pictures")
    assert place.ends(again) == "Complete", place.log(again)
    assert "nothing to copy" in place.log(again)


@pytest.mark.whole
def test_two_pods_share_the_copy_and_shards_add_up_to_their_source(
    place: Place, stage: Callable[..., InstalledRelease]
) -> None:
    lines = b"".join(b"%d %s\n" % (number, b"x" * (number % 97)) for number in range(50_000))
    others = content(40)
    place.upload("words", {**others, "train.txt": lines})
    shards = [{"file": "train.txt", "count": 4}]
    job = stage("words", to="words", shards=shards, workers=2)
    assert place.ends(job) == "Complete", place.log(job)
    found = place.read("words")
    names = [f"train.txt-{number:05d}" for number in range(4)]
    assert b"".join(found.pop(name) for name in names) == lines
    assert found == others


@pytest.mark.whole
def test_rclone_reads_a_remote_to_the_root_of_a_claim(
    place: Place, load: Callable[..., None], stage: Callable[..., InstalledRelease]
) -> None:
    load("rclone")
    files = content(40)
    place.upload("remote", files)
    remote = {"type": "s3", "provider": "Other", "access_key_id": "test", "secret_access_key": "test"}
    remote |= {"region": place.s3["region"], "endpoint": place.s3["endpoint"]}
    config = "\n".join(["[theirs]", *(f"{key} = {value}" for key, value in remote.items())])
    secret = ["create", "secret", "generic", "rclone", f"--from-literal=rclone.conf={config}\n"]
    place.shell.kubectl(*secret, "-n", place.namespace)
    place.cluster.add_claim("all-of-it", place.namespace)
    job = stage(
        "remote",
        to="/",
        sources=[{"url": "rclone://theirs/remote/data", "rclone": {"secret": "rclone"}}],
        claim={"name": "all-of-it", "path": "/"},
        image={"registry": "", "repository": "bireme/rclone", "tag": "0.1.0"},
    )
    assert place.ends(job) == "Complete", place.log(job)
    root = place.cluster.claim_folder("all-of-it", place.namespace)
    found = {str(file.relative_to(root)): file for file in root.rglob("*") if file.is_file()}
    assert found.pop("MANIFEST.jsonl").stat().st_size > 0
    assert {path: file.read_bytes() for path, file in found.items()} == files
    place.shell.helm("test", job.name, "-n", job.namespace, "--timeout", "2m")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("chart", "on_kind", "images"),
    [("torch-elastic", KIND, ("torch", "etcd")), ("mpi-training", "values/kind-mpi.yaml", ("mpi-5",))],
)
def test_a_worker_has_the_dataset_on_its_node_before_it_trains(
    place: Place,
    load: Callable[..., None],
    stage: Callable[..., InstalledRelease],
    release: ReleaseFactory,
    chart: str,
    on_kind: str,
    images: tuple[str, ...],
) -> None:
    load(*images)
    place.upload("near", content(20))
    staged = stage("near", to="sets/near")
    assert place.ends(staged) == "Complete", place.log(staged)
    values = {
        "data": {
            "verify": {"paths": ["/claim/sets/near"], "sha256": True},
            "staging": {"claimName": "staged", "subPath": "sets/near", "size": "1Gi"},
        },
        "claims": [{"claimName": "staged", "mountPath": "/claim"}],
        "script": LOOK,
    }
    job = release(chart, instance=NODE_TYPE, files=[on_kind], values=values, timeout=180)
    assert place.ends(job) == "Complete"
    log = place.shell.logs(f"app.kubernetes.io/instance={job.name}", job.namespace)
    assert "/staged is complete: 20 files" in log
