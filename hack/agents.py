"""What upstream says today about the node agents: image tags, and the instance types with EFA or NVIDIA GPUs.

python hack/agents.py           # compares it with the charts and hack/agents.yaml; exit 1 if it differs
python hack/agents.py --write   # writes the instance types to hack/agents.yaml; then `make instances`
"""

from __future__ import annotations

import argparse
import re
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from bireme.core.paths import Paths
from bireme.helm.values import read_file

TYPES = "agents.yaml"
SITE = "https://raw.githubusercontent.com"
EFA_CHART = "aws/eks-charts/master/stable/aws-efa-k8s-device-plugin/values.yaml"
DCGM_CHART = "NVIDIA/dcgm-exporter/main/deployment/values.yaml"
KARPENTER = "aws/karpenter-provider-aws/main/website/content/en/docs/reference/instance-types.md"
_HEADER = """# Instance types with EFA (the chart of its device plugin in aws/eks-charts) and with NVIDIA GPUs
# (Karpenter's table, and the P family among those with EFA). Made by `python hack/agents.py --write`.
"""


@dataclass(frozen=True)
class Upstream:
    """What upstream's charts and Karpenter's documentation name."""

    efa_tag: str
    dcgm_tag: str
    types: Mapping[str, frozenset[str]]


def known_types(paths: Paths) -> dict[str, set[str]]:
    """The instance types of hack/agents.yaml, by `efa` and `nvidia`."""
    return {kind: set(names) for kind, names in read_file(paths.hack / TYPES).items()}


def ask(site: str = SITE) -> Upstream:
    """Read upstream's files below ``site``."""
    efa_chart, dcgm_chart = (yaml.safe_load(_text(site, each)) for each in (EFA_CHART, DCGM_CHART))
    efa = frozenset(efa_chart["supportedInstanceLabels"]["values"])
    sections = re.split(r"^### `", _text(site, KARPENTER), flags=re.MULTILINE)[1:]
    gpus = {each.split("`", 1)[0] for each in sections if "instance-gpu-manufacturer|nvidia" in each}
    # Karpenter's table lacks types that are in no region yet; every type of the P family has NVIDIA GPUs.
    gpus |= {each for each in efa if re.match(r"p[0-9]", each)}
    return Upstream(
        efa_chart["image"]["tag"], dcgm_chart["image"]["tag"], {"efa": efa, "nvidia": frozenset(gpus)}
    )


def differences(paths: Paths, upstream: Upstream) -> list[str]:
    """A sentence for everything in which this clone differs from upstream."""
    sentences = []
    tags = {
        "efa-device-plugin": (
            read_file(paths.charts / "efa-device-plugin/values.yaml")["image"],
            upstream.efa_tag,
        ),
        "gpu-metrics": (
            read_file(paths.charts / "gpu-metrics/values.yaml")["dcgm"]["image"],
            upstream.dcgm_tag,
        ),
    }
    for chart, (image, tag) in tags.items():
        if image["tag"] != tag:
            sentences.append(f"charts/{chart}: {image['repository']} is {image['tag']}, upstream names {tag}")
    known = known_types(paths)
    for kind, types in upstream.types.items():
        if new := sorted(types - known[kind]):
            sentences.append(f"hack/{TYPES}: {kind} lacks {', '.join(new)}")
    return sentences


def write_types(paths: Paths, upstream: Upstream) -> None:
    """Add upstream's types to hack/agents.yaml; those that are there stay, since nodes of them may run on."""
    known = known_types(paths)
    merged = {kind: sorted(known[kind] | types) for kind, types in upstream.types.items()}
    (paths.hack / TYPES).write_text(_HEADER + yaml.safe_dump(merged))


def _text(site: str, path: str) -> str:
    with urllib.request.urlopen(f"{site}/{path}", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def main() -> int:
    """Compare, or write with --write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write hack/agents.yaml")
    parser.add_argument(
        "--from", dest="site", default=SITE, help="where upstream's files are (default: %(default)s)"
    )
    given = parser.parse_args()
    paths = Paths.discover()
    upstream = ask(given.site)
    if given.write:
        write_types(paths, upstream)
    found = differences(paths, upstream)
    print("\n".join(found) or "as upstream")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
