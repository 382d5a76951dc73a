"""The commands of the walkthroughs that need containers really run, and their jobs train.

What differs from EKS: the cluster is there, so Terraform's commands and the cleanup are left out (they run
in tests/embedded/test_walkthroughs.py); a claim is a directory of this machine instead of a file system; a
bucket is one of moto; mine.yaml names images that the nodes have, and asks for what this machine has; and the
nodes are p5.4xlarge, with one accelerator and one EFA interface that nothing is behind.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.clusters.kind import KindCluster
from bireme.helm.values import merge
from bireme.tools import Toolbox
from tests.kind.buckets import upload
from tests.kind.shell import NODE_TYPE, Shell, Values, until
from tests.support.documents import ROOT, Command, blocks
from tests.support.reader import Reader

pytestmark = pytest.mark.whole

CLAIMS = {"efs": "efsvol", "fsx": "fsx-pvc"}
LEFT_OUT = (
    "bireme eksctl",
    "bireme plan charts/torch-elastic",
    "bireme uninstall nccl",
    "hack/eks/teardown",
    # The MPIJob trains in test_tensorflow.py.
    *("helm install mpijob", "bireme install charts/mpi-training keras", "bireme status keras"),
    *(
        "kubectl wait --for=condition=Succeeded mpijob/keras",
        "kubectl get pods -l training",
        "bireme uninstall keras",
    ),
    "helm uninstall mpijob",
    "helm install efa",
    "helm install gpu-metrics",
    "helm install nccl",
    "helm uninstall gpu-metrics",
    "kubectl port-forward service/gpu-metrics",
)
TESTS = Path(__file__).parents[1]
PYTHON = {"registry": "", "repository": "bireme/python", "tag": "3.13"}
FEW = {"requests": {"cpu": "50m", "memory": "64Mi"}}
ANYWHERE = [{"operator": "Exists"}]


@dataclass
class Walk:
    """Somebody who follows a walkthrough on the cluster of the tests.

    ``instead`` has what is done in place of the commands that begin so, ``before`` what is done before them,
    and ``here`` the texts of the document that are others on this cluster.
    """

    reader: Reader
    cluster: KindCluster
    mine: Mapping[str, Any]
    here: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    instead: Mapping[str, Callable[[], None]] = field(default_factory=dict)

    def follow(self, document: Path) -> None:
        """Type the commands that need no AWS, and compare what is shown."""
        for block in blocks(document, self.here):
            printed = [self.typed(command) for command in block.commands]
            if None not in printed:
                shown = "".join(each or "" for each in printed)
                assert block.missing(shown) == [], f"{block.commands[0]}\n{shown}"

    def typed(self, command: Command) -> str | None:
        """What the command prints; None when it is left out or replaced."""
        for start, other in self.instead.items():
            if command.text.startswith(start):
                other()
                return None
        if command.needs in ("AWS", "GPUs", "internet") or command.text.startswith(LEFT_OUT):
            return None
        if command.text.startswith("helm install ") and command.text.split()[2] in CLAIMS:
            self.cluster.add_claim(CLAIMS[command.text.split()[2]])
            return None
        if command.text.endswith("> mine.yaml"):
            self.writes("mine.yaml", self.mine)
            return None
        for start, first in self.before.items():
            if command.text.startswith(start):
                first()
        if command.text.startswith("kubectl port-forward "):
            self.looks(command)
            return None
        done = self.reader.types(command.text)
        assert done.returncode == command.code, f"{command}\n{done.stdout}"
        return done.stdout

    def writes(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a values file where the commands are typed."""
        (self.reader.clone / name).write_text(yaml.safe_dump(dict(values)))

    def looks(self, command: Command) -> None:
        """Open the page that a port-forward shows."""
        port = command.text.partition(" # ")[0].split()[-1].partition(":")[0]
        environment, clone = self.reader.environment, self.reader.clone
        forward = subprocess.Popen(["bash", "-c", f"exec {command.text}"], env=environment, cwd=clone)
        try:
            until(lambda: _answers(f"http://localhost:{port}"), what=f"a page on port {port}")
        finally:
            forward.terminate()
            forward.wait()

    def events(self, release: str) -> list[dict[str, Any]]:
        """The events that the training of a release has printed in its pods of now."""
        printed = self.reader.types(
            f"kubectl logs -l app.kubernetes.io/instance={release} --all-containers --tail=-1 --ignore-errors"
        )
        return [json.loads(line) for line in printed.stdout.splitlines() if line.startswith('{"event"')]

    def until_event(self, release: str, of: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Wait for an event in the logs of a release."""
        deadline = time.monotonic() + 240
        while not any(of(event) for event in self.events(release)):
            if time.monotonic() > deadline:
                pytest.fail(f"no {what}\n{self.reader.types(f'bireme logs {release}').stdout}")
            time.sleep(2)

    def until_step(self, release: str, world_size: int) -> None:
        """Wait until so many processes have trained a step."""
        self.until_event(
            release,
            lambda event: event["event"] == "step" and event["world_size"] == world_size,
            f"step of {world_size} processes",
        )

    def loses(self, release: str, index: int) -> None:
        """A worker goes without a word, as when its node is terminated."""
        pod = f"app.kubernetes.io/instance={release},batch.kubernetes.io/job-completion-index={index}"
        self.reader.types(f"kubectl delete pod -l {pod} --grace-period=0 --force")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as page:
            return bool(page.status == 200)
    except OSError:
        return False


@pytest.fixture
def reader(tmp_path: Path, toolbox: Toolbox, cluster: KindCluster) -> Iterator[Reader]:
    """Somebody whose kubectl reaches the cluster of the tests; the releases are uninstalled at the end."""
    # Without clusters of `bireme up` the harness takes the kubeconfig.
    here = {"KUBECONFIG": str(cluster.kubeconfig), "BIREME_STATE": str(tmp_path / "state")}
    found = Reader(tmp_path, toolbox, here)
    yield found
    found.types("helm list --short | xargs --no-run-if-empty --max-args=1 bireme uninstall")
    for claim in CLAIMS.values():
        found.types(f"kubectl delete pvc/{claim} pv/default-{claim} --ignore-not-found --timeout=60s")
    found.types("kubectl delete secret/s3-keys --ignore-not-found")


@pytest.fixture
def bucket(
    cluster: KindCluster, shell: Shell, s3_server: Values, test_namespace: str
) -> Callable[[str, str, str], Values]:
    """``bucket("name", "bireme/torch:0.1.0", "commands")``: a bucket of what they leave in /made.

    It returns what charts/dataset needs to know, as dataset.yaml on EKS does.
    """

    def _bucket(name: str, image: str, commands: str) -> Values:
        folder = cluster.claim_folder("source", test_namespace) / name
        mounts = ["-v", f"{folder}:/made", "-v", f"{TESTS / 'images'}:/tests:ro", "-w", "/made"]
        made = ["docker", "run", "--rm", "--user=0", *mounts, image, "bash", "-euc", commands]
        subprocess.run(made, check=True)
        upload(shell, test_namespace, name)
        keys = [f"--from-literal=AWS_{key}=test" for key in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]
        shell.kubectl("create", "secret", "generic", "s3-keys", "-n", "default", *keys)
        few = {"image": PYTHON, "resources": FEW, "tolerations": ANYWHERE}
        return {"s3": s3_server, **few, "prepare": {"image": PYTHON}, "test": {"resources": FEW}}

    return _bucket


def on_kind(values: str, **more: Any) -> Values:
    """A values file for kind, with further values, and without policies: nothing there holds pods to any."""
    given = yaml.safe_load((ROOT / "values" / values).read_text())
    return merge(given, {"networkPolicy": {"enabled": False}, **more})


def test_the_jobs_of_paddle_on_aws_train(
    reader: Reader, cluster: KindCluster, load: Callable[..., None]
) -> None:
    load("paddle", "python", "etcd")
    Walk(reader, cluster, on_kind("kind-paddle.yaml")).follow(ROOT / "docs/walkthroughs/paddle-on-aws.md")
    output = cluster.claim_folder("efsvol") / "paddle-cluster-job/output"
    assert len(list(output.glob("pass-*/done"))) == 20


# The archive of ImageNet has validation images in one folder, and their classes in a table.
ILSVRC = """
mkdir -p ILSVRC/Data && python3 /tests/photos.py ILSVRC/Data/CLS-LOC && cd ILSVRC/Data/CLS-LOC
echo ImageId,PredictionString > LOC_val_solution.csv
for photo in val/*/*.jpg; do
  class=$(basename "$(dirname "$photo")"); name=ILSVRC2012_val_${class%%.*}_$(basename "$photo" .jpg)
  mv "$photo" "val/$name.JPEG"; echo "$name,$class 1 2 3 4" >> LOC_val_solution.csv
done
rmdir val/*/
chmod -R a+rX /made
"""
SMALL = ["--arch=resnet18", "--image-size=64", "--batch-size=2", "--workers=1", "--step-seconds=0.1"]
SMALL += ["--epochs=1000", "--warm-up=1", "--checkpoint-every=4", "--log-every=1"]


def test_torch_elastic_on_eks_grows_and_outlives_a_node(
    reader: Reader, cluster: KindCluster, load: Callable[..., None], bucket: Callable[..., Values]
) -> None:
    load("torch", "etcd", "python")
    staging = bucket("imagenet", "bireme/torch:0.1.0", ILSVRC)
    walk = Walk(
        reader,
        cluster,
        on_kind("kind.yaml", launch={"argGroups": {"small": SMALL}}),
        here={
            "p4d.24xlarge": NODE_TYPE,
            "24 accelerators, 12 EFA": "3 accelerators, 3 EFA",
            f"{NODE_TYPE}   8   4": f"{NODE_TYPE} 1 1",
            "BUCKET": "imagenet",
        },
    )
    walk.before = {
        "helm install imagenet-data": lambda: walk.writes("dataset.yaml", staging),
        "bireme scale": lambda: walk.until_step("imagenet", 1),
        "kubectl port-forward": lambda: walk.until_step("imagenet", 3),
    }

    def lost() -> None:
        walk.until_step("imagenet", 3)
        walk.loses("imagenet", 1)

    walk.instead = {"aws ec2 terminate-instances": lost}
    walk.follow(ROOT / "docs/walkthroughs/torch-elastic-on-eks.md")
    checkpoints = cluster.claim_folder("fsx-pvc") / "checkpoints/imagenet-efa"
    assert list(checkpoints.glob("checkpoint-*.pt"))
    assert list((checkpoints / "tensorboard").iterdir())


COCO = """
touch ImageNet-R50-AlignPadding.npz && python3 /tests/tiny_coco.py coco && cd coco
for part in train2017 val2017; do python3 -m zipfile -c ../$part.zip $part; done
python3 -m zipfile -c ../annotations_trainval2017.zip annotations
cd .. && rm -r coco && chmod -R a+rX /made
"""
TINY = [
    "--backbone=resnet18",
    "--proposals=20",
    "--regions=8",
    "--batch-size=1",
    "--workers=0",
    "--epochs=400",
]
TINY += ["--image-size", "96", "144", "--log-every=1", "--warm-up-steps=2", "--checkpoint-every=2"]


def test_mask_rcnn_on_eks_grows_and_outlives_a_node(
    reader: Reader, cluster: KindCluster, load: Callable[..., None], bucket: Callable[..., Values]
) -> None:
    load("mpi", "torch", "python")
    staging = bucket("coco", "bireme/mpi:0.1.0", COCO)
    archives = ("train2017", "val2017", "annotations_trainval2017")
    sources = [{"url": f"s3://coco/{name}.zip"} for name in archives]
    sources.append({"url": "s3://coco/ImageNet-R50-AlignPadding.npz", "path": "pretrained-models"})
    image = {"registry": "", "repository": "bireme/mpi", "tag": "0.1.0"}
    # Four workers on three nodes, so without their accelerators.
    mine = on_kind(
        "kind-mpi.yaml",
        image=image,
        accelerators=0,
        tolerations=ANYWHERE,
        launch={"argGroups": {"tiny": TINY}},
    )
    walk = Walk(
        reader,
        cluster,
        mine,
        here={
            "p4d.24xlarge": NODE_TYPE,
            f"{NODE_TYPE}   8": f"{NODE_TYPE} 1",
            f"32 accelerators, 16 EFA, nodes: 4 × {NODE_TYPE}": "0 accelerators, 0 EFA, …",
            "BUCKET": "coco",
        },
    )
    walk.before = {
        "helm install coco": lambda: walk.writes("dataset.yaml", {**staging, "sources": sources}),
        "bireme scale": lambda: walk.until_step("maskrcnn", 1),
        "kubectl port-forward": lambda: walk.until_step("maskrcnn", 4),
    }

    def lost() -> None:
        walk.until_event(
            "maskrcnn",
            lambda event: event["event"] == "resume" and event["world_size"] == 4,
            "run of four processes that goes on from the checkpoint of one",
        )
        walk.until_step("maskrcnn", 4)
        walk.loses("maskrcnn", 1)

    walk.instead = {"aws ec2 terminate-instances": lost}
    walk.follow(ROOT / "docs/walkthroughs/mask-rcnn-on-eks.md")
    assert list((cluster.claim_folder("efsvol") / "runs/maskrcnn").glob("checkpoint-*.pt"))
