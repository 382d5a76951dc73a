"""The instance types of values/instances: twelve for each run, the others for the full tier."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

TYPES = sorted(file.stem for file in (Path(__file__).parents[2] / "values/instances").glob("*.yaml"))
TWELVE = (
    "g4dn.xlarge",
    "g5.8xlarge",
    "g6e.48xlarge",
    "g6f.large",
    "p3.16xlarge",
    "p3dn.24xlarge",
    "p4d.24xlarge",
    "p5.48xlarge",
    "p5en.48xlarge",
    "p6-b200.48xlarge",
    "trn1.32xlarge",
    "trn2.48xlarge",
)
OWN_IMAGE = ("image.registry=", "image.repository=team/train", "image.tag=v1")
"""An image that the chart knows nothing of."""


def image_for(instance: str | None) -> list[str]:
    """The settings that a job needs beside its type: Neuron and Arm want another image than the default."""
    return list(OWN_IMAGE) if instance and instance.startswith(("trn", "g5g.")) else []


OTHERS = [name for name in TYPES if name not in TWELVE]
FAMILIES = {family: tuple(names) for family, names in groupby(OTHERS, key=lambda name: name.split(".")[0])}
EACH_TYPE = pytest.mark.parametrize(
    "types",
    [
        *(pytest.param((name,), id=name) for name in TWELVE),
        *(
            pytest.param(names, id=f"the other {name}", marks=pytest.mark.whole)
            for name, names in FAMILIES.items()
        ),
    ],
)
"""A test with ``types``: one of the twelve, or the other types of a family."""
