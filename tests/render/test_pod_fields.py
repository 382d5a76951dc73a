"""What a job says about its pods beyond training: setup, further containers, devices, variables."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents import ROOT
from tests.support.rendered import RenderChart, container_of, job_of, pod_of, the, trainer_of

JOBS = ["torch-elastic", "mpi-training", "paddle"]


GPUS = {
    "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8}}],
    "constraints": [{"requests": ["gpu"], "matchAttribute": "example.com/switch"}],
}


@pytest.mark.parametrize("chart", JOBS)
def test_workers_claim_devices_by_templates_of_the_chart(render: RenderChart, chart: str) -> None:
    found = render(chart, values={"pod": {"resourceClaimTemplates": {"gpu": GPUS}}})
    template = the(found, "ResourceClaimTemplate").thaw()
    assert template["spec"] == {"spec": {"devices": GPUS}}
    pod = pod_of(found)
    assert pod["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": template["metadata"]["name"]}
    ]
    assert container_of(pod, "trainer")["resources"]["claims"] == [{"name": "gpu"}]
    jobs = [each.thaw() for each in found.manifests if each.kind == "Job" and not each.is_hook]
    claiming = [job for job in jobs if "resourceClaims" in job["spec"]["template"]["spec"]]
    assert len(claiming) == 1, "pservers claim no devices"


def test_other_devices_are_another_template_because_one_cannot_change(render: RenderChart) -> None:
    four = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}]}
    values = [{"pod": {"resourceClaimTemplates": {"gpu": each}}} for each in (GPUS, four)]
    made = [the(render("torch-elastic", values=each), "ResourceClaimTemplate").name for each in values]
    assert made[0] != made[1]


def test_the_values_of_the_document_claim_gpus_and_the_channels_of_an_nvlink_domain(
    render: RenderChart,
) -> None:
    fences = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/dra.md").read_text(), re.MULTILINE | re.DOTALL)
    gpus, channels = (
        render("torch-elastic", release="train", values={**yaml.safe_load(each), "script": "print(1)"})
        for each in fences
    )
    limits = trainer_of(gpus)["resources"]["limits"]
    assert not {"nvidia.com/gpu", "vpc.amazonaws.com/efa"} & limits.keys()
    (request,) = the(gpus, "ResourceClaimTemplate").thaw()["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.nvidia.com", "count": 8}
    domain, pod = the(channels, "ComputeDomain", "train").thaw(), pod_of(channels)
    made = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    assert pod["resourceClaims"] == [{"name": "imex", "resourceClaimTemplateName": made}]
    assert container_of(pod, "trainer")["resources"]["claims"] == [{"name": "imex"}]
    (near,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = job_of(channels)["spec"]["template"]["metadata"]["labels"]
    assert near["labelSelector"]["matchLabels"].items() <= labels.items()


def as_the_kubelet_expands(variables: list[dict[str, Any]]) -> dict[str, str]:
    """The values of ``variables``: $(NAME) is what a variable above has, and stays where there is none."""
    known: dict[str, str] = {}
    for each in variables:
        text = each.get("value", f"from {each['name']}")
        known[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: known.get(name[1], name[0]), text)
    return known


@pytest.mark.parametrize("chart", JOBS)
def test_variables_may_refer_to_each_other_in_any_order(render: RenderChart, chart: str) -> None:
    values = {
        "env": {
            "A_LOG": "$(FOLDER)/$(POD)/log",
            "FOLDER": "/data/$(USERS_NAME)",
            "USERS_NAME": "me",
            "PATH": "$(PATH):/opt/bin",
            "ONE": "$(TWO)",
            "TWO": "$(ONE)",
        },
        "pod": {
            "extraEnv": [
                {"name": "LOUD", "value": "$(POD)!"},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ]
        },
    }
    variables = trainer_of(render(chart, values=values))["env"]
    found = as_the_kubelet_expands(variables)
    assert found["A_LOG"] == "/data/me/from POD/log"
    assert (found["LOUD"], found["PATH"]) == ("from POD!", "$(PATH):/opt/bin")
    assert {"ONE", "TWO"} <= found.keys()
    assert len(found) == len(variables)


def test_containers_may_mount_what_the_chart_or_the_operator_adds(render: RenderChart) -> None:
    def mounting(*names: str) -> list[dict[str, Any]]:
        return [{"name": "wait", "volumeMounts": [{"name": each, "mountPath": f"/{each}"} for each in names]}]

    values = {
        "mpi": {
            "orchestrator": "MPIJob",
            "launcher": {"initContainers": mounting("claim-0", "mpi-job-config", "ssh-auth")},
        },
        "claims": [{"claimName": "fsx", "mountPath": "/fsx"}],
        "pod": {"initContainers": mounting("claim-0", "shm")},
    }
    job = the(render("mpi-training", values=values), "MPIJob").thaw()
    for role, mounts in ("Launcher", 3), ("Worker", 2):
        first = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["initContainers"][0]
        assert len(first["volumeMounts"]) == mounts


@pytest.mark.parametrize("chart", JOBS)
def test_containers_run_before_and_beside_training(render: RenderChart, chart: str) -> None:
    values: dict[str, Any] = {
        "claims": [{"claimName": "fsx", "mountPath": "/fsx"}],
        "data": {"verify": {"paths": ["/fsx/data"]}},
        "pod": {
            "initContainers": [{"name": "prepare", "command": ["true"]}],
            "sidecars": [
                {
                    "name": "proxy",
                    "image": "docker.io/library/nginx:1.29",
                    "env": [{"name": "A", "value": "b"}],
                }
            ],
        },
    }
    pod = pod_of(render(chart, values=values))
    names = [each["name"] for each in pod["initContainers"] if each["name"] != "pserver"]
    assert names == ["prepare", "verify", "proxy"]
    prepare, proxy = container_of(pod, "prepare"), container_of(pod, "proxy")
    assert prepare["image"] == container_of(pod, "trainer")["image"]
    assert prepare["securityContext"] == container_of(pod, "trainer")["securityContext"]
    assert "restartPolicy" not in prepare
    assert (proxy["restartPolicy"], proxy["image"]) == ("Always", "docker.io/library/nginx:1.29")


def command_of(render: RenderChart, setup: str, program: list[str]) -> list[str]:
    """The command of a worker as the kubelet starts it, with ``program`` as its entry point."""
    trainer = trainer_of(render("torch-elastic", values={"launch": {"setup": setup, "command": program}}))
    return [word.replace("$$", "$") for word in trainer["command"]]


PRINT = ["python3", "-c", "import os, sys; print(os.environ.get('FLAVOUR'), *sys.argv[1:])", "two words", "*"]


def test_what_setup_exports_reaches_the_program_and_its_words_stay(
    render: RenderChart, tmp_path: Path
) -> None:
    setup = 'export FLAVOUR="$(echo sweet)"\nmkdir folder\necho $$ > folder/pid # a comment'
    done = subprocess.run(command_of(render, setup, PRINT), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sweet two words *\n", "")
    assert (tmp_path / "folder/pid").read_text().strip().isdigit()


def test_setup_is_bash_where_the_image_has_it_and_sh_elsewhere(render: RenderChart, tmp_path: Path) -> None:
    (tmp_path / "set_env.sh").write_text("flavours=(sour sweet)\nexport FLAVOUR=${flavours[1]}\n")
    bash = command_of(render, "source set_env.sh", PRINT)
    done = subprocess.run(bash, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sweet two words *\n", "")
    (tmp_path / "sh").symlink_to(shutil.which("sh") or "")
    sh = command_of(render, "export FLAVOUR=sour", [sys.executable, *PRINT[1:]])
    done = subprocess.run(sh, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sour two words *\n", "")


def test_a_setup_that_fails_is_the_end_of_the_container(render: RenderChart) -> None:
    done = subprocess.run(command_of(render, "echo first; exit 3", PRINT), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "first\n")
    failed = command_of(render, "false\necho never", PRINT)
    assert subprocess.run(failed, capture_output=True, text=True).stdout == ""


def test_the_program_takes_the_place_of_the_shell_and_its_signals(
    render: RenderChart, tmp_path: Path
) -> None:
    program = ["python3", "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    with subprocess.Popen(command_of(render, "true", program), stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert int(started.stdout.readline()) == started.pid
        started.terminate()
        assert started.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("chart", "sets"),
    [
        ("etcd", []),
        ("mpijob", []),
        ("autoscaler", ["image.registry=registry.example"]),
        ("dataset", ["sources[0].url=s3://bucket/data", "claim.name=data", "claim.path=photos"]),
        ("torch-elastic", ["data.dispatcher.enabled=true", "etcd.persistence.enabled=true"]),
        ("mpi-training", ["image.repository=bireme/mpi", "image.registry=", "image.tag=0.1.0"]),
        ("paddle", ["paddle.pservers.count=2", "data.prep.enabled=true", "data.prep.args={prepare.py}"]),
    ],
)
def test_pods_that_are_for_no_instance_type_run_on_linux(
    render: RenderChart, chart: str, sets: list[str]
) -> None:
    pods = [
        each["spec"]["template"]["spec"]
        for each in render(
            chart, instance="p4d.24xlarge" if chart == "torch-elastic" else None, sets=sets
        ).manifests
        if each.kind in ("Deployment", "StatefulSet", "Job") and not each.is_hook
    ]
    known = {"kubernetes.io/os", "node.kubernetes.io/instance-type"}
    assert pods
    assert [pod for pod in pods if not known & set(pod.get("nodeSelector", {}))] == []
