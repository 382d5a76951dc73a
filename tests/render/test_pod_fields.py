"""What a job says about its pods beyond training: setup, further containers, devices, network, labels."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bireme.helm import Render, Renderer, RenderError
from bireme.pytest_plugin import Request
from tests.support.rendered import container_of, the

JOBS = ["torch-elastic", "mpi-training", "paddle"]
IMAGE = {"mpi-training": {"image": {"repository": "team/train", "tag": "1"}}}


def rendered(renderer: Renderer, request_for: Request, chart: str, values: dict[str, Any]) -> Render:
    return renderer.render(request_for(chart, values=IMAGE.get(chart, {}) | values))


def job_of(chart: str, found: Render) -> Any:
    return the(found, "Job", "release-r1" if chart == "paddle" else "").thaw()


@pytest.mark.parametrize("chart", JOBS)
def test_the_fields_reach_the_pod_and_the_job(renderer: Renderer, request_for: Request, chart: str) -> None:
    values = {
        "workingDir": "/workspace",
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "2"]}}},
        "hostNetwork": True,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        "resources": {"claims": [{"name": "gpu"}]},
        "jobLabels": {"team": "vision"},
        "jobAnnotations": {"example.com/ticket": "17"},
    }
    job = job_of(chart, rendered(renderer, request_for, chart, values))
    pod = job["spec"]["template"]["spec"]
    trainer = container_of(pod, "trainer")
    assert trainer["workingDir"] == "/workspace"
    assert trainer["lifecycle"] == values["lifecycle"]
    assert trainer["resources"]["claims"] == [{"name": "gpu"}]
    assert pod["resourceClaims"] == values["resourceClaims"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert job["metadata"]["labels"]["team"] == "vision"
    assert job["metadata"]["annotations"]["example.com/ticket"] == "17"


@pytest.mark.parametrize("chart", JOBS)
def test_containers_run_before_and_beside_training(
    renderer: Renderer, request_for: Request, chart: str
) -> None:
    values: dict[str, Any] = {
        "claims": [{"claimName": "fsx", "mountPath": "/fsx"}],
        "verify": {"paths": ["/fsx/data"]},
        "initContainers": [{"name": "prepare", "command": ["true"]}],
        "sidecars": [
            {"name": "proxy", "image": "docker.io/library/nginx:1.29", "env": [{"name": "A", "value": "b"}]}
        ],
    }
    pod = job_of(chart, rendered(renderer, request_for, chart, values))["spec"]["template"]["spec"]
    names = [each["name"] for each in pod["initContainers"] if each["name"] != "pserver"]
    assert names == ["prepare", "verify", "proxy"]
    prepare, proxy = container_of(pod, "prepare"), container_of(pod, "proxy")
    assert prepare["image"] == container_of(pod, "trainer")["image"]
    assert prepare["securityContext"] == container_of(pod, "trainer")["securityContext"]
    assert "restartPolicy" not in prepare
    assert (proxy["restartPolicy"], proxy["image"]) == ("Always", "docker.io/library/nginx:1.29")


def test_a_claim_by_template_and_a_projected_token_are_volumes(
    renderer: Renderer, request_for: Request
) -> None:
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "200Gi"}}}}
    token = {"serviceAccountToken": {"audience": "sts.amazonaws.com", "path": "token"}}
    volumes = [
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}},
        {"name": "token", "projected": {"sources": [token]}},
    ]
    job = job_of("torch-elastic", rendered(renderer, request_for, "torch-elastic", {"extraVolumes": volumes}))
    assert [each for each in job["spec"]["template"]["spec"]["volumes"] if each in volumes] == volumes


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"podLabels": {"app.kubernetes.io/name": "x"}},
            "podLabels: app.kubernetes.io/name is the chart's own",
        ),
        (
            {"jobLabels": {"kueue.x-k8s.io/queue-name": "x"}},
            "jobLabels: kueue.x-k8s.io/queue-name is the chart's own; leave it out and set queueName",
        ),
        (
            {"jobAnnotations": {"bireme/immutable": "x"}},
            "jobAnnotations: bireme/immutable is the chart's",
        ),
        ({"sidecars": [{"name": "trainer"}]}, "sidecars: there is a container trainer already"),
        (
            {"initContainers": [{"name": "a"}], "sidecars": [{"name": "a"}]},
            "sidecars: there is a container a already",
        ),
        ({"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims: there is no gpu in resourceClaims"),
        ({"initContainers": [{"name": "a", "comand": ["true"]}]}, "comand"),
        ({"resourceClaims": [{"name": "gpu"}]}, "resourceClaims"),
    ],
)
@pytest.mark.parametrize("chart", JOBS)
def test_names_of_the_chart_and_misspelled_fields_are_refused(
    renderer: Renderer, request_for: Request, chart: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RenderError) as refused:
        rendered(renderer, request_for, chart, values)
    assert sentence in str(refused.value)


def command_of(renderer: Renderer, request_for: Request, setup: str, program: list[str]) -> list[str]:
    """The command of a worker as the kubelet starts it, with ``program`` as its entry point."""
    found = rendered(renderer, request_for, "torch-elastic", {"setup": setup, "command": program})
    trainer = container_of(job_of("torch-elastic", found)["spec"]["template"]["spec"], "trainer")
    return [word.replace("$$", "$") for word in trainer["command"]]


PRINT = ["python3", "-c", "import os, sys; print(os.environ.get('FLAVOUR'), *sys.argv[1:])", "two words", "*"]


def test_what_setup_exports_reaches_the_program_and_its_words_stay(
    renderer: Renderer, request_for: Request, tmp_path: Path
) -> None:
    setup = 'export FLAVOUR="$(echo sweet)"\nmkdir folder\necho $$ > folder/pid # a comment'
    done = subprocess.run(
        command_of(renderer, request_for, setup, PRINT), cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "sweet two words *\n", "")
    assert (tmp_path / "folder/pid").read_text().strip().isdigit()


def test_a_setup_that_fails_is_the_end_of_the_container(renderer: Renderer, request_for: Request) -> None:
    done = subprocess.run(
        command_of(renderer, request_for, "echo first; exit 3", PRINT), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "first\n")
    failed = command_of(renderer, request_for, "false\necho never", PRINT)
    assert subprocess.run(failed, capture_output=True, text=True).stdout == ""


def test_the_program_takes_the_place_of_the_shell_and_its_signals(
    renderer: Renderer, request_for: Request, tmp_path: Path
) -> None:
    program = ["python3", "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    with subprocess.Popen(
        command_of(renderer, request_for, "true", program), stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert int(started.stdout.readline()) == started.pid
        started.terminate()
        assert started.wait(60) == -signal.SIGTERM


def test_without_setup_nothing_is_put_before_the_entry_point(
    renderer: Renderer, request_for: Request
) -> None:
    found = rendered(renderer, request_for, "torch-elastic", {})
    trainer = container_of(job_of("torch-elastic", found)["spec"]["template"]["spec"], "trainer")
    assert trainer["command"] == ["python3", "-m", "bireme_runtime.elastic.supervisor", "--"]


@pytest.mark.parametrize("chart", JOBS)
def test_argument_groups_of_several_files_add_to_each_other(
    renderer: Renderer, request_for: Request, tmp_path: Path, chart: str
) -> None:
    files = []
    for name, words in (("data", ["--data", "/fsx"]), ("amp", ["--amp"])):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(f"argGroups: {{{name}: {words}}}\n")
    values = IMAGE.get(chart, {}) | {"args": ["train.py"]}
    found = renderer.render(request_for(chart, files=files, values=values))
    trainer = container_of(job_of(chart, found)["spec"]["template"]["spec"], "trainer")
    assert trainer["args"] == ["train.py", "--amp", "--data", "/fsx"]


def test_running_as_root_leaves_the_number_of_workers_alone(renderer: Renderer, request_for: Request) -> None:
    request = request_for("mpi-training", files=["values/mpi-as-root.yaml"], values=IMAGE["mpi-training"])
    assert job_of("mpi-training", renderer.render(request))["spec"]["completions"] == 1
