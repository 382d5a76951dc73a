"""Values that contradict each other or the instance type are refused with a sentence that names the key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bireme.helm import Render, RenderError

ROOT = Path(__file__).parents[2]
P4D: dict[str, Any] = {"instance": "p4d.24xlarge"}

TORCH: list[tuple[str, dict[str, Any], list[str], str]] = [
    (
        "a misspelled key",
        {},
        ["workrs=3"],
        "workrs",
    ),
    ("a string where a number belongs", {}, ["workers=three"], "workers"),
    (
        "9 GPUs on an 8-GPU type",
        P4D,
        ["accelerators=9"],
        "accelerators: 9 is more than the 8 A100 of a p4d.24xlarge",
    ),
    ("EFA 5 on p4d", P4D, ["efa=5"], "efa: 5 is more than the 4 EFA interfaces of a p4d.24xlarge"),
    ("EFA on CPU workers", P4D, ["accelerators=0", "efa=all"], "efa: this job wants EFA"),
    (
        "min above max",
        {},
        ["minWorkers=5", "maxWorkers=3", "workers=5"],
        "minWorkers: 5 is more than maxWorkers, 3",
    ),
    (
        "joining at checkpoints without etcd",
        {},
        ["rendezvous.backend=c10d", "etcd.enabled=false", "rendezvous.join=checkpoint"],
        "rendezvous.join: with c10d workers join at once",
    ),
    (
        "ranks by topology without etcd",
        {},
        [
            "rendezvous.order=topology",
            "serviceAccount.create=true",
            "rendezvous.backend=c10d",
            "etcd.enabled=false",
        ],
        "rendezvous.order: only the entry point with backend etcd orders ranks; use backend etcd",
    ),
    (
        "a right for the ServiceAccount of others",
        {},
        ["rendezvous.order=topology"],
        "rendezvous.order: topology lets the pods' ServiceAccount get nodes, and other pods have default too",
    ),
    (
        "a pattern that finds no number",
        {},
        ["progress.pattern=step"],
        "progress.pattern: step has no group for the number of the step",
    ),
    (
        "half a unit of workers",
        {},
        ["workersPerUnit=4", "workers=6", "minWorkers=4"],
        "workers: 6 is not a multiple of workersPerUnit, 4, and workers train in whole units; write 4 or 8",
    ),
    (
        "a minimum of half a unit",
        {},
        ["workersPerUnit=4", "workers=4"],
        "minWorkers: 1 is not a multiple of workersPerUnit, 4, and workers train in whole units; write 4",
    ),
    (
        "a maximum of half a unit",
        {},
        ["workersPerUnit=4", "workers=4", "minWorkers=4", "maxWorkers=9"],
        "maxWorkers: 9 is not a multiple of workersPerUnit, 4, and workers train in whole units; "
        "write 8 or 12",
    ),
    (
        "units without etcd",
        {},
        ["workersPerUnit=2", "workers=2", "minWorkers=2", "rendezvous.backend=c10d", "etcd.enabled=false"],
        "workersPerUnit: only the entry point with backend etcd keeps to units; use backend etcd",
    ),
    (
        "units with a command",
        {},
        ["workersPerUnit=2", "workers=2", "minWorkers=2", "command={torchrun}"],
        "keeps to units; leave command out",
    ),
    (
        "spares without etcd",
        {},
        ["spares=1", "rendezvous.backend=c10d", "etcd.enabled=false"],
        "spares: only the entry point with backend etcd keeps spares; use backend etcd, or set spares=0",
    ),
    ("spares with a command", {}, ["spares=1", "command={torchrun}"], "keeps spares; leave command out"),
    ("fewer workers than min", {}, ["minWorkers=2"], "workers: 1 is fewer than minWorkers, 2"),
    ("more workers than max", {}, ["workers=129"], "workers: 129 is more than maxWorkers, 128"),
    (
        "processes that don't match the accelerators",
        P4D,
        ["processesPerWorker=4"],
        "processesPerWorker: 4 processes for 8 accelerators",
    ),
    (
        "processes that don't spread over Neuron devices",
        {"instance": "trn1.32xlarge"},
        ["processesPerWorker=17"],
        "processesPerWorker: 17 processes don't spread over 16 Neuron devices",
    ),
    (
        "a torch that has no kernels for Blackwell",
        {"instance": "p6-b300.48xlarge"},
        ["image.tag=2.6.0-cuda12.4-cudnn9-runtime"],
        "image.tag: 2.6.0-cuda12.4-cudnn9-runtime has no kernels for the B300 of a p6-b300.48xlarge",
    ),
    (
        "a CUDA that has no kernels for Blackwell",
        {"instance": "p6-b200.48xlarge"},
        ["image.tag=2.9.1-cuda12.6-cudnn9-runtime"],
        "image.tag: 2.9.1-cuda12.6-cudnn9-runtime has no kernels for the B200",
    ),
    (
        "a torch that has no kernels for Volta any more",
        {"instance": "p3.2xlarge"},
        ["image.tag=2.11.0-cuda12.8-cudnn9-runtime"],
        "image.tag: 2.11.0-cuda12.8-cudnn9-runtime has no kernels for the V100 of a p3.2xlarge",
    ),
    (
        "GPUs by resources instead of accelerators",
        P4D,
        [r"resources.limits.nvidia\.com/gpu=4"],
        "resources.limits.nvidia.com/gpu: 4 contradicts accelerators, which gives each worker 8",
    ),
    (
        "EFA by resources instead of efa",
        P4D,
        [r"resources.requests.vpc\.amazonaws\.com/efa=1"],
        "resources.requests.vpc.amazonaws.com/efa: 1 contradicts efa, which gives each worker 4",
    ),
    (
        "memory for one GPU beside eight",
        P4D,
        ["resources.limits.memory=8000Mi"],
        "resources.limits.memory: 8000Mi is too little for 8 accelerators, whose processes take 2 GiB each",
    ),
    (
        "memory that is no quantity",
        P4D,
        ["resources.limits.memory=lots"],
        "resources.limits.memory: lots is not an amount of memory; write e.g. 64Gi",
    ),
    (
        "a variable of NCCL that is set to nothing",
        P4D,
        ["env.NCCL_SOCKET_IFNAME="],
        "env: NCCL_SOCKET_IFNAME is set to nothing",
    ),
    (
        "a variable of EFA that is set to nothing, as an EnvVar",
        P4D,
        ["extraEnv[0].name=FI_PROVIDER"],
        "env: FI_PROVIDER is set to nothing",
    ),
    (
        "a torchrun by hand that uses half of the GPUs",
        P4D,
        ["command={bash,-c,torchrun --nproc_per_node=4 train.py}"],
        "command: --nproc_per_node=4 is not the 8 processes of a worker with 8 accelerators; write 8",
    ),
    (
        "a launcher that uses more cores than there are",
        {"instance": "trn1.32xlarge"},
        ["launcher=node", "args={torchrun,--nproc-per-node,64,train.py}"],
        "args: --nproc-per-node 64 is not the 32 processes of a worker with 16 accelerators; write 32",
    ),
    (
        "torchrun in the arguments",
        {},
        ["args={torchrun,--nproc_per_node=1,train.py}"],
        "args: torchrun is not the script that torchrun runs; begin with the script, or set launcher=node",
    ),
    (
        "torchrun as a module in the arguments",
        {},
        ["args={-m,torch.distributed.run,train.py}"],
        "args: torch.distributed.run is not the script that torchrun runs",
    ),
    (
        "a shell in the arguments",
        {},
        ["args={/bin/bash,-c,torchrun train.py}"],
        "args: bash is not the script that torchrun runs; begin with the script, or set launcher=node",
    ),
    (
        "a launcher's own command in its arguments",
        {},
        ["launcher=accelerate", "args={accelerate,launch,train.py}"],
        "args: accelerate is not the script that accelerate runs",
    ),
    (
        "an option of torchrun before the script that the chart sets",
        {},
        ["args={--tee,3,--nnodes=2,train.py}"],
        "args: --nnodes is the chart's own; use minWorkers, maxWorkers",
    ),
    (
        "an option of torchrun before a module",
        {},
        ["args={--standalone,-m,train}"],
        "args: --standalone is the chart's own",
    ),
    (
        "python in the arguments of a stock torchrun",
        {"files": [ROOT / "values/stock-torchrun.yaml"]},
        ["args={python3.11,train.py}"],
        "args: python3.11 is not the script that torchrun runs; begin with the script, or set command",
    ),
    (
        "huge pages without memory",
        {},
        ["hugePages=5120Mi"],
        "hugePages: 5120Mi needs a memory or CPU request",
    ),
    (
        "huge pages beyond the node",
        P4D,
        ["hugePages=2000Gi"],
        "hugePages: 2000Gi and reserve.memoryMiB: 2048 leave no",
    ),
    (
        "a reserve beyond the node",
        {"instance": "g5.xlarge"},
        ["reserve.cpu=5"],
        "reserve.cpu: 5 is more than the 4",
    ),
    (
        "/dev/shm beyond the memory",
        P4D,
        ["shm.size=2000Gi"],
        "shm.size: 2000Gi is more than the worker's memory",
    ),
    (
        "a node selector for another type",
        P4D,
        [r"nodeSelector.node\.kubernetes\.io/instance-type=p5.48xlarge"],
        "nodeSelector: node.kubernetes.io/instance-type p5.48xlarge contradicts instance.type p4d.24xlarge",
    ),
    (
        "two rendezvous",
        {},
        ["rendezvous.endpoints={etcd.training.svc:2379}"],
        "rendezvous.endpoints: the release's own etcd would stay unused",
    ),
    (
        "no rendezvous",
        {},
        ["etcd.enabled=false"],
        "rendezvous.endpoints: backend etcd without etcd.enabled needs",
    ),
    (
        "a CA for endpoints that are not given",
        {},
        ["rendezvous.tls.existingSecret=ca"],
        "rendezvous.tls.existingSecret: it belongs to rendezvous.endpoints",
    ),
    (
        "space without a folder",
        {},
        ["preflight.freeMiB=100"],
        "preflight.folder: space and speed are measured in a folder; name one",
    ),
    ("c10d with an etcd", {}, ["rendezvous.backend=c10d"], "rendezvous.backend: c10d uses no etcd"),
    (
        "a Secret for endpoints that are not there",
        {},
        ["rendezvous.auth.existingSecret=users"],
        "rendezvous.auth.existingSecret: it belongs to rendezvous.endpoints",
    ),
    ("the chart's own environment", {}, ["env.PET_NNODES=2"], "env: PET_NNODES is the chart's own"),
    ("an environment that breaks EFA", P4D, ["env.RDMAV_FORK_SAFE=1"], "env: RDMAV_FORK_SAFE breaks EFA"),
    (
        "a variable set twice",
        {"values": {"env": {"A": "1"}, "extraEnv": [{"name": "A", "value": "2"}]}},
        [],
        "extraEnv: A is set twice",
    ),
    (
        "a path mounted twice",
        {"values": {"claims": [{"claimName": "data", "mountPath": "/dev/shm"}]}},
        [],
        "claims: /dev/shm is mounted already",
    ),
    (
        "the host's EFA devices",
        {**P4D, "values": {"extraVolumes": [{"name": "ib", "hostPath": {"path": "/dev/infiniband"}}]}},
        [],
        "extraVolumes: ib mounts /dev/infiniband from the host",
    ),
    ("script and command", {}, ["script=print()", "command={sh}"], "command: it replaces the entry point"),
    (
        "TensorBoard without logs",
        {},
        ["tensorboard.enabled=true"],
        "tensorboard.logDir: (not set) is not on one of the claims",
    ),
    (
        "TensorBoard on the internet",
        {},
        ["tensorboard.service.type=LoadBalancer"],
        "tensorboard.service.loadBalancerSourceRanges: TensorBoard asks for no password",
    ),
    (
        "networks without a load balancer",
        {},
        ["tensorboard.service.loadBalancerSourceRanges={192.0.2.0/24}"],
        "tensorboard.service.loadBalancerSourceRanges: a Service of type ClusterIP does not look at them",
    ),
    (
        "a name that is too long",
        {},
        [f"fullnameOverride={'x' * 60}"],
        "choose a shorter release name or fullnameOverride",
    ),
    ("an image tag that moves", {}, ["image.tag=latest"], "image"),
    (
        "etcd's v2 API on 3.6",
        {},
        ["etcd.v2API=true"],
        "v2API: etcd 3.6 removed the v2 API and image.tag is v3.6.5",
    ),
    ("a typo in the dependency's values", {}, ["etcd.replica=3"], "replica"),
]

ETCD: list[tuple[str, list[str], str]] = [
    ("two members", ["replicas=2"], "replicas"),
    (
        "certificates from two sources",
        ["tls.certManager.enabled=true", "tls.certManager.issuerRef.name=ca", "tls.serverSecret=mine"],
        "tls.certManager: cert-manager makes the Secrets itself",
    ),
    (
        "cert-manager without an issuer",
        ["tls.certManager.enabled=true"],
        "tls.certManager.issuerRef: cert-manager needs an issuer",
    ),
    (
        "client certificates without TLS",
        ["tls.clientSecret=mine"],
        "tls.clientSecret: client certificates need TLS",
    ),
    ("snapshots that go nowhere", ["backup.enabled=true"], "backup.claimName: name the claim"),
    ("a restore from nowhere", ["restore.enabled=true"], "restore.claimName: name the claim"),
    ("an etcd without /livez", ["image.tag=v3.5.10"], "image.tag: etcd 3.5.10 has no /livez"),
    ("the v2 API on 3.6", ["v2API=true"], "v2API: etcd 3.6 removed the v2 API"),
    (
        "the v2 API on a tag that tells no version",
        ["v2API=true", "image.tag=stable"],
        "v2API: etcd 3.6 removed",
    ),
    ("a name that is too long", [f"fullnameOverride={'x' * 53}"], "StatefulSet name"),
]


@pytest.mark.parametrize("helm", ["helm", "helm3"])
@pytest.mark.parametrize(
    ("options", "sets", "sentence"), [case[1:] for case in TORCH], ids=[case[0] for case in TORCH]
)
def test_torch_elastic_refuses(
    render: Callable[..., Render], options: dict[str, Any], sets: list[str], sentence: str, helm: str
) -> None:
    with pytest.raises(RenderError) as refusal:
        render("torch-elastic", sets=sets, helm=helm, **options)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("helm", ["helm", "helm3"])
@pytest.mark.parametrize(("sets", "sentence"), [case[1:] for case in ETCD], ids=[case[0] for case in ETCD])
def test_etcd_refuses(render: Callable[..., Render], sets: list[str], sentence: str, helm: str) -> None:
    with pytest.raises(RenderError) as refusal:
        render("etcd", sets=sets, helm=helm)
    assert sentence in str(refusal.value)


def test_all_broken_rules_are_reported_together(render: Callable[..., Render]) -> None:
    with pytest.raises(RenderError) as refusal:
        render("torch-elastic", instance="p4d.24xlarge", sets=["accelerators=9", "efa=5", "minWorkers=2"])
    assert len(str(refusal.value).splitlines()) >= 3


def test_v2_api_is_allowed_below_3_6(render: Callable[..., Render]) -> None:
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
def test_a_torch_with_kernels_for_the_type_is_taken(
    render: Callable[..., Render], instance: str, tag: str
) -> None:
    render("torch-elastic", instance=instance, sets=[f"image.tag={tag}"])
