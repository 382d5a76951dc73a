"""Jobs that clone what they train."""

from __future__ import annotations

from typing import Any

from tests.render.test_files import EACH_CHART, pods
from tests.support.rendered import RenderChart, container_of, environment_of, the

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = {"url": "https://github.com/team/train.git", "ref": COMMIT, "path": "src/main.py"}


@EACH_CHART
def test_each_pod_clones_the_commit_into_the_folder_in_which_it_starts(
    render: RenderChart, chart: str, own: dict[str, Any]
) -> None:
    rendered = render(chart, values={**own, "launch": {**own.get("launch", {}), "git": GIT}})
    assert not [each.name for each in rendered.manifests if "-script-" in each.name]
    assert pods(rendered)
    for pod in pods(rendered):
        clone = container_of(pod, "git")
        assert [*clone["command"]][-3:] == [GIT["url"], COMMIT, "src/main.py"]
        assert clone["workingDir"] == "/bireme/script"
        for container in pod["containers"]:
            assert container["workingDir"] == "/bireme/script"
            assert "/bireme/script" in [each["mountPath"] for each in container["volumeMounts"]]
        assert {"name": "script", "emptyDir": {}} in pod["volumes"]
    words = str([each.thaw() for each in rendered.manifests])
    assert "'/bireme/script/src/main.py'" in words
    assert f"'bireme/source': '{GIT['url']}@{COMMIT}'" in words


def test_a_command_of_its_own_names_its_program_itself(render: RenderChart) -> None:
    for launch in ({"command": ["bash", "/bireme/script/run.sh"]}, {"launcher": "node"}):
        args = [] if "command" in launch else ["bash", "/bireme/script/run.sh"]
        rendered = render("torch-elastic", values={"args": args, "launch": {"git": GIT, **launch}})
        (pod,) = pods(rendered)
        (container,) = pod["containers"]
        assert [*container["command"], *container.get("args", [])][-1] == "/bireme/script/run.sh"


def test_the_job_that_writes_paddles_data_clones_too(render: RenderChart) -> None:
    values = {"launch": {"git": GIT}, "data": {"prep": {"enabled": True, "args": ["prepare.py"]}}}
    pod = the(render("paddle", release="w2v", values=values), "Job", "w2v-data-r1")["spec"]["template"][
        "spec"
    ]
    assert container_of(pod, "git")["command"][-3] == GIT["url"]
    assert container_of(pod, "data")["workingDir"] == "/bireme/script"


def test_the_image_that_clones_comes_from_the_registry_of_the_others(render: RenderChart) -> None:
    values = {"global": {"imageRegistry": "registry.example.com"}, "launch": {"git": GIT}}
    (pod,) = pods(render("torch-elastic", values=values))
    assert container_of(pod, "git")["image"].startswith("registry.example.com/alpine/git:")


@EACH_CHART
def test_a_clone_trusts_the_authority_of_a_proxy_that_opens_tls(
    render: RenderChart, chart: str, own: dict[str, Any]
) -> None:
    """It is mounted in the container that clones, and a policy that closes egress lets it reach the proxy."""
    git = {**GIT, "proxy": "http://proxy.lan:3128", "caBundle": "site"}
    policy = {"networkPolicy": {"enabled": True}}
    rendered = render(chart, values={**own, **policy, "launch": {**own.get("launch", {}), "git": git}})
    for pod in pods(rendered):
        clone = container_of(pod, "git")
        found = environment_of(clone)
        assert found["HTTPS_PROXY"] == found["http_proxy"] == "http://proxy.lan:3128"
        (folder,) = [each["mountPath"] for each in clone["volumeMounts"] if each["name"] == "git-ca"]
        assert found["GIT_SSL_CAINFO"] == f"{folder}/ca.crt"
        assert {"name": "git-ca", "configMap": {"name": "site"}} in pod["volumes"]
    rules = the(rendered, "NetworkPolicy")["spec"]["egress"]
    assert {443, 3128} <= {port["port"] for rule in rules for port in rule.get("ports", ())}
