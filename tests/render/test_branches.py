"""Keys of values that no other test gives to a chart, and branches that no test of this tier runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.core.manifests import Manifest
from tests.support.documents import ROOT
from tests.support.fsx import DYNAMIC
from tests.support.rendered import RenderChart, the

POD = "spec template spec"
STAGE = f"{POD} initContainers stage env"
TRAINER = f"{POD} containers trainer env"
TOLERATION = {"key": "team", "operator": "Exists"}
KEPT = {"etcd": {"persistence": {"enabled": True}}}
MPI = {"image": {"repository": "team/train", "tag": "1"}}
SECRET = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: own}\n---\n"
EFS = {"type": "dynamic", "fileSystemId": "fs-0123456789abcdef0"}
STAGED = {
    "claim": {"name": "fsx-pvc", "path": "words"},
    "sources": [{"url": "https://example.com/words", "token": {"secret": "hub", "key": "read"}}],
    "shell": {"enabled": True},
    "tolerations": [TOLERATION],
}
BUCKET = STAGED | {"sources": [{"url": "s3://theirs/words"}]}
REMOTE = {"url": "rclone://gcs/words", "rclone": {"secret": "remotes"}}
ALERTS = {"enabled": True, "noStepSeconds": 0, "restartsPerHour": 0, "goodputUnder": 0}
PORTS = [{"name": each.lower(), "containerPort": 5000, "protocol": each} for each in ("UDP", "TCP")]
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WISH = {"weight": 1, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {}}}
NEAR = {
    "affinity": {"podAffinity": {PREFERRED: [WISH]}},
    "placement": {"networkLayer": 3, "networkMode": "prefer"},
}
# A chart, its values, an object, the keys to a field (items of lists by name or number), and what is there.
ROWS: list[tuple[str, dict[str, Any], str, str, Any]] = [
    ("etcd", {"nameOverride": "store"}, "StatefulSet", "metadata name", "release-store"),
    ("etcd", {"extraObjects": [SECRET]}, "Secret own", "metadata name", "own"),
    ("etcd", {"antiAffinity": "none"}, "StatefulSet", f"{POD} affinity", {}),
    ("etcd", {"tolerations": [TOLERATION]}, "StatefulSet", f"{POD} tolerations 0", TOLERATION),
    ("etcd", {"nodeSelector": {"kubernetes.io/os": None}}, "StatefulSet", f"{POD} nodeSelector", None),
    (
        "etcd",
        {"persistence": {"storageClassName": "gp3"}},
        "StatefulSet",
        "spec volumeClaimTemplates 0 spec storageClassName",
        "gp3",
    ),
    (
        "etcd",
        {"persistence": {"storageClassName": "-"}},
        "StatefulSet",
        "spec volumeClaimTemplates 0 spec storageClassName",
        "",
    ),
    (
        "etcd",
        {"auth": {"enabled": False}, "backup": {"enabled": True, "claimName": "kept", "subPath": "prod"}},
        "CronJob",
        "spec jobTemplate spec template spec containers 0 volumeMounts snapshots subPath",
        "prod",
    ),
    ("dataset", STAGED, "Job", f"{POD} tolerations 0", TOLERATION),
    ("dataset", STAGED, "Deployment -shell", f"{POD} tolerations 0", TOLERATION),
    (
        "dataset",
        STAGED,
        "Job",
        f"{STAGE} BIREME_SOURCE_0_BIREME_TOKEN valueFrom secretKeyRef key",
        "read",
    ),
    ("dataset", BUCKET | {"s3": {"anonymous": True}}, "Job", f"{STAGE} BIREME_S3_ANONYMOUS value", "true"),
    (
        "dataset",
        BUCKET | {"s3": {"requesterPays": True}},
        "Job",
        f"{STAGE} BIREME_S3_REQUESTER_PAYS value",
        "true",
    ),
    ("dataset", BUCKET | {"s3": {"region": ""}}, "Job", f"{STAGE} AWS_REGION", None),
    (
        "dataset",
        STAGED | {"sources": [REMOTE], "image": {"repository": "team/rclone"}},
        "Job",
        f"{STAGE} BIREME_SOURCE_0_RCLONE_CONFIG value",
        "/bireme/rclone/0/rclone.conf",
    ),
    ("fsx", DYNAMIC | {"keep": True}, "StorageClass", "metadata annotations helm.sh/resource-policy", "keep"),
    ("fsx", DYNAMIC | {"mountOptions": []}, "StorageClass", "mountOptions", None),
    ("efs", {"volumes": {"a": EFS | {"mountOptions": ["iam"]}}}, "StorageClass", "mountOptions", ["iam"]),
    (
        "efa-device-plugin",
        {"region": "us-west-2", "nodeSelector": {"kubernetes.io/os": None}},
        "DaemonSet",
        f"{POD} nodeSelector",
        None,
    ),
    (
        "gpu-metrics",
        {"agent": "dcgm", "dcgm": {"dashboard": {"labels": {"grafana_dashboard": None}}}},
        "ConfigMap -dashboard",
        "metadata labels grafana_dashboard",
        None,
    ),
    ("mpijob", {"nodeSelector": {"kubernetes.io/os": None}}, "Deployment", f"{POD} nodeSelector", None),
    (
        "mpijob",
        {"metrics": {"serviceMonitor": {"enabled": True}}},
        "ServiceMonitor",
        "metadata labels release",
        None,
    ),
    (
        "mpi-training",
        MPI | {"launch": {"runtime": False}, "mpi": {"implementation": "Intel"}, "args": ["train"]},
        "Job",
        f"{POD} containers trainer args",
        ["mpirun", "-np", "1", "-f", "/bireme/mpi/hostfile", "train"],
    ),
    (
        "paddle",
        {"paddle": {"topology": "collocated", "pservers": {"resources": {"requests": None, "limits": None}}}},
        "Job -r1",
        f"{POD} initContainers pserver resources",
        None,
    ),
    (
        "paddle",
        {"data": {"jobClaim": {"enabled": True, "storageClassName": "-"}}},
        "PersistentVolumeClaim",
        "spec storageClassName",
        "",
    ),
    (
        "torch-elastic",
        {"monitoring": {"metrics": {"alerts": ALERTS}}, "recovery": {"excludeNodeSeconds": 0}},
        "PrometheusRule",
        "spec groups 0 rules 0 alert",
        "TrainingLossIsNoNumber",
    ),
    (
        "torch-elastic",
        {"monitoring": {"metrics": {"dashboard": {"enabled": True, "labels": {"grafana_dashboard": None}}}}},
        "ConfigMap -dashboard",
        "metadata labels grafana_dashboard",
        None,
    ),
    (
        "torch-elastic",
        {"instance": {"accelerator": {"count": 8}}},
        "Job",
        f"{TRAINER} BIREME_PREFLIGHT_PAIRS value",
        "true",
    ),
    (
        "torch-elastic",
        {"data": {"dispatcher": {"enabled": True, "resources": {"requests": None, "limits": None}}}} | KEPT,
        "Deployment",
        f"{POD} containers 0 resources",
        None,
    ),
    (
        "efs",
        {"volumes": {"a": EFS | {"type": "csi", "encryptInTransit": False}}},
        "PersistentVolume",
        "spec csi volumeAttributes encryptInTransit",
        "false",
    ),
    (
        "torch-elastic",
        {"recovery": {"warmStart": {"enabled": True, "modules": []}}},
        "Job",
        f"{TRAINER} BIREME_WARM_MODULES",
        None,
    ),
    (
        "torch-elastic",
        {"recovery": {"snapshots": {"enabled": True, "flush": {"folder": "/ckpt"}}}},
        "Job",
        f"{TRAINER} BIREME_SNAPSHOT_FLUSH value",
        "/ckpt",
    ),
    (
        "torch-elastic",
        {"rendezvous": {"join": "checkpoint"}},
        "Job",
        f"{TRAINER} BIREME_JOIN value",
        "checkpoint",
    ),
    (
        "torch-elastic",
        {"launch": {"git": {"url": "https://example.com/a"}}},
        "Job",
        f"{POD} initContainers git name",
        "git",
    ),
    ("torch-elastic", NEAR, "Job", f"{POD} affinity podAffinity {PREFERRED} 0", WISH),
    ("torch-elastic", {"env": {"LEVEL": ""}}, "Job", f"{TRAINER} LEVEL value", ""),
    (
        "torch-elastic",
        {"pod": {"ports": PORTS}},
        "Job",
        f"{POD} containers trainer ports tcp protocol",
        "TCP",
    ),
    (
        "torch-elastic",
        {"launch": {"command": ["run"], "files": {"a.bin": {"base64": "AAEC"}}}},
        "ConfigMap release-script-b0a07e3d",
        "binaryData 0.a.bin",
        "AAEC",
    ),
    (
        "torch-elastic",
        {"instance": {"type": "x9.2xlarge", "vcpu": 8, "threadsPerCore": 1, "allocatableMemoryMiB": 30000}},
        "Job",
        f"{POD} containers trainer resources requests cpu",
        "2000m",
    ),
]


def field(item: Manifest, keys: str) -> Any:
    """What stands under the keys, None for nothing."""
    found: Any = item.thaw()
    for key in keys.split():
        if isinstance(found, list):
            found = found[int(key)] if key.isdigit() else {each["name"]: each for each in found}.get(key)
        else:
            found = found.get(key)
    return found


@pytest.mark.parametrize(("chart", "values", "item", "keys", "expected"), ROWS)
def test_a_key_changes_its_field(
    render: RenderChart, chart: str, values: dict[str, Any], item: str, keys: str, expected: Any
) -> None:
    assert field(the(render(chart, values=values), *item.split()), keys) == expected


def test_an_mpijob_is_the_same_where_the_cluster_says_that_it_has_the_kind(
    render: RenderChart,
) -> None:
    values = MPI | {"mpi": {"orchestrator": "MPIJob"}}
    known = render("mpi-training", values=values, api_versions=("kubeflow.org/v2beta1/MPIJob",))
    assert the(known, "MPIJob") == the(render("mpi-training", values=values), "MPIJob")


def branches(trace: Path) -> Iterator[tuple[str, str, bool]]:
    """Of each branch: its chart, what has the names that unreached.yaml may give it, and whether it ran."""
    for record in trace.read_text().split("end_of_record\n")[:-1]:
        file = record.partition("\n")[0].removeprefix("SF:")
        lines = (ROOT / file).read_text().splitlines()
        for line, runs in re.findall(r"^BRDA:(\d+),\d+,\d+,(.*)$", record, re.MULTILINE):
            above = "\n".join(lines[: int(line)])
            [of] = re.findall(r'\{\{-? define "(.*?)"', above)[-1:] or [""]
            yield Path(file).parts[1], f"{of}\n{lines[int(line) - 1]}", runs != "-"


@pytest.mark.whole
def test_19_of_20_branches_of_each_chart_run_beside_those_that_are_named(tmp_path: Path) -> None:
    trace = tmp_path / "charts.info"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    command += ["-m", "not whole", "--chart-cov", "--chart-cov-report", str(trace), "tests/render"]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    named = [
        each
        for group in yaml.safe_load((ROOT / "tests/render/unreached.yaml").read_text()).values()
        for each in group
    ]
    ran: Counter[tuple[str, bool]] = Counter()
    used, left = set(), []
    for chart, text, is_run in branches(trace):
        names = [] if is_run else [each for each in named if each in text]
        used.update(names)
        ran[chart, is_run] += not names
        left += [] if is_run or names else [f"{chart}: {text.splitlines()[1].strip()}"]
    print(*left, sep="\n")
    assert [each for each in named if each not in used] == []
    parts = {chart: ran[chart, True] / (ran[chart, True] + ran[chart, False]) for chart, _ in ran}
    assert len(parts) == len([*ROOT.glob("charts/*/Chart.yaml")])
    assert {chart: part for chart, part in parts.items() if part < 0.95} == {}, left
