"""What upstream says today about the node agents: the instance types with EFA or NVIDIA GPUs.

python hack/agents.py           # compares it with hack/agents.yaml; exit 1 if it differs
python hack/agents.py --write   # writes the instance types to hack/agents.yaml; then `make instances`
"""

from __future__ import annotations

import re
import urllib.request

import click
import yaml

from bireme.core.paths import Paths
from bireme.helm.values import read_file

TYPES = "agents.yaml"
SITE = "https://raw.githubusercontent.com"
EFA_CHART = "aws/eks-charts/master/stable/aws-efa-k8s-device-plugin/values.yaml"
KARPENTER = "aws/karpenter-provider-aws/main/website/content/en/docs/reference/instance-types.md"
_HEADER = """# Instance types with EFA (the chart of its device plugin in aws/eks-charts) and with NVIDIA GPUs
# (Karpenter's table, and the P family among those with EFA). Made by `python hack/agents.py --write`.
"""


def known_types(paths: Paths) -> dict[str, set[str]]:
    """The instance types of hack/agents.yaml, by `efa` and `nvidia`."""
    return {kind: set(names) for kind, names in read_file(paths.hack / TYPES).items()}


def ask(site: str = SITE) -> dict[str, set[str]]:
    """The instance types that upstream's files below ``site`` name, by `efa` and `nvidia`."""
    efa = set(yaml.safe_load(_text(site, EFA_CHART))["supportedInstanceLabels"]["values"])
    sections = re.split(r"^### `", _text(site, KARPENTER), flags=re.MULTILINE)[1:]
    gpus = {each.split("`", 1)[0] for each in sections if "instance-gpu-manufacturer|nvidia" in each}
    # Karpenter's table lacks types that are in no region yet; every type of the P family has NVIDIA GPUs.
    return {"efa": efa, "nvidia": gpus | {each for each in efa if re.match(r"p[0-9]", each)}}


def differences(paths: Paths, upstream: dict[str, set[str]]) -> list[str]:
    """A sentence for each sort of types of which hack/agents.yaml lacks some."""
    lacking = ((kind, sorted(upstream[kind] - known)) for kind, known in known_types(paths).items())
    return [f"hack/{TYPES}: {kind} lacks {', '.join(new)}" for kind, new in lacking if new]


def _text(site: str, path: str) -> str:
    with urllib.request.urlopen(f"{site}/{path}", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


@click.command(help=__doc__)
@click.option("--write", is_flag=True, help="Write hack/agents.yaml")
@click.option("--from", "site", default=SITE, show_default=True, help="Where upstream's files are")
@click.pass_context
def main(context: click.Context, write: bool, site: str) -> None:
    paths, upstream = Paths.discover(), ask(site)
    if write:
        # Those that are there stay, since nodes of them may run on.
        merged = {kind: sorted(known | upstream[kind]) for kind, known in known_types(paths).items()}
        (paths.hack / TYPES).write_text(_HEADER + yaml.safe_dump(merged))
    found = differences(paths, upstream)
    click.echo("\n".join(found) or "as upstream")
    context.exit(1 if found else 0)


if __name__ == "__main__":
    main()
