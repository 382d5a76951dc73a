"""Raise the charts' default images to the newest patch releases that their registries have.

python hack/images/refresh.py           # says which are newer, exit 1 if any are
python hack/images/refresh.py --write   # writes them into charts/*; then `make docs golden`
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import click

from bireme.core.errors import BiremeError, run
from bireme.core.paths import Paths
from bireme.tools import Toolbox

_IMAGE = re.compile(r"registry: (\S+)\n.*\n *repository: (\S+)\n.*\n *tag: (\S+)")
# The third number of a version, and what AWS and NVIDIA count after it.
_PATCH = re.compile(r"^(v?\d+\.\d+\.)\d+|-eksbuild\.\d+|-\d+\.\d+\.\d+")


def newest(tag: str, tags: Iterable[str]) -> str:
    """The newest patch release of ``tag`` among ``tags``, for the same variant; itself if there is none."""

    def numbers(each: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", each)]

    variant = _PATCH.sub(r"\1#", tag)
    return max([tag, *(each for each in tags if _PATCH.sub(r"\1#", each) == variant)], key=numbers)


def refresh(charts: Path, tags: Callable[[str], Iterable[str]], write: bool) -> list[str]:
    """A sentence for each image with a newer patch release. ``tags`` has those of an image, by its name.

    ``write`` puts them into the charts, and a version that names the image's into Chart.yaml.
    """
    found = []
    for values in sorted(charts.glob("*/values.yaml")):
        about = values.with_name("Chart.yaml")
        facts = about.read_text()

        def raised(match: re.Match[str], chart: str = values.parent.name) -> str:
            nonlocal facts
            registry, repository, tag = match.groups()
            image = f"{registry}/{repository}"
            new = tag if registry == '""' else newest(tag, tags(image))
            if new != tag:
                found.append(f"charts/{chart}: {image} is {tag}, {new} is there")
                old, now = (f'appVersion: "{each.lstrip("v").partition("-")[0]}"' for each in (tag, new))
                facts = facts.replace(old, now)
            return match[0].removesuffix(tag) + new

        text = _IMAGE.sub(raised, values.read_text())
        if write:
            values.write_text(text)
            about.write_text(facts)
    return found


def tags_of(image: str, crane: Path) -> tuple[str, ...]:
    """All tags that the registry of ``image`` has for it; BiremeError where it does not answer."""
    done = subprocess.run([str(crane), "ls", image], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BiremeError(f"{image}: {done.stderr.strip()}")
    return tuple(done.stdout.split())


@click.command(help=__doc__)
@click.option("--write", is_flag=True, help="Write charts/*")
@click.pass_context
def main(context: click.Context, write: bool) -> None:
    paths = Paths.discover()
    crane = Toolbox(paths).path("crane")
    found = refresh(paths.charts, cache(lambda image: tags_of(image, crane)), write)
    click.echo("\n".join(found) or "as in the registries")
    context.exit(1 if found and not write else 0)


if __name__ == "__main__":
    run(main)
