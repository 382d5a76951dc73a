"""Regenerate the files that follow from others.

`instances` writes the lists of instance types that select the nodes of agents; `schemas` bundles
charts/*/values.schema.json; `docs` makes charts/*/README.md by helm-docs, draws the picture of the README and
lists the rules of `bireme audit`; `crds` makes the CustomResourceDefinition of charts/mpijob from the Go
types of the pinned mpi-operator.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import agents
import yaml

from bireme import Cluster
from bireme.audit.rules import list_of_rules
from bireme.core.errors import BiremeError
from bireme.core.paths import Paths
from bireme.core.quantities import ACCELERATORS
from bireme.live.nccl import load_measured
from bireme.plan.instances import HYPERPOD, load_instances
from bireme.plan.picture import svg
from bireme.schemas import bundle
from bireme.tools import Toolbox

INSTANCE_TYPES = "common/files/instance-types.yaml"


def instance_types(paths: Paths) -> str:
    """The types with EFA and those with NVIDIA GPUs, as charts/common reads them."""
    instances = load_instances(paths).values()
    upstream = agents.known_types(paths)
    own = {
        "efa": {each.type for each in instances if each.efa},
        "nvidia": {each.type for each in instances if each.accelerator.resource == ACCELERATORS[0]},
    }
    lists = {
        kind: sorted(types | upstream[kind] | {HYPERPOD + each for each in types})
        for kind, types in own.items()
    }
    bandwidth: dict[str, dict[str, float]] = {}
    for each in load_measured(paths):
        bandwidth.setdefault(str(each.asked.type), {})[str(each.asked.efa)] = each.maximum
    head = "# Made by `make instances` from values/instances, values/bandwidth.yaml and hack/agents.yaml.\n"
    return head + yaml.safe_dump({**lists, "bandwidth": bandwidth})


def chart_readme(paths: Paths, toolbox: Toolbox, chart: str) -> str:
    """The README of ``chart`` as helm-docs makes it from values.yaml, Chart.yaml and README.md.gotmpl."""
    command = [str(toolbox.path("helm-docs")), "--chart-search-root", str(paths.charts / chart)]
    command += ["--dry-run", "--log-level", "warning", "--sort-values-order", "file"]
    made = subprocess.run(command, cwd=paths.root, capture_output=True, text=True, check=True)
    return made.stdout.strip() + "\n"


def readme_picture() -> str:
    """The plan of imagenet-efa with three workers, drawn."""
    files = ["p4d.24xlarge", "imagenet-efa"]
    return svg(Cluster().plan("torch-elastic", "imagenet", files=files, values={"workers": 3}))


def write_docs(paths: Paths) -> None:
    """Write all generated documents."""
    toolbox = Toolbox(paths)
    for template in paths.charts.glob("*/README.md.gotmpl"):
        made = chart_readme(paths, toolbox, template.parent.name)
        template.with_name("README.md").write_text(made)
    (paths.root / "docs/plan.svg").write_text(readme_picture())
    audit = paths.root / "docs/audit.md"
    before, heading, _ = audit.read_text().rpartition("## The rules\n")
    audit.write_text(f"{before}{heading}\n{list_of_rules()}")


MPI_JOB_CRD = "charts/mpijob/files/mpijobs.kubeflow.org.yaml"
# The columns of `kubectl get mpijobs`, which the Go types do not define.
_COLUMNS = [
    {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
    {"name": "Workers", "type": "integer", "jsonPath": ".spec.mpiReplicaSpecs.Worker.replicas"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def mpi_job_crd(paths: Paths, toolbox: Toolbox) -> str:
    """The ``spec`` of the CustomResourceDefinition MPIJob, as YAML, by controller-gen.

    Descriptions inside pod templates are left out: they are those of Kubernetes, and two thirds of the text.
    """
    types = "github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/v2beta1"
    command = [str(toolbox.path("controller-gen")), "crd:generateEmbeddedObjectMeta=true"]
    command += [f"paths={types}", "output:stdout"]
    path = os.pathsep.join([str(toolbox.go().parent), os.environ["PATH"]])
    go = {"GOWORK": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    environment = os.environ | go | {"PATH": path}
    folder = paths.hack / "tools/mpi-operator"
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BiremeError(f"controller-gen cannot read {types}: {done.stderr.strip()}")
    (crd,) = yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)
    (version,) = crd["spec"]["versions"]
    version["additionalPrinterColumns"] = _COLUMNS
    _shorten(version["schema"]["openAPIV3Schema"])
    return yaml.dump({"spec": crd["spec"]}, Dumper=yaml.CSafeDumper, width=100)


def _shorten(schema: Any, in_template: bool = False) -> None:
    """Take the descriptions out of pod templates in ``schema``."""
    if in_template and isinstance(schema.get("description"), str):
        del schema["description"]
    for name, child in (schema.get("properties") or {}).items():
        _shorten(child, in_template or name == "template")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            _shorten(schema[keyword], in_template)


def main(what: str, paths: Paths) -> None:
    """Write the files of this name."""
    match what:
        case "instances":
            (paths.charts / INSTANCE_TYPES).write_text(instance_types(paths))
        case "crds":
            (paths.root / MPI_JOB_CRD).write_text(mpi_job_crd(paths, Toolbox(paths)))
        case "schemas":
            bundle.write(paths)
        case "docs":
            write_docs(paths)
        case _:
            sys.exit(f"there is nothing to generate that is called {what}")


if __name__ == "__main__":
    main(sys.argv[1], Paths.discover())
