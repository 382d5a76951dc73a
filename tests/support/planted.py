"""A clean chart, and copies of it with one planted fault each (see faults.yaml)."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

SHOP = Path(__file__).parent / "shop"


@dataclass(frozen=True)
class Fault:
    """What is wrong with a copy of the chart, and what is to be said of it."""

    fault: str
    file: str
    new: str
    says: str
    old: str = ""
    rule: str = ""
    path: str = ""
    old2: str = ""
    new2: str = ""

    def __str__(self) -> str:
        return self.fault.replace(" ", "-")

    def plant(self, folder: Path) -> Path:
        """A copy of the chart in ``folder`` that has the fault."""
        chart = folder / str(self) / "shop"
        shutil.copytree(SHOP, chart)
        text = (chart / self.file).read_text() if self.old else ""
        if not self.file.startswith("ci/"):
            shutil.rmtree(chart / "ci")
        for old, new in ((self.old, self.new), (self.old2, self.new2)):
            assert old in text, f"{self.file} has no {old}"
            text = text.replace(old, new, 1) if old else text or new
        (chart / self.file).write_text(text)
        return chart


def faults(section: str) -> list[Fault]:
    """The faults of a section of faults.yaml."""
    text = (Path(__file__).parent / "faults.yaml").read_text()
    return [Fault(**each) for each in yaml.safe_load(text)[section]]
