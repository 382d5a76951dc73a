"""Who starts the training processes of a worker."""

from __future__ import annotations

import json
from typing import Any

from bireme.helm import Renderer
from bireme.testing.charts import RequestFor
from tests.support.rendered import container_of, environment_of, the


def trainer(renderer: Renderer, request_for: RequestFor, values: dict[str, Any], instance: str) -> Any:
    found = renderer.render(request_for("torch-elastic", instance=instance, values=values))
    return container_of(the(found, "Job").thaw()["spec"]["template"]["spec"], "trainer")


def test_accelerate_starts_a_script_with_its_configuration(
    renderer: Renderer, request_for: RequestFor
) -> None:
    values = {
        "launch": {
            "launcher": "accelerate",
            "accelerate": {"mixed_precision": "bf16", "fsdp_config": {"a": "$(HOME)"}},
        },
        "args": ["/workspace/train.py", "--epochs", "3"],
    }
    found = trainer(renderer, request_for, values, "p4d.24xlarge")
    env = environment_of(found)
    assert found["command"] == ["python3", "-m", "bireme_runtime.elastic.agent.supervisor", "--"]
    assert found["args"] == values["args"]
    assert (env["BIREME_LAUNCHER"], env["PET_NPROC_PER_NODE"]) == ("accelerate", "8")
    config = {"mixed_precision": "bf16", "fsdp_config": {"a": "$$(HOME)"}}
    assert json.loads(env["BIREME_ACCELERATE"]) == config


def test_node_runs_a_command_that_may_name_the_script(renderer: Renderer, request_for: RequestFor) -> None:
    values = {
        "launch": {"launcher": "node"},
        "script": "print(1)",
        "args": ["torchrun", "/bireme/script/train.py"],
    }
    found = trainer(renderer, request_for, values, "p4d.24xlarge")
    assert found["args"] == values["args"]
    assert "/bireme/script" in [each["mountPath"] for each in found["volumeMounts"]]


def test_torchrun_is_the_launcher_unless_another_is_named(
    renderer: Renderer, request_for: RequestFor
) -> None:
    found = trainer(renderer, request_for, {"args": ["train.py"]}, "p4d.24xlarge")
    assert "BIREME_LAUNCHER" not in environment_of(found)
