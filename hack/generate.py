"""Write what is generated anew.

`schemas` bundles charts/*/values.schema.json; `docs` makes charts/*/README.md by helm-docs and draws the
picture of the README.
"""

from __future__ import annotations

import subprocess
import sys

from bireme import schemas, values
from bireme.instances import load_instances
from bireme.paths import Paths
from bireme.picture import svg
from bireme.render import Renderer, RenderRequest
from bireme.tools import Toolbox
from bireme.topology import expand


def chart_readme(paths: Paths, toolbox: Toolbox, chart: str) -> str:
    """The README of ``chart`` as helm-docs makes it from values.yaml, Chart.yaml and README.md.gotmpl."""
    command = [
        toolbox.path("helm-docs"),
        "--chart-search-root",
        paths.charts / chart,
        "--dry-run",
        "--log-level",
        "warning",
    ]
    made = subprocess.run(command, cwd=paths.root, capture_output=True, text=True, check=True)
    return made.stdout.strip() + "\n"


def readme_picture(paths: Paths, toolbox: Toolbox) -> str:
    """The plan of imagenet-efa with three workers, drawn."""
    files = [paths.values / "instances/p4d.24xlarge.yaml", paths.values / "workloads/imagenet-efa.yaml"]
    request = RenderRequest(
        paths.charts / "torch-elastic", values.load(files, ["workers=3"]), release="imagenet"
    )
    manifests = Renderer(toolbox, paths).render(request).manifests
    return svg(expand(request.release, request.namespace, manifests, load_instances(paths)))


def documented_charts(paths: Paths) -> list[str]:
    """The charts that have a README of their own."""
    return sorted(template.parent.name for template in paths.charts.glob("*/README.md.gotmpl"))


def write_docs(paths: Paths) -> None:
    """All generated docs."""
    toolbox = Toolbox(paths)
    for name in documented_charts(paths):
        (paths.charts / name / "README.md").write_text(chart_readme(paths, toolbox, name))
    (paths.root / "docs/plan.svg").write_text(readme_picture(paths, toolbox))


if __name__ == "__main__":
    {"schemas": schemas.write, "docs": write_docs}[sys.argv[1]](Paths.discover())
