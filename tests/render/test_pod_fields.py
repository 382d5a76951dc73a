"""What a job says about its pods beyond training: setup, further containers, devices, network, labels."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bireme.helm import Render, Renderer
from bireme.testing.charts import RequestFor
from tests.support.rendered import RenderChart, container_of, environment_of, the

JOBS = ["torch-elastic", "mpi-training", "paddle"]
IMAGE = {"mpi-training": {"image": {"repository": "team/train", "tag": "1"}}}


def rendered(renderer: Renderer, request_for: RequestFor, chart: str, values: dict[str, Any]) -> Render:
    return renderer.render(request_for(chart, values=IMAGE.get(chart, {}) | values))


def job_of(chart: str, found: Render) -> Any:
    return the(found, "Job", "release-r1" if chart == "paddle" else "").thaw()


@pytest.mark.parametrize("chart", JOBS)
def test_the_fields_reach_the_pod_and_the_job(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
    values: dict[str, Any] = {
        "launch": {"workingDir": "/workspace"},
        "pod": {
            "lifecycle": {"preStop": {"exec": {"command": ["sleep", "2"]}}},
            "hostNetwork": True,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        },
        "resources": {"claims": [{"name": "gpu"}]},
        "job": {"labels": {"team": "vision"}, "annotations": {"example.com/ticket": "17"}},
    }
    job = job_of(chart, rendered(renderer, request_for, chart, values))
    pod = job["spec"]["template"]["spec"]
    trainer = container_of(pod, "trainer")
    assert trainer["workingDir"] == "/workspace"
    assert trainer["lifecycle"] == values["pod"]["lifecycle"]
    assert trainer["resources"]["claims"] == [{"name": "gpu"}]
    assert pod["resourceClaims"] == values["pod"]["resourceClaims"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert job["metadata"]["labels"]["team"] == "vision"
    assert job["metadata"]["annotations"]["example.com/ticket"] == "17"


FIELDS: dict[str, Any] = {
    "pod": {
        "hostIPC": True,
        "hostPID": True,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.100.0.10"], "options": [{"name": "ndots", "value": "2"}]},
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["licences.example.com"]}],
    },
}
ENVIRONMENT = [
    {"secretRef": {"name": "hf"}},
    {"prefix": "DB_", "configMapRef": {"name": "db", "optional": True}},
]
PORT = {"name": "debug", "containerPort": 5678}


@pytest.mark.parametrize("chart", JOBS)
def test_host_namespaces_and_dns_reach_all_pods_of_the_job(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
    found = rendered(renderer, request_for, chart, FIELDS)
    jobs = [each.thaw() for each in found.manifests if each.kind == "Job" and not each.is_hook]
    assert jobs
    for job in jobs:
        pod = job["spec"]["template"]["spec"]
        assert {key: pod[key] for key in FIELDS["pod"]} == FIELDS["pod"]


@pytest.mark.parametrize("chart", JOBS)
def test_the_training_container_has_ports_and_environment_of_others(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
    values = {"pod": {"envFrom": ENVIRONMENT, "ports": [PORT]}}
    plain = job_of(chart, rendered(renderer, request_for, chart, {}))["spec"]["template"]["spec"]
    pod = job_of(chart, rendered(renderer, request_for, chart, values))["spec"]["template"]["spec"]
    before, trainer = container_of(plain, "trainer"), container_of(pod, "trainer")
    # The last source wins, and that is the chart's.
    assert trainer["envFrom"] == [*ENVIRONMENT, *before.get("envFrom", [])]
    assert trainer["ports"] == [*before.get("ports", []), PORT]


def test_a_pserver_beside_its_trainer_has_not_the_trainers_ports(
    renderer: Renderer, request_for: RequestFor
) -> None:
    values = {"paddle": {"topology": "collocated"}, "pod": {"ports": [PORT], "envFrom": ENVIRONMENT}}
    found = rendered(renderer, request_for, "paddle", values)
    pod = job_of("paddle", found)["spec"]["template"]["spec"]
    assert PORT in container_of(pod, "trainer")["ports"]
    assert PORT not in container_of(pod, "pserver")["ports"]
    assert container_of(pod, "pserver")["envFrom"][:2] == ENVIRONMENT


def test_the_launcher_of_an_mpijob_has_a_place_and_variables_of_its_own(
    renderer: Renderer, request_for: RequestFor
) -> None:
    affinity: dict[str, Any] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    }
    values = {
        "env": {"LEVEL": "info"},
        "pod": {"envFrom": ENVIRONMENT, "ports": [PORT]},
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "mpi": {
            "orchestrator": "MPIJob",
            "launcher": {
                "nodeSelector": {"pool": "cpu"},
                "tolerations": [{"key": "pool", "operator": "Exists"}],
                "affinity": affinity,
                "env": {"LEVEL": "debug"},
            },
        },
    }
    job = the(rendered(renderer, request_for, "mpi-training", values), "MPIJob").thaw()
    roles = {role: spec["template"]["spec"] for role, spec in job["spec"]["mpiReplicaSpecs"].items()}
    launcher, worker = (container_of(roles[role], "trainer") for role in ("Launcher", "Worker"))
    assert roles["Launcher"]["nodeSelector"] == {"pool": "cpu", "kubernetes.io/os": "linux"}
    assert roles["Launcher"]["affinity"] == affinity
    assert [each["key"] for each in roles["Launcher"]["tolerations"]] == ["team", "pool"]
    assert "pool" not in {each["key"] for each in roles["Worker"]["tolerations"]}
    assert "affinity" not in roles["Worker"]
    assert (environment_of(launcher)["LEVEL"], environment_of(worker)["LEVEL"]) == ("debug", "info")
    assert launcher["envFrom"] == worker["envFrom"] == ENVIRONMENT
    assert PORT in worker["ports"]
    assert "ports" not in launcher


def test_the_launcher_of_an_mpijob_differs_from_its_workers_where_it_says_so(
    renderer: Renderer, request_for: RequestFor
) -> None:
    node_name = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    order: dict[str, Any] = {"name": "order", "emptyDir": {}}
    values = {
        "image": {"repository": "team/train", "digest": f"sha256:{'0' * 64}"},
        "pod": {
            "hostNetwork": True,
            "extraEnv": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}],
            "initContainers": [{"name": "drivers", "command": ["true"]}],
            "extraVolumes": [{"name": "gdr", "hostPath": {"path": "/dev/gdrdrv", "type": "CharDevice"}}],
            "extraVolumeMounts": [{"name": "gdr", "mountPath": "/dev/gdrdrv"}],
        },
        "securityContext": {"privileged": True, "allowPrivilegeEscalation": True},
        "podLabels": {"role": "worker", "team": "vision"},
        "podAnnotations": {"example.com/a": "1"},
        "mpi": {
            "orchestrator": "MPIJob",
            "launcher": {
                "image": {"repository": "team/launch", "tag": "2"},
                "hostNetwork": False,
                "securityContext": {"privileged": False, "allowPrivilegeEscalation": False},
                "podLabels": {"role": "launcher"},
                "podAnnotations": {"example.com/b": "2"},
                "extraEnv": [node_name],
                "initContainers": [{"name": "order", "command": ["sort-nodes"]}],
                "extraVolumes": [order],
                "extraVolumeMounts": [{"name": "order", "mountPath": "/node-ordering"}],
            },
        },
    }
    job = the(rendered(renderer, request_for, "mpi-training", values), "MPIJob").thaw()
    templates = {role: spec["template"] for role, spec in job["spec"]["mpiReplicaSpecs"].items()}
    pods = {role: template["spec"] for role, template in templates.items()}
    launcher, worker = (container_of(pods[role], "trainer") for role in ("Launcher", "Worker"))
    assert launcher["image"].endswith("team/launch:2")
    assert worker["image"].endswith(f"team/train@sha256:{'0' * 64}")
    assert [pods[role].get("hostNetwork") for role in ("Launcher", "Worker")] == [None, True]
    assert [each["securityContext"]["privileged"] for each in (launcher, worker)] == [False, True]
    labels = {role: template["metadata"]["labels"] for role, template in templates.items()}
    assert {role: (each["role"], each["team"]) for role, each in labels.items()} == {
        "Launcher": ("launcher", "vision"),
        "Worker": ("worker", "vision"),
    }
    notes = templates["Launcher"]["metadata"]["annotations"]
    assert (notes["example.com/a"], notes["example.com/b"]) == ("1", "2")
    assert [each["name"] for each in launcher["env"] if "valueFrom" in each] == ["TOKEN", "NODE"]
    assert [each["name"] for each in worker["env"] if "valueFrom" in each] == ["TOKEN"]
    assert [each["name"] for each in pods["Launcher"]["initContainers"]] == ["order"]
    assert "drivers" in [each["name"] for each in pods["Worker"]["initContainers"]]
    mounts = {role: container_of(pod, "trainer")["volumeMounts"] for role, pod in pods.items()}
    assert {"name": "order", "mountPath": "/node-ordering"} in mounts["Launcher"]
    assert "/dev/gdrdrv" not in [each["mountPath"] for each in mounts["Launcher"]]
    assert "/dev/gdrdrv" in [each["mountPath"] for each in mounts["Worker"]]
    assert order in pods["Launcher"]["volumes"]
    assert order not in pods["Worker"]["volumes"]


@pytest.mark.parametrize("chart", JOBS)
def test_nodes_of_another_cloud_are_selected_by_their_type_and_give_infiniband(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
    volume = {"name": "ib", "hostPath": {"path": "/dev/infiniband"}}
    values: dict[str, Any] = {
        "nodeSelector": {"node.kubernetes.io/instance-type": "BM.GPU.H100.8"},
        "pod": {
            "extraVolumes": [volume],
            "extraVolumeMounts": [{"name": "ib", "mountPath": "/dev/infiniband"}],
        },
    }
    if chart != "paddle":
        values["accelerators"] = 8
    pod = job_of(chart, rendered(renderer, request_for, chart, values))["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == values["nodeSelector"]
    assert volume in pod["volumes"]


@pytest.mark.parametrize("chart", ["torch-elastic", "mpi-training"])
def test_a_gang_waits_in_a_queue_of_volcano(renderer: Renderer, request_for: RequestFor, chart: str) -> None:
    values: dict[str, Any] = {"workers": 2, "placement": {"gang": "volcano", "queue": "research"}}
    if chart == "torch-elastic":
        values["elastic"] = {"minWorkers": 2}
    group = the(rendered(renderer, request_for, chart, values), "PodGroup").thaw()
    assert group["spec"] == {"minMember": 2, "queue": "research"}


def test_mpi_operator_makes_the_group_of_an_mpijob_in_its_queue(
    renderer: Renderer, request_for: RequestFor
) -> None:
    values = {"mpi": {"orchestrator": "MPIJob"}, "placement": {"queue": "research"}}
    job = the(rendered(renderer, request_for, "mpi-training", values), "MPIJob").thaw()
    assert job["spec"]["runPolicy"]["schedulingPolicy"] == {"queue": "research"}


@pytest.mark.parametrize("chart", JOBS)
def test_an_image_that_moves_is_pulled_for_each_pod(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
    image = {"repository": "team/train", "tag": "latest", "pullPolicy": "Always"}
    found = rendered(renderer, request_for, chart, {"image": image})
    trainer = container_of(job_of(chart, found)["spec"]["template"]["spec"], "trainer")
    assert trainer["image"].endswith("team/train:latest")
    assert trainer["imagePullPolicy"] == "Always"


GPUS = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8}}]}


@pytest.mark.parametrize("chart", JOBS)
def test_workers_claim_devices_by_templates_of_the_chart(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
    found = rendered(renderer, request_for, chart, {"pod": {"resourceClaimTemplates": {"gpu": GPUS}}})
    template = the(found, "ResourceClaimTemplate").thaw()
    assert template["spec"] == {"spec": {"devices": GPUS}}
    pod = job_of(chart, found)["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": template["metadata"]["name"]}
    ]
    assert container_of(pod, "trainer")["resources"]["claims"] == [{"name": "gpu"}]
    jobs = [each.thaw() for each in found.manifests if each.kind == "Job" and not each.is_hook]
    claiming = [job for job in jobs if "resourceClaims" in job["spec"]["template"]["spec"]]
    assert len(claiming) == 1, "pservers claim no devices"


def test_other_devices_are_another_template_because_one_cannot_change(
    renderer: Renderer, request_for: RequestFor
) -> None:
    four = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}]}
    names = {
        the(
            rendered(
                renderer, request_for, "torch-elastic", {"pod": {"resourceClaimTemplates": {"gpu": each}}}
            ),
            "ResourceClaimTemplate",
        ).name
        for each in (GPUS, four)
    }
    assert len(names) == 2


@pytest.mark.parametrize("chart", JOBS)
def test_the_images_user_has_its_home_and_the_usual_rights(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
    values = IMAGE.get(chart, {})
    request = request_for(chart, files=["values/image-user.yaml"], values=values)
    pod = job_of(chart, renderer.render(request))["spec"]["template"]["spec"]
    trainer = container_of(pod, "trainer")
    assert (pod["securityContext"], trainer["securityContext"]) == (
        {"seccompProfile": {"type": "RuntimeDefault"}},
        {},
    )
    assert not {"HOME", "USER"} & environment_of(trainer).keys()


@pytest.mark.parametrize("chart", ["torch-elastic", "paddle"])
@pytest.mark.parametrize(
    ("values", "home"),
    [
        ({}, "/tmp"),
        ({"podSecurityContext": {"runAsNonRoot": False, "runAsUser": 0}}, None),
        ({"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}, None),
        ({"podSecurityContext": {"runAsUser": 0}, "securityContext": {"runAsUser": 1001}}, "/tmp"),
    ],
)
def test_a_user_without_a_home_gets_one(
    renderer: Renderer, request_for: RequestFor, chart: str, values: dict[str, Any], home: str | None
) -> None:
    pod = job_of(chart, rendered(renderer, request_for, chart, values))["spec"]["template"]["spec"]
    assert environment_of(container_of(pod, "trainer")).get("HOME") == home


def as_the_kubelet_expands(variables: list[dict[str, Any]]) -> dict[str, str]:
    """The values of ``variables``: $(NAME) is what a variable above has, and stays where there is none."""
    known: dict[str, str] = {}
    for each in variables:
        text = each.get("value", f"from {each['name']}")
        known[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: known.get(name[1], name[0]), text)
    return known


@pytest.mark.parametrize("chart", JOBS)
def test_variables_may_refer_to_each_other_in_any_order(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
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
    job = job_of(chart, rendered(renderer, request_for, chart, values))
    variables = container_of(job["spec"]["template"]["spec"], "trainer")["env"]
    found = as_the_kubelet_expands(variables)
    assert found["A_LOG"] == "/data/me/from POD/log"
    assert (found["LOUD"], found["PATH"]) == ("from POD!", "$(PATH):/opt/bin")
    assert {"ONE", "TWO"} <= found.keys()
    assert len(found) == len(variables)


def test_a_native_sidecar_moves_as_it_is(renderer: Renderer, request_for: RequestFor) -> None:
    values = {
        "pod": {
            "initContainers": [{"name": "plugin"}, {"name": "daemon", "restartPolicy": "Always"}],
            "sidecars": [{"name": "proxy", "restartPolicy": "Always"}],
        },
    }
    pod = job_of("torch-elastic", rendered(renderer, request_for, "torch-elastic", values))["spec"][
        "template"
    ]
    found = [(each["name"], each.get("restartPolicy")) for each in pod["spec"]["initContainers"]]
    assert found == [("plugin", None), ("daemon", "Always"), ("proxy", "Always")]


def test_containers_may_mount_what_the_chart_or_the_operator_adds(
    renderer: Renderer, request_for: RequestFor
) -> None:
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
    job = the(rendered(renderer, request_for, "mpi-training", values), "MPIJob").thaw()
    for role, mounts in ("Launcher", 3), ("Worker", 2):
        first = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["initContainers"][0]
        assert len(first["volumeMounts"]) == mounts


def test_the_launcher_of_an_mpijob_claims_no_devices(renderer: Renderer, request_for: RequestFor) -> None:
    values = {"mpi": {"orchestrator": "MPIJob"}, "pod": {"resourceClaimTemplates": {"gpu": GPUS}}}
    job = the(rendered(renderer, request_for, "mpi-training", values), "MPIJob").thaw()
    roles = {role: spec["template"]["spec"] for role, spec in job["spec"]["mpiReplicaSpecs"].items()}
    assert "resourceClaims" in roles["Worker"]
    assert "resourceClaims" not in roles["Launcher"]


@pytest.mark.parametrize("chart", JOBS)
def test_containers_run_before_and_beside_training(
    renderer: Renderer, request_for: RequestFor, chart: str
) -> None:
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
    pod = job_of(chart, rendered(renderer, request_for, chart, values))["spec"]["template"]["spec"]
    names = [each["name"] for each in pod["initContainers"] if each["name"] != "pserver"]
    assert names == ["prepare", "verify", "proxy"]
    prepare, proxy = container_of(pod, "prepare"), container_of(pod, "proxy")
    assert prepare["image"] == container_of(pod, "trainer")["image"]
    assert prepare["securityContext"] == container_of(pod, "trainer")["securityContext"]
    assert "restartPolicy" not in prepare
    assert (proxy["restartPolicy"], proxy["image"]) == ("Always", "docker.io/library/nginx:1.29")


def test_a_claim_by_template_and_a_projected_token_are_volumes(
    renderer: Renderer, request_for: RequestFor
) -> None:
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "200Gi"}}}}
    token = {"serviceAccountToken": {"audience": "sts.amazonaws.com", "path": "token"}}
    volumes = [
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}},
        {"name": "token", "projected": {"sources": [token]}},
    ]
    job = job_of(
        "torch-elastic", rendered(renderer, request_for, "torch-elastic", {"pod": {"extraVolumes": volumes}})
    )
    assert [each for each in job["spec"]["template"]["spec"]["volumes"] if each in volumes] == volumes


def command_of(renderer: Renderer, request_for: RequestFor, setup: str, program: list[str]) -> list[str]:
    """The command of a worker as the kubelet starts it, with ``program`` as its entry point."""
    found = rendered(renderer, request_for, "torch-elastic", {"launch": {"setup": setup, "command": program}})
    trainer = container_of(job_of("torch-elastic", found)["spec"]["template"]["spec"], "trainer")
    return [word.replace("$$", "$") for word in trainer["command"]]


PRINT = ["python3", "-c", "import os, sys; print(os.environ.get('FLAVOUR'), *sys.argv[1:])", "two words", "*"]


def test_what_setup_exports_reaches_the_program_and_its_words_stay(
    renderer: Renderer, request_for: RequestFor, tmp_path: Path
) -> None:
    setup = 'export FLAVOUR="$(echo sweet)"\nmkdir folder\necho $$ > folder/pid # a comment'
    done = subprocess.run(
        command_of(renderer, request_for, setup, PRINT), cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "sweet two words *\n", "")
    assert (tmp_path / "folder/pid").read_text().strip().isdigit()


def test_setup_is_bash_where_the_image_has_it_and_sh_elsewhere(
    renderer: Renderer, request_for: RequestFor, tmp_path: Path
) -> None:
    (tmp_path / "set_env.sh").write_text("flavours=(sour sweet)\nexport FLAVOUR=${flavours[1]}\n")
    bash = command_of(renderer, request_for, "source set_env.sh", PRINT)
    done = subprocess.run(bash, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sweet two words *\n", "")
    (tmp_path / "sh").symlink_to(shutil.which("sh") or "")
    sh = command_of(renderer, request_for, "export FLAVOUR=sour", [sys.executable, *PRINT[1:]])
    done = subprocess.run(sh, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sour two words *\n", "")


def test_a_setup_that_fails_is_the_end_of_the_container(renderer: Renderer, request_for: RequestFor) -> None:
    done = subprocess.run(
        command_of(renderer, request_for, "echo first; exit 3", PRINT), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "first\n")
    failed = command_of(renderer, request_for, "false\necho never", PRINT)
    assert subprocess.run(failed, capture_output=True, text=True).stdout == ""


def test_the_program_takes_the_place_of_the_shell_and_its_signals(
    renderer: Renderer, request_for: RequestFor, tmp_path: Path
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
    renderer: Renderer, request_for: RequestFor
) -> None:
    found = rendered(renderer, request_for, "torch-elastic", {})
    trainer = container_of(job_of("torch-elastic", found)["spec"]["template"]["spec"], "trainer")
    assert trainer["command"] == ["python3", "-m", "bireme_runtime.elastic.agent.supervisor", "--"]


@pytest.mark.parametrize("chart", JOBS)
def test_argument_groups_of_several_files_add_to_each_other(
    renderer: Renderer, request_for: RequestFor, tmp_path: Path, chart: str
) -> None:
    files = []
    for name, words in (("data", ["--data", "/fsx"]), ("amp", ["--amp"])):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(f"launch: {{argGroups: {{{name}: {words}}}}}\n")
    values = IMAGE.get(chart, {}) | {"args": ["train.py"]}
    found = renderer.render(request_for(chart, files=files, values=values))
    trainer = container_of(job_of(chart, found)["spec"]["template"]["spec"], "trainer")
    assert trainer["args"] == ["train.py", "--amp", "--data", "/fsx"]


def test_running_as_root_leaves_the_number_of_workers_alone(
    renderer: Renderer, request_for: RequestFor
) -> None:
    request = request_for("mpi-training", files=["values/mpi-as-root.yaml"], values=IMAGE["mpi-training"])
    assert job_of("mpi-training", renderer.render(request))["spec"]["completions"] == 1


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


@pytest.mark.parametrize("chart", ["torch-elastic", "mpi-training"])
def test_workers_without_an_instance_type_ask_for_something(render: RenderChart, chart: str) -> None:
    sets = ["image.repository=team/train", "image.tag=v1"]
    job = the(render(chart, sets=sets), "Job").thaw()
    (worker,) = job["spec"]["template"]["spec"]["containers"]
    assert set(worker["resources"]["requests"]) == {"cpu", "memory"}
