"""Files beside the script of a training job."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.helm import Render, RenderError
from tests.support.rendered import RenderChart, container_of, the

FILES = {"my_lib.py": "x = 1\n", "conf/net.yaml": "a: 1\n", "words.pickle": {"base64": "gAR9lC4="}}
EACH_CHART = pytest.mark.parametrize(
    ("chart", "own"),
    [
        ("paddle", {}),
        ("torch-elastic", {}),
        ("mpi-training", {"image": {"repository": "team/mpi", "tag": "1"}}),
        (
            "mpi-training",
            {"mpi": {"orchestrator": "MPIJob"}, "image": {"repository": "team/mpi", "tag": "1"}},
        ),
    ],
)


def pods(rendered: Render) -> list[Any]:
    """The pods of the jobs that train."""
    found = []
    for each in rendered.manifests:
        if each.kind == "Job" and not each.is_hook:
            found.append(each["spec"]["template"]["spec"])
        if each.kind == "MPIJob":
            found += [role["template"]["spec"] for role in each["spec"]["mpiReplicaSpecs"].values()]
    return found


@EACH_CHART
def test_script_and_files_are_in_one_folder_in_which_each_pod_starts(
    render: RenderChart, chart: str, own: dict[str, Any]
) -> None:
    rendered = render(chart, values={**own, "script": "import my_lib", "launch": {"files": FILES}})
    kept = the(
        rendered, "ConfigMap", next(each.name for each in rendered.manifests if "-script-" in each.name)
    )
    there = {**kept["data"], **kept["binaryData"]}
    for pod in pods(rendered):
        (volume,) = [each["configMap"] for each in pod["volumes"] if each["name"] == "script"]
        assert volume["name"] == kept.name
        paths = {each["path"]: there[each["key"]] for each in volume["items"]}
        assert paths == {
            "train.py": "import my_lib",
            "my_lib.py": "x = 1\n",
            "conf/net.yaml": "a: 1\n",
            "words.pickle": "gAR9lC4=",
        }
        for container in pod["containers"]:
            assert container["workingDir"] == "/bireme/script"
            assert "/bireme/script" in [each["mountPath"] for each in container["volumeMounts"]]


@EACH_CHART
def test_a_file_that_changes_is_a_new_run_and_one_without_a_script_may_be_the_program(
    render: RenderChart, chart: str, own: dict[str, Any]
) -> None:
    def volume(files: dict[str, str]) -> str:
        rendered = render(
            chart, values={**own, "args": ["/bireme/script/main.py"], "launch": {"files": files}}
        )
        (found,) = {
            each["configMap"]["name"]
            for pod in pods(rendered)
            for each in pod["volumes"]
            if each["name"] == "script"
        }
        assert "train.py" not in the(rendered, "ConfigMap", found)["data"]
        return str(found)

    assert volume({"main.py": "one"}) != volume({"main.py": "two"})


def test_the_job_that_writes_paddles_data_has_the_workspace_too(render: RenderChart) -> None:
    prepare = {"enabled": True, "args": ["/bireme/script/prepare.py"]}
    values = {
        "launch": {"files": {"prepare.py": "import my_lib", **FILES}},
        "args": ["/bireme/script/my_lib.py"],
    }
    rendered = render("paddle", release="w2v", values={**values, "data": {"prep": prepare}})
    pod = the(rendered, "Job", "w2v-data-r1")["spec"]["template"]["spec"]
    (volume,) = [each["configMap"] for each in pod["volumes"] if each["name"] == "script"]
    assert "prepare.py" in [each["path"] for each in volume["items"]]
    data = container_of(pod, "data")
    assert data["workingDir"] == "/bireme/script"
    assert "/bireme/script" in [each["mountPath"] for each in data["volumeMounts"]]


def test_files_that_no_configmap_holds_are_refused(render: RenderChart) -> None:
    with pytest.raises(RenderError) as refused:
        render("paddle", values={"script": "1", "launch": {"files": {"words.txt": "word " * 210_000}}})
    assert "files: they have 1025 KiB, and a ConfigMap holds 1024 KiB; put the large ones" in str(
        refused.value
    )
