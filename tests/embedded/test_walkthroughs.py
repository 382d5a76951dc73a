"""Every command of the walkthroughs, docs/eks.md and hack/eks runs, on an embedded cluster in place of EKS.

The stand-ins for aws, eksctl and terraform (tests/support/stand_ins.py) start and stop that cluster. Commands
that need GPUs, containers or the internet are checked as far as that goes without, and listed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from bireme.cli import cli
from bireme.clusters.embedded import EmbeddedProvider
from bireme.clusters.owner import owned
from bireme.core.paths import Paths
from bireme.live.doctor import PROVIDERS
from bireme.tools import Toolbox
from tests.support import controllers, stand_ins
from tests.support.documents import ROOT, Command, blocks, syntax_error
from tests.support.reader import Reader

pytestmark = pytest.mark.embedded
DOCUMENTS = [
    *sorted(ROOT.glob("docs/walkthroughs/*-on-*.md")),
    ROOT / "docs/eks.md",
    ROOT / "hack/eks/README.md",
]
IN_THE_CORE = "paddle-on-aws"
NAME = "bireme"


class Customer(Reader):
    """A reader without an AWS account, who has stand-ins for the programs that need one."""

    def __init__(self, folder: Path, toolbox: Toolbox) -> None:
        variables = {
            "PYTHONPATH": str(ROOT),
            "BIREME_STATE": str(folder / "state"),
            "BIREME_CACHE": os.environ.get("BIREME_CACHE", str(Path.home() / ".cache/bireme")),
            "KUBECONFIG": str(folder / f"state/clusters/{NAME}/kubeconfig"),
            "DRY_RUN": "1",  # for `make images`
        }
        super().__init__(folder, toolbox, variables)
        for name in ("aws", "eksctl", "terraform"):
            program = self.programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {stand_ins.__file__} {name} "$@"\n')
            program.chmod(0o755)
        self._provider = EmbeddedProvider(Paths.discover(self.environment, ROOT), toolbox)
        self._toolbox, self._operators = toolbox, ExitStack()

    def types(self, text: str) -> subprocess.CompletedProcess[str]:
        """As any reader types. What the pod of charts/mpijob would do is done, too."""
        if text.startswith("helm uninstall mpijob"):
            self._operators.close()
        done = super().types(text)
        if text.startswith("helm install mpijob"):
            operator = ("mpijob", "mpi-operator", self._toolbox.path("mpi-operator"))
            self._operators.enter_context(controllers.running(self._provider.get(NAME), *operator))
        return done

    def leaves(self) -> bool:
        """Stop a cluster that is still there; whether there was one."""
        self._operators.close()
        return self._provider.down(NAME)


@pytest.fixture
def reader(tmp_path: Path, toolbox: Toolbox) -> Iterator[Customer]:
    found = Customer(tmp_path, toolbox)
    with owned(Paths.discover(found.environment, ROOT), "embedded", NAME):
        yield found
        found.leaves()


def checked(command: Command, reader: Reader) -> None:
    """The objects that a command names are there, and its options exist, though it cannot run here."""
    words = shlex.split(command.text, comments=True)
    if words[0] == "bireme":
        group: click.Command = cli.commands[words[1]]
        group.make_context(words[1], words[2:], resilient_parsing=False)
        assert words[1] in ("logs", "nccl"), str(command)
        assert reader.types(f"helm status {words[2]}").returncode == 0, f"{command}: there is no such release"
    elif words[0] == "kubectl":
        assert words[1] in ("exec", "logs", "port-forward", "wait"), str(command)
        (named,) = [
            word for word in words[2:] if re.fullmatch(r"(job|mpijob|pod|pvc|service|deployment)/\S+", word)
        ]
        found = reader.types(f"kubectl get {named}").stdout
        assert "NotFound" not in found, f"{command}\n{found}"
        if words[1] == "port-forward":
            ports = reader.types(f"kubectl get {named} -o jsonpath='{{.spec.ports[*].port}}'").stdout.split()
            assert words[-1].partition(":")[2] in ports, f"{command}: its ports are {ports}"
    elif words[:2] == ["helm", "test"]:
        assert reader.types(f"helm status {words[2]}").returncode == 0, f"{command}: there is no such release"
    elif words[:3] == ["helm", "repo", "add"]:
        assert any(known in command.text for known in PROVIDERS.values()), f"{command}: doctor says otherwise"
    else:
        pytest.fail(f"{command}: nobody knows how to check this without {command.needs}")


def follow(document: Path, reader: Reader) -> list[str]:
    """Type all commands of the document, and compare what is shown; the commands that only were checked."""
    unrun = []
    for block in blocks(document):
        printed = []
        for command in block.commands:
            assert syntax_error(command) == "", str(command)
            if command.needs in ("", "AWS"):
                done = reader.types(command.text)
                assert done.returncode == command.code, f"{command}\n{done.stdout}"
                printed.append(done.stdout)
            else:
                checked(command, reader)
                unrun.append(str(command))
        assert block.missing("".join(printed)) == [], f"{block.commands[0]}\n{''.join(printed)}"
    return unrun


@pytest.mark.parametrize(
    "document",
    [
        # One in `make test`, because each takes half a minute.
        pytest.param(
            each,
            id=str(each.relative_to(ROOT)),
            marks=[] if each.stem == IN_THE_CORE else pytest.mark.whole,
        )
        for each in DOCUMENTS
    ],
)
def test_a_document_can_be_followed_from_the_cluster_to_its_end(
    reader: Customer, document: Path, record_property: Callable[[str, object], None]
) -> None:
    unrun = follow(document, reader)
    record_property("only checked", unrun)
    print("\n".join(["only checked, not run:", *unrun]))
    assert not reader.leaves(), "the document leaves its cluster behind"
