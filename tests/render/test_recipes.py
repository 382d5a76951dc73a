"""Each recipe of docs/recipes.md is rendered, and does what its heading says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bireme.cli import cli
from bireme.core.paths import Paths
from bireme.helm import Render
from bireme_runtime.elastic.monitor.failures import Failure
from tests.render.test_files import pods
from tests.support.documents import ROOT, blocks
from tests.support.rendered import RenderChart, container_of, environment_of, the

DOCUMENT = ROOT / "docs/recipes.md"
Recipe = Callable[[str], Render]


def recipes() -> dict[str, list[Any]]:
    """By the heading, the YAML documents of its blocks."""
    parts = re.split(r"^## (.+)$", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        fences = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        found[heading] = [each for fence in fences for each in yaml.safe_load_all(fence)]
    return found


def values(heading: str) -> Any:
    (found,) = (each for each in recipes()[heading] if "kind" not in each)
    return found


@pytest.fixture
def recipe(render: RenderChart) -> Recipe:
    """The objects of a recipe, beside a script where it names none."""

    def rendered(heading: str) -> Render:
        own = values(heading)
        with_script = {} if "git" in own.get("launch", {}) else {"script": "print(1)"}
        return render("torch-elastic", instance="g5.xlarge", release="mnist", values={**with_script, **own})

    return rendered


def trainer(rendered: Render) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The pod of a worker, and its container that trains."""
    (pod,) = pods(rendered)
    return pod, container_of(pod, "trainer")


def test_every_recipe_with_values_is_tried_here() -> None:
    text = (ROOT / "tests/render/test_recipes.py").read_text()
    assert [each for each, found in recipes().items() if found and f'"{each}"' not in text] == []


def test_code_from_git_is_cloned_at_its_commit(recipe: Recipe) -> None:
    pod, container = trainer(recipe("Code from git"))
    sources = [each["valueFrom"] for each in container_of(pod, "git")["env"] if "valueFrom" in each]
    assert {each["secretKeyRef"]["name"] for each in sources} == {"git-token"}
    assert container["args"][0] == "/bireme/script/src/train.py"


def test_tokens_come_from_a_secret_and_stand_in_no_object(recipe: Recipe) -> None:
    rendered = recipe("Weights & Biases, Hugging Face, MLflow")
    _, container = trainer(rendered)
    assert {"secretRef": {"name": "tokens"}} in container["envFrom"]
    assert environment_of(container)["MLFLOW_TRACKING_URI"] == "https://mlflow.example.com"
    for each in rendered.manifests:
        assert not re.search("WANDB_API_KEY|HF_TOKEN|TRACKING_PASSWORD", str(each.thaw())), each.name


def test_a_message_when_a_run_has_ended_has_its_address_from_a_secret(recipe: Recipe) -> None:
    rendered = recipe("A message when a run has ended")
    pod, container = trainer(rendered)
    (volume,) = [each for each in pod["volumes"] if each["name"] == "webhook"]
    assert volume["secret"]["secretName"] == "webhook"
    assert [dict(each) for each in volume["secret"]["items"]] == [{"key": "url", "path": "url"}]
    about = json.loads(environment_of(container)["BIREME_WEBHOOK"])
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "webhook"]
    assert about["file"] == f"{mount['mountPath']}/url"
    assert about["run"] == {"namespace": "default", "release": "mnist", "run": 1}
    assert about["format"] == "slack"


def test_the_folder_of_checkpoints_is_on_a_claim(recipe: Recipe) -> None:
    _, container = trainer(recipe("Resume"))
    assert "/fsx" in [each["mountPath"] for each in container["volumeMounts"]]
    assert container["args"][-1].startswith("/fsx")


def test_the_claim_on_s3_is_bound_to_its_volume_and_belongs_to_the_pods(render: RenderChart) -> None:
    files = ["values/checkpoints-s3.yaml"]
    rendered = render("torch-elastic", files=files, release="mnist", values={"script": "print(1)"})
    volume, claim = the(rendered, "PersistentVolume"), the(rendered, "PersistentVolumeClaim", "checkpoints")
    pod, container = trainer(rendered)
    assert claim["spec"]["volumeName"] == volume.name
    assert volume["spec"]["claimRef"] == {"namespace": "default", "name": claim.name}
    mounted = [each["persistentVolumeClaim"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert claim.name in [each["claimName"] for each in mounted]
    assert "/s3" in [each["mountPath"] for each in container["volumeMounts"]]
    assert f"uid={pod['securityContext']['runAsUser']}" in volume["spec"]["mountOptions"]
    assert "prefix mnist/" in volume["spec"]["mountOptions"]
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"]


def test_the_pods_have_the_role_that_writes_to_s3(recipe: Recipe) -> None:
    rendered = recipe("Checkpoints on S3, by the script")
    pod, container = trainer(rendered)
    account = the(rendered, "ServiceAccount", pod["serviceAccountName"])
    assert account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].endswith("role/mnist")
    assert "pip install s3torchconnector" in str(container["command"])


def test_a_job_on_spot_nodes_trains_on_with_fewer_workers(recipe: Recipe) -> None:
    rendered = recipe("Spot")
    pod, container = trainer(rendered)
    assert environment_of(container)["PET_NNODES"] == "1:8"
    assert "spot" in str(pod["affinity"])
    annotations = the(rendered, "Job", "mnist-r1")["spec"]["template"]["metadata"].get("annotations", {})
    assert annotations.get("karpenter.sh/do-not-disrupt") != "true"


def test_jax_starts_once_on_each_worker(recipe: Recipe) -> None:
    _, container = trainer(recipe("JAX"))
    assert 'pip install "jax[cuda12]"' in str(container["command"])
    assert list(container["args"]) == ["python3", "/bireme/script/train.py"]


def test_the_commands_without_a_cluster_run(bireme_paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = [each.text for block in blocks(DOCUMENT) for each in block.commands if not each.needs]
    assert len(commands) == 2
    for command in commands:
        _, *words = shlex.split(command)
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, result.exception


def test_the_price_of_a_node_is_that_of_the_table(bireme_paths: Paths) -> None:
    prices = yaml.safe_load((bireme_paths.values / "prices.yaml").read_text())
    assert (
        f"costs {prices['onDemand']['g5.xlarge']} USD an hour on demand in us-east-1" in DOCUMENT.read_text()
    )


def test_the_question_to_cloudwatch_finds_the_sentence_of_a_failure() -> None:
    pods, sentence = re.findall(r"like /(.+?)/", DOCUMENT.read_text())
    failure = Failure(3, 128, "worker-37", "node-9", 37, 1, 0.0, "Traceback\nValueError: no data")
    assert re.search(sentence, failure.sentence)
    assert re.search(pods, "mnist-r1-37-x7k2p")
