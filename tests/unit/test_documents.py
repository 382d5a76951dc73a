"""A changed command breaks its document's test: markers, what is shown, stand-ins for AWS's programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import documents, stand_ins
from tests.support.documents import ROOT, Block, blocks, syntax_error

DOCUMENT = """\
```sh
first  # needs AWS
second \\
    --option  # exits with 1
```

```text
Done: … nodes
```
"""


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    return tmp_path / "it.md"


def test_a_block_has_its_commands_with_their_markers(document: Path) -> None:
    document.write_text(DOCUMENT)
    (block,) = blocks(document)
    assert [(each.line, each.needs, each.code) for each in block.commands] == [(2, "AWS", 0), (3, "", 1)]
    assert block.missing("so\nDone:   3  nodes  \n") == []
    assert block.missing("Done: nothing") == ["Done: … nodes"]


def test_an_unknown_marker_is_refused(document: Path) -> None:
    document.write_text("```sh\nls  # needs luck\n```\n")
    with pytest.raises(ValueError, match="needs luck"):
        blocks(document)


def test_a_command_that_bash_cannot_read_is_found(document: Path) -> None:
    document.write_text("```sh\necho $(\n```\n")
    (block,) = blocks(document)
    assert "unexpected" in syntax_error(block.commands[0])
    assert Block((), ()).missing("") == []


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["terraform", "-chdir=hack/eks", "init"], None),
        (["terraform", "-chdir=hack/eks", "plan", "-var", "cpu_nodes=3"], None),
        (["terraform", "-chdir=hack/eks", "plan", "-var", "cpu_node=3"], "no variable {'cpu_node'}"),
        (["terraform", "-chdir=hack/eks", "apply", "-var", "cpu_nodes=3"], "other variables than plan"),
        (["terraform", "-chdir=hack/eks", "output", "-raw", "efs"], "efs"),
        (["terraform", "-chdir=hack", "init"], "hack/eks is the only configuration"),
        (["aws", "ec2", "terminate-instance", "--instance-ids", "i-0"], "does not know"),
        (["aws", "eks", "update-kubeconfig", "--cluster", "bireme"], "has no {'--cluster'}"),
        (["eksctl", "delete", "cluster", "bireme"], "not enough"),
    ],
)
def test_the_stand_ins_refuse_what_the_programs_would(
    tmp_path: Path, command: list[str], sentence: str | None
) -> None:
    (tmp_path / "hack").symlink_to(ROOT / "hack")
    done = subprocess.run(
        [sys.executable, stand_ins.__file__, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (sentence or "") in done.stderr
    assert (done.returncode == 0) == (sentence is None), done.stderr


def test_the_stand_in_s_outputs_are_those_of_hack_eks() -> None:
    outputs = (ROOT / "hack/eks/outputs.tf").read_text()
    assert [name for name in stand_ins.OUTPUTS if f'output "{name}"' not in outputs] == []
