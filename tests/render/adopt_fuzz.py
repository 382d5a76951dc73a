"""Jobs of adopt.yaml with fields of any type, and those that end in anything but values or a sentence."""

from __future__ import annotations

import copy
import random
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bireme.adopt.jobs import Adopter
from bireme.adopt.tables import table
from bireme.audit.documents import read
from bireme.audit.rules import Auditor
from bireme.core.errors import BiremeError

HERE = Path(__file__).parent
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 10**12, 0.5, "", "x", "$NODES", "a b\nc", "'", "torchrun", "mpirun -np 2 a", [],
    [None], [1], ["a", "--b"], [[]], [{}], {}, {"a": None}, {"name": "x"}, {"value": 1}, {1: 2},
)  # fmt: skip
SLOW_SECONDS = 20


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, each in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield (*place, key)
        yield from places(each, (*place, key))


def mutated(objects: list[Any], chance: random.Random) -> list[Any]:
    """The objects with one to four fields removed, doubled, moved or of another type."""
    found = copy.deepcopy(objects)
    for _ in range(chance.randint(1, 4)):
        *way, last = chance.choice(list(places(found)))
        holder = found
        for key in way:
            holder = holder[key]
        kind = chance.choice(("type", "type", "type", "remove", "move"))
        if kind == "remove":
            del holder[last]
        elif kind == "move":
            other = found
            for key in chance.choice(list(places(found))):
                other = other[key]
            holder[last] = copy.deepcopy(other)
        else:
            holder[last] = copy.deepcopy(chance.choice(ODD))
        if not list(places(found)):
            break
    return found


class Fuzzer:
    """Adopts and audits mutated jobs."""

    def __init__(self, adopter: Adopter, folder: Path) -> None:
        self.adopter, self.auditor, self.file = adopter, Auditor(adopter.instances), folder / "job.yaml"
        cases: Mapping[str, Any] = yaml.safe_load((HERE / "adopt.yaml").read_text())
        self.bases = [[*yaml.safe_load_all(each["manifest"])] for each in cases.values()]

    def fault(self, seed: int) -> str:
        """What goes wrong with the job of ``seed``. "" where it is adopted or refused with a sentence."""
        chance, began = random.Random(seed), time.process_time()
        objects = mutated(chance.choice(self.bases), chance)
        self.file.write_text(yaml.safe_dump_all(objects))
        try:
            documents, _ = read([str(self.file)], {})
            self.auditor.audit(documents)
            for each in documents:
                if each.kind in table("charts"):
                    self.adopter.adopt(each, documents)
        except BiremeError:
            pass
        except Exception:
            return f"seed {seed}: {traceback.format_exc()[-900:]}"
        took = time.process_time() - began
        return f"seed {seed}: {took:.0f} s" if took > SLOW_SECONDS else ""
