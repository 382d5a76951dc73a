"""Jobs with everything that values can say about a pod: the API server takes it, and the pods have it."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.testing.pytest_plugin import ReleaseFactory
from tests.support.tiers import core

IMAGE = {"repository": "team/train", "tag": "1"}
TOKEN = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token", "optional": True}}}
POD_IN_PODS: dict[str, Any] = {
    "terminationGracePeriodSeconds": 30,
    "hostNetwork": True,
    "hostIPC": True,
    "hostPID": True,
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["10.100.0.10"], "options": [{"name": "ndots", "value": "2"}]},
    "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["licences.example.com"]}],
}
PLACED: dict[str, Any] = {
    "priorityClassName": "system-node-critical",
    "topologySpreadConstraints": [
        {
            "maxSkew": 9,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"team": "vision"}},
        }
    ],
}
AFFINITY: dict[str, Any] = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 1,
                "preference": {"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]},
            }
        ]
    }
}
POD_IN_TRAINER: dict[str, Any] = {
    "lifecycle": {"preStop": {"exec": {"command": ["sync"]}}},
    "envFrom": [{"prefix": "DB_", "configMapRef": {"name": "db", "optional": True}}],
    "ports": [{"name": "debug", "containerPort": 15678, "hostPort": 15678, "protocol": "TCP"}],
}
VALUES: dict[str, Any] = {
    "affinity": AFFINITY,
    "placement": PLACED,
    "workers": 1,
    "image": IMAGE,
    "launch": {"workingDir": "/workspace", "setup": "pip install -r requirements.txt"},
    "pod": {
        **POD_IN_PODS,
        **POD_IN_TRAINER,
        "extraEnv": [TOKEN],
        "extraVolumes": [
            {"name": "nvme", "hostPath": {"path": "/mnt/k8s-disks", "type": "DirectoryOrCreate"}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        ],
        "extraVolumeMounts": [
            {"name": "nvme", "mountPath": "/local", "mountPropagation": "HostToContainer"},
            {"name": "token", "mountPath": "/var/run/token", "readOnly": True},
        ],
        "initContainers": [{"name": "prepare", "command": ["true"]}],
        "sidecars": [{"name": "proxy", "image": "docker.io/library/nginx:1.29"}],
    },
    "tolerations": [{"key": "team", "operator": "Exists"}],
    "podLabels": {"team": "vision"},
    "podAnnotations": {"example.com/ticket": "17"},
    "job": {"labels": {"team": "vision"}, "annotations": {"example.com/ticket": "17"}},
    "podSecurityContext": {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0},
    "securityContext": {
        "privileged": True,
        "allowPrivilegeEscalation": True,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK", "SETUID", "SETGID", "SYS_CHROOT"]},
    },
}


def has(wanted: Any, found: Any) -> bool:
    """Whether ``found`` has all that ``wanted`` has; the API server adds defaults."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(has(each, found.get(key)) for key, each in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and all(any(has(each, one) for one in found) for each in wanted)
    return bool(wanted == found)


def trainer_of(pod: dict[str, Any]) -> Any:
    (trainer,) = [each for each in pod["spec"]["containers"] if each["name"] == "trainer"]
    return trainer


@pytest.mark.parametrize("chart", core("torch-elastic", of=["torch-elastic", "mpi-training"]))
def test_the_pods_of_a_job_have_all_that_the_values_say(release: ReleaseFactory, chart: str) -> None:
    installed = release(chart, instance="p4d.24xlarge", values=VALUES)
    (pod,) = [
        each
        for each in installed.objects("pods")
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == "worker"
    ]
    for key, value in (PLACED | POD_IN_PODS | {"affinity": AFFINITY}).items():
        assert has(value, pod["spec"][key]), key
    trainer = trainer_of(pod)
    for key, value in (POD_IN_TRAINER | {"workingDir": "/workspace"}).items():
        assert has(value, trainer[key]), key
    assert has([TOKEN], trainer["env"])
    assert has(VALUES["securityContext"], trainer["securityContext"])
    assert has(VALUES["pod"]["extraVolumeMounts"], trainer["volumeMounts"])
    assert has(VALUES["pod"]["extraVolumes"], pod["spec"]["volumes"])
    assert has(VALUES["tolerations"], pod["spec"]["tolerations"])
    assert has({"labels": VALUES["podLabels"], "annotations": VALUES["podAnnotations"]}, pod["metadata"])
    names = {each["name"]: each.get("restartPolicy") for each in pod["spec"]["initContainers"]}
    assert has({"proxy": "Always"}, names)
    assert "prepare" in names
    (job,) = installed.objects("jobs")
    assert has(VALUES["job"], job["metadata"])
