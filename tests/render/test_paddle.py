"""The objects of a paddle release."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.helm import Render
from bireme.tools import Toolbox
from tests.render.cases import ROOT
from tests.support.rendered import RenderChart, container_of, environment_of, the

TUTORIAL = {"workload": "paddle-tutorial", "release": "tutorial", "namespace": "team"}


def names(rendered: Render, kind: str) -> set[str]:
    return {each.name for each in rendered.manifests if each.kind == kind and not each.is_hook}


def container(rendered: Render, job: str, name: str) -> Mapping[str, Any]:
    return container_of(the(rendered, "Job", job)["spec"]["template"]["spec"], name)


def environment(rendered: Render, job: str, name: str) -> dict[str, str]:
    own = environment_of(container(rendered, job, name))
    settings = next(each for each in rendered.manifests if each.name.endswith("-settings"))
    return {**settings["data"], **own}


def test_each_pod_of_the_tutorial_is_a_pserver_and_a_trainer(render: RenderChart) -> None:
    rendered = render("paddle", **TUTORIAL)
    job = the(rendered, "Job", "tutorial-r1")
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)
    ports = [each["containerPort"] for each in container(rendered, "tutorial-r1", "pserver")["ports"]]
    assert ports == [7164, 7165, 7166, 7167, 7163]
    assert names(rendered, "Job") == {"tutorial-r1", "tutorial-data-r1"}
    variables = environment(rendered, "tutorial-r1", "trainer")
    hosts = [f"tutorial-r1-{index}.tutorial.team.svc" for index in range(3)]
    assert variables["PADDLE_PSERVERS_IP_PORT_LIST"] == ",".join(f"{host}:7164" for host in hosts)
    assert variables["PADDLE_INIT_PSERVERS"] == ",".join(hosts)
    classic = {
        "JOB_NAME": "paddle-cluster-job",
        "JOB_PATH": "/home/jobpath",
        "JOB_NAMESPACE": "team",
        "TRAIN_CONFIG_DIR": "quick_start",
        "CONF_PADDLE_NIC": "eth0",
        "CONF_PADDLE_PORT": "7164",
        "CONF_PADDLE_PORTS_NUM": "2",
        "CONF_PADDLE_PORTS_NUM_SPARSE": "2",
        "CONF_PADDLE_GRADIENT_NUM": "3",
        "TRAINER_COUNT": "3",
    }
    assert {name: variables[name] for name in classic} == classic
    assert variables["TRAINING_ROLE"] == "TRAINER"
    assert environment(rendered, "tutorial-r1", "pserver")["TRAINING_ROLE"] == "PSERVER"


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"workload": "paddle-tutorial"}, ("2", "2", "3", "False")),
        ({"workload": "paddle-word2vec"}, ("1", "1", "1", "False")),
        (
            {"workload": "paddle-word2vec", "instance": "p3.8xlarge", "sets": ["paddle.useGpu=true"]},
            ("1", "1", "1", "True"),
        ),
    ],
)
def test_the_parameters_of_the_guide_have_their_names(
    render: RenderChart, given: dict[str, Any], values: tuple[str, ...]
) -> None:
    rendered = render("paddle", release="job", namespace="team", **given)
    variables = environment(rendered, "job-r1", "trainer")
    ports, sparse, threads, gpu = values
    expected = {
        "PORT": "7164",
        "PORTS_NUM": ports,
        "PORTS_NUM_FOR_SPARSE": sparse,
        "NUM_GRADIENT_SERVERS": "3",
        "TRAINER_COUNT": threads,
        "USE_GPU": gpu,
    }
    assert {name: variables[f"PADDLE_INIT_{name}"] for name in expected} == expected
    addresses = [each.rpartition(":")[0] for each in variables["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")]
    assert variables["PADDLE_INIT_PSERVERS"].split(",") == addresses
    (trainer,) = [
        each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container(rendered, "job-r1", "trainer")["env"]
        if each["name"] == "PADDLE_INIT_TRAINER_ID"
    ]
    assert trainer == "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def test_the_tutorials_data_job_writes_three_shards_to_the_claim(render: RenderChart) -> None:
    rendered = render("paddle", **TUTORIAL)
    variables = environment(rendered, "tutorial-data-r1", "data")
    assert (variables["SPLIT_COUNT"], variables["OUT_DIR"]) == ("3", "/home/jobpath/paddle-cluster-job/data")
    (volume,) = the(rendered, "Job", "tutorial-data-r1")["spec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == "efsvol"
    waited_for = environment(rendered, "tutorial-r1", "trainer")["BIREME_PADDLE_WAIT_FOR"]
    assert waited_for == variables["OUT_DIR"] + "/train.list"


def test_a_collocated_pserver_is_a_sidecar_that_restarts_by_itself(render: RenderChart) -> None:
    pod = the(render("paddle", **TUTORIAL), "Job", "tutorial-r1")["spec"]["template"]["spec"]
    (pserver,) = pod["initContainers"]
    assert (pserver["name"], pserver["restartPolicy"]) == ("pserver", "Always")
    assert [each["name"] for each in pod["containers"]] == ["trainer"]


def test_an_image_may_start_itself_and_a_script_may_be_a_value(render: RenderChart) -> None:
    itself = render("paddle", **TUTORIAL, sets=["launch.command={bash,-c,/opt/start.sh}"])
    for role in ("trainer", "pserver"):
        assert list(container(itself, "tutorial-r1", role)["command"]) == [
            "bash",
            "-c",
            "/opt/start.sh",
        ]
    scripted = container(
        render("paddle", **TUTORIAL, values={"script": "print(1)"}), "tutorial-r1", "trainer"
    )
    assert scripted["args"][0] == "/bireme/script/train.py"
    assert "/bireme/script" in [each["mountPath"] for each in scripted["volumeMounts"]]


def test_host_ports_are_used_only_on_request(render: RenderChart) -> None:
    def taken(sets: list[str]) -> list[int]:
        ports = container(render("paddle", **TUTORIAL, sets=sets), "tutorial-r1", "pserver")["ports"]
        return [each["hostPort"] for each in ports if "hostPort" in each]

    assert taken([]) == []
    assert taken(["paddle.pservers.hostPorts=true"]) == [7164, 7165, 7166, 7167]


def test_resources_of_a_collocated_pserver_are_subtracted_from_the_trainer(render: RenderChart) -> None:
    def asked(topology: str) -> Mapping[str, str]:
        sets = [f"paddle.topology={topology}", "paddle.pservers.resources.requests.cpu=1500m"]
        rendered = render("paddle", instance="p3.8xlarge", sets=sets, release="job")
        requests: Mapping[str, str] = container(rendered, "job-r1", "trainer")["resources"]["requests"]
        return requests

    separate, collocated = asked("separate"), asked("collocated")
    assert int(separate["cpu"][:-1]) - int(collocated["cpu"][:-1]) == 1500
    assert int(separate["memory"][:-2]) - int(collocated["memory"][:-2]) == 2048


def test_trainers_have_accelerators_if_they_use_them(render: RenderChart) -> None:
    def limits(sets: list[str]) -> Mapping[str, str]:
        rendered = render("paddle", instance="p3.8xlarge", sets=sets, release="job")
        found: Mapping[str, str] = container(rendered, "job-r1", "trainer")["resources"]["limits"]
        return found

    assert "nvidia.com/gpu" not in limits([])
    assert limits(["paddle.useGpu=true"])["nvidia.com/gpu"] == "4"


def test_a_collective_job_has_no_pservers(render: RenderChart) -> None:
    rendered = render("paddle", sets=["paddle.mode=collective"], release="job", namespace="team")
    assert names(rendered, "Job") == {"job-r1"}
    variables = environment(rendered, "job-r1", "trainer")
    assert variables["PADDLE_DISTRI_BACKEND"] == "gloo"
    assert variables["BIREME_PADDLE_COORDINATOR"] == "job-r1-0.job.team.svc:7163"


def test_the_jobs_claim_is_kept_on_request(render: RenderChart) -> None:
    kept = the(render("paddle", release="job"), "PersistentVolumeClaim", "job-job")
    assert kept.annotations["helm.sh/resource-policy"] == "keep"
    sets = ["data.jobClaim.keep=false"]
    gone = the(render("paddle", sets=sets, release="job"), "PersistentVolumeClaim", "job-job")
    assert "helm.sh/resource-policy" not in gone.annotations
    assert not names(render("paddle", sets=["data.jobClaim.existingClaim=efsvol"]), "PersistentVolumeClaim")


@pytest.mark.parametrize(
    ("sets", "count", "jobs"),
    [
        (["workers=3", "paddle.pservers.count=2"], 5, {"job-r1", "job-ps-r1"}),
        (["workers=3", "paddle.topology=collocated"], 3, {"job-r1"}),
        (["workers=3", "paddle.mode=collective"], 3, {"job-r1"}),
        (
            ["workers=3", "paddle.dispatch=dynamic", "etcd.enabled=true", "elastic.autoscale.enabled=true"],
            3,
            {"job-r1", "job-ps-r1"},
        ),
    ],
)
def test_pservers_and_trainers_are_one_gang(
    render: RenderChart, sets: list[str], count: int, jobs: set[str]
) -> None:
    """Each role alone would hold nodes while it waits for the other. With autoscale one trainer is enough."""
    rendered = render("paddle", sets=[*sets, "placement.gang=volcano", "placement.queue=q"], release="job")
    (group,) = [each for each in rendered.manifests if each.kind == "PodGroup"]
    assert group["spec"] == {"minMember": count, "queue": "q"}
    assert names(rendered, "Job") == jobs
    for job in jobs:
        template = the(rendered, "Job", job)["spec"]["template"]
        assert template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group.name
        assert template["spec"]["schedulerName"] == "volcano"


def test_the_command_in_the_guide_for_script_authors_renders(render: RenderChart) -> None:
    page = (ROOT / "docs/paddle.md").read_text()
    (command,) = re.findall(r"^helm install (\S+) charts/paddle -f values/workloads/(\S+)\.yaml$", page, re.M)
    rendered = render("paddle", release=command[0], workload=command[1])
    assert names(rendered, "Job") == {"w2v-r1", "w2v-ps-r1", "w2v-data-r1"}


def test_the_commands_that_install_a_workspace_render(toolbox: Toolbox, tmp_path: Path) -> None:
    page = (ROOT / "docs/paddle.md").read_text()
    (block,) = re.findall(r"^```sh\n(base64 .*?)^```", page, re.M | re.S)
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    for name, content in (
        ("train.py", b"import my_lib"),
        ("my_lib.py", b"x = 1"),
        ("word_dict.pickle", b"\x80\x04"),
    ):
        (tmp_path / name).write_bytes(content)
    path = f"{toolbox.path('helm').parent}:{os.environ['PATH']}"
    commands = block.replace("helm install", "helm template")
    shown = subprocess.run(
        ["bash", "-euc", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        check=True,
    )
    (kept,) = [
        each
        for each in yaml.safe_load_all(shown.stdout)
        if each and each["kind"] == "ConfigMap" and "-script-" in each["metadata"]["name"]
    ]
    assert kept["data"] == {"train.py": "import my_lib", "0.my_lib.py": "x = 1"}
    assert base64.b64decode(kept["binaryData"]["1.word_dict.pickle"]) == b"\x80\x04"
