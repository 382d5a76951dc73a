"""`bireme adopt`: the values that reproduce a job of another kind, and what becomes of each of its fields."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from bireme.adopt.jobs import BETTER, EQUAL, LOST, Adopted, Adopter
from bireme.adopt.parts import leaves
from bireme.adopt.programs import program_of
from bireme.adopt.tables import table
from bireme.audit.documents import Document, read, spelled
from bireme.cli import cli
from bireme.core.errors import BiremeError
from tests.render.adopt_fuzz import Fuzzer
from tests.render.conftest import AdopterWith
from tests.support.rendered import RenderChart, job_of

HERE = Path(__file__).parent
CASES: Mapping[str, Any] = yaml.safe_load((HERE / "adopt.yaml").read_text())
# Kinds whose fields are listed with those of a job.
FURTHER = ("TrainingRuntime", "AppWrapper")
BASES: Mapping[str, Any] = yaml.safe_load((HERE.parent / "unit/audit/bases.yaml").read_text())


@pytest.fixture(scope="session")
def adopter(adopter_with: AdopterWith) -> Adopter:
    return adopter_with({"args": ["train.py"]})


def objects(folder: Path, text: str) -> list[Document]:
    file = folder / "job.yaml"
    file.write_text(text)
    documents, passed_over = read([str(file)], {})
    assert passed_over == []
    return documents


def jobs(folder: Path, text: str) -> list[Document]:
    return [each for each in objects(folder, text) if each.kind in table("charts")]


def differing(found: Any, wanted: Any, place: str = "") -> Iterator[str]:
    """The places at which ``found`` has not what ``wanted`` says; mappings may have more."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key, each in wanted.items():
            yield from differing(found.get(key, "(not there)"), each, f"{place}.{key}")
    elif found != wanted:
        yield f"{place} is {found}, not {wanted}"


def unnamed(document: Document, adopted: Adopted, of: str = "") -> list[str]:
    """The leaves of a manifest for which no outcome stands, in fields that begin with ``of``."""
    fields = {each.field for each in adopted.outcomes}
    return [
        spelled(leaf.place)
        for leaf in leaves(document.content)
        if not any(
            f"{of}{spelled(leaf.place[:length])}" in fields for length in range(1, len(leaf.place) + 1)
        )
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_job_becomes_values_and_every_other_field_is_named(
    name: str, adopter_with: AdopterWith, tmp_path: Path
) -> None:
    case = CASES[name]
    there = objects(tmp_path, case["manifest"])
    [document] = [each for each in there if each.kind in table("charts")]
    further = [each for each in (*there, document.around) if each and each.kind in FURTHER]
    adopted = adopter_with(case.get("given", {})).adopt(document, there)
    assert adopted.chart == case["chart"]
    assert list(differing(adopted.values, case["values"])) == []
    said = {each.field: (each.outcome, each.why) for each in adopted.outcomes}
    for outcome, expected in (
        (EQUAL, case.get("equal", {})),
        (BETTER, case.get("better", {})),
        (LOST, case.get("lost", {})),
    ):
        for ending, word in expected.items():
            found = [each for field, each in said.items() if field.endswith(ending)]
            assert found, ending
            assert [each for each in found if each[0] != outcome or word not in each[1]] == [], ending
    lost = [each for each in adopted.outcomes if each.outcome == LOST]
    assert [each for each in lost if not each.field.endswith(tuple(case.get("lost", {})))] == []
    assert unnamed(document, adopted) == []
    assert [each for one in further for each in unnamed(one, adopted, f"{one.kind}/{one.name}: ")] == []


REFUSED = [
    ("the-first-mpijob", "gpusPerNode: 8", "", r"say it as spec\.gpusPerNode"),
    ("pytorchjob", "image: team/vision:1.4", "image: IMAGE_URL", "^IMAGE_URL is no image: fill it in"),
    ("trainjob", "image: a/b:1\n", "\n", "it names no image, so give its runtime too"),
    (
        "volcano-with-parameter-servers",
        "command: [python, server.py]",
        "env: [{name: TRAINING_ROLE, value: PSERVER}]",
        "has pods that are pservers",
    ),
    ("python-in-a-pytorchjob", "command: [python3, -u", "args: [-u", "names no command"),
    ("paddlejob-of-kubeflow", "command: [python]", "command: 7", "command has another type than"),
    ("volcano-with-mpirun", "hello --fast;", "hello --fast; sleep 9", "starts other pods"),
    ("a-trainjob-with-a-runtime-of-mpi", "runLauncherAsNode: true", "mpiX: 1", "its launcher has no rank"),
]


@pytest.mark.parametrize(("name", "old", "new", "says"), REFUSED)
def test_what_only_an_operator_or_an_image_knows_is_refused(
    name: str, old: str, new: str, says: str, adopter_with: AdopterWith, tmp_path: Path
) -> None:
    there = objects(tmp_path, CASES[name]["manifest"].replace(old, new))
    [document] = [each for each in there if each.kind in table("charts")]
    with pytest.raises(BiremeError, match=says):
        adopter_with({}).adopt(document, there)


# --- the programs ---


SHELL = ["bash", "-c"]
PROGRAMS = [
    (["torchrun", "--nnodes=2", "--role", "x", "a.py", "-a"], "torchrun", "", ["--role", "x", "a.py", "-a"]),
    (["python3", "-m", "torch.distributed.run", "-m", "pkg.train"], "torchrun", "", ["-m", "pkg.train"]),
    (["sh", "-ec", "cd /src && torchrun a.py"], "torchrun", "cd /src", ["a.py"]),
    ([*SHELL, "A=1 torchrun a.py"], "torchrun", "export A=1", ["a.py"]),
    ([*SHELL, "echo $(HOME)\ntorchrun a.py $HOME"], "torchrun", "echo ${HOME}", ["a.py", "$(HOME)"]),
    (
        ["accelerate", "launch", "--num_processes", "8", "--dynamo", "a.py"],
        "accelerate",
        "",
        ["--dynamo", "a.py"],
    ),
    (["accelerate", "launch", "--multi_gpu", "a.py"], "accelerate", "", ["a.py"]),
    (["deepspeed", "--hostfile", "/h", "a.py"], "deepspeed", "", ["a.py"]),
    (["deepspeed", "--no_ssh", "a.py"], "deepspeed", "", ["a.py"]),
    (["mpirun", "-np", "4", "-q", "hello", "-t", "x"], "mpirun", "", ["-q", "hello", "-t", "x"]),
    (["mpiexec", "-genv", "A", "1", "-n", "4", "hello"], "mpirun", "", ["-genv", "A", "1", "hello"]),
    (["python", "-u", "a.py"], "python", "", ["a.py"]),
    ([], "", "", []),
]
WHOLE = (
    "torchrun a.py > log", "torchrun a.py $UNKNOWN", "torchrun a.py; sleep 9", "torchrun 'a.py",
    "if true; then\n torchrun a.py\nfi", "/opt/run.sh",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "launcher", "setup", "program"),
    [*PROGRAMS, *(([*SHELL, text], "node", "", [*SHELL, text]) for text in WHOLE)],
)
def test_a_command_is_taken_apart_or_kept_whole(
    words: list[str], launcher: str, setup: str, program: list[str]
) -> None:
    found = program_of(words, ["HOME"])
    assert (found.launcher, found.setup, [*found.options, *found.words]) == (launcher, setup, program)


# --- whatever is in the files ---


@pytest.mark.parametrize("base", [name for name in BASES if name not in ("anchors", "stateful")])
def test_no_leaf_of_any_job_is_lost_in_silence(adopter: Adopter, base: str, tmp_path: Path) -> None:
    for document in jobs(tmp_path, yaml.safe_dump_all(BASES[base]["objects"])):
        assert unnamed(document, adopter.adopt(document)) == []


def test_a_stateful_set_that_serves_is_no_training(adopter: Adopter, tmp_path: Path) -> None:
    [etcd] = jobs(tmp_path, yaml.safe_dump_all(BASES["stateful"]["objects"]))
    with pytest.raises(BiremeError, match="starts no training"):
        adopter.adopt(etcd)


OURS = [
    ("torch-elastic", "allreduce"),
    ("torch-elastic", "c10d"),
    ("torch-elastic", "external-etcd"),
    ("torch-elastic", "full"),
    ("mpi-training", "mpijob"),
    ("mpi-training", "elastic"),
    ("paddle", "collective"),
]


@pytest.mark.parametrize(("chart", "name"), OURS)
def test_what_our_charts_render_is_adopted_with_an_equal_plan(
    adopter: Adopter, render: RenderChart, chart: str, name: str, tmp_path: Path
) -> None:
    rendered = render(chart, files=[f"charts/{chart}/ci/{name}-values.yaml"])
    [document] = jobs(tmp_path, yaml.safe_dump(job_of(rendered)))
    adopted = adopter.adopt(document)
    assert adopted.chart == chart
    assert unnamed(document, adopted) == []
    plans = [each for each in adopted.outcomes if each.field in ("pods", "ranks", "bounds", "processes")]
    assert [each for each in plans if each.outcome != EQUAL] == []


# --- the command ---


def adopt(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["adopt", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(CASES["pytorchjob"]["manifest"])
    return file


def test_the_values_go_to_a_file_that_plans_the_same_job(job: Path, tmp_path: Path) -> None:
    result = adopt(job, "-o", tmp_path / "values.yaml")
    assert result.exit_code == 0
    command = f"bireme install torch-elastic vision -n ml -f p4d.24xlarge -f {tmp_path / 'values.yaml'}"
    assert result.stdout.splitlines()[0] == command
    arguments = command.removeprefix("bireme install ").split()
    planned = CliRunner().invoke(cli, ["plan", *arguments, "-o", "json"], catch_exceptions=False)
    workloads = {each["kind"]: each["replicas"] for each in json.loads(planned.stdout)["workloads"]}
    assert workloads["Job"] == 2


def test_without_a_file_the_command_names_one_and_each_field_is_a_line(job: Path) -> None:
    job.write_text(job.read_text().replace("owner: vision}", 'owner: vision}, annotations: {a: "1\\n2"}'))
    fields, values = adopt(job).stdout.split("What -o values.yaml writes:\n")
    first, *lines = fields.strip().splitlines()
    assert first.endswith("-f p4d.24xlarge -f values.yaml")
    assert [each for each in lines if not each.startswith(("  equal: ", "  better: ", "  not "))] == []
    assert '  equal: metadata.annotations.a: "1\\n2"' in lines
    assert yaml.safe_load(values)["workers"] == 2


def test_what_the_manifest_does_not_say_is_asked_for_and_given_by_options(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(CASES["trainjob"]["manifest"])
    [asked] = json.loads(adopt(file, "-o", "json").stdout)["jobs"]
    assert [each.split(",")[0] for each in asked["asks"]] == ["the type of its nodes", "a user"]
    given = adopt(file, "-f", "p5.48xlarge", "--set", "podSecurityContext.runAsUser=1000", "-o", "json")
    [told] = json.loads(given.stdout)["jobs"]
    assert told["asks"] == []
    assert (told["values"]["instance"]["type"], told["values"]["podSecurityContext"]["runAsUser"]) == (
        "p5.48xlarge",
        1000,
    )


def test_what_an_option_says_instead_is_not_lost(job: Path) -> None:
    given = ("--set", "image.repository=team/other,image.tag=v2", "--set", "args={other.py}", "-o", "json")
    [told] = json.loads(adopt(job, *given).stdout)["jobs"]
    said = {each["why"] for each in told["outcomes"] if re.search(r"\.(image|args)$", each["field"])}
    assert said == {"an option says it instead"}


def test_placeholders_are_filled_in_or_asked_for(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(CASES["jobset"]["manifest"].replace("replicas: 2", "replicas: $NODES"))
    (tmp_path / "job.env").write_text("export NODES=3\n")
    refused = adopt(tmp_path / "job.yaml")
    assert (refused.exit_code, "--env-file" in refused.stderr) == (1, True)
    filled = adopt(tmp_path / "job.yaml", "--env-file", tmp_path / "job.env", "-o", "json")
    assert json.loads(filled.stdout)["jobs"][0]["values"]["workers"] == 6


def test_a_count_that_is_null_is_one_sentence_that_names_the_job_once(job: Path) -> None:
    text = job.read_text()
    job.write_text(re.sub(r"(nvidia.com/gpu: ?)\w+", r"\1null", text))
    assert job.read_text() != text
    refused = adopt(job)
    assert (refused.exit_code, refused.stderr.count("PyTorchJob/")) == (1, 1), refused.stderr


def test_what_comes_along_is_kept_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all(BASES["job"]["objects"]))
    told = json.loads(adopt(tmp_path / "job.yaml", "-o", "json").stdout)["beside"]
    assert [each.split(":")[0] for each in told] == [
        "Service/resnet", "PersistentVolumeClaim/data", "ConfigMap/code", "Secret/key"
    ]  # fmt: skip
    assert ["keep" in each for each in told] == [False, True, True, True]


def test_several_jobs_go_into_a_folder(job: Path, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(CASES["mpijob"]["manifest"])
    assert adopt(job, tmp_path / "other.yaml", "-o", tmp_path / "values").exit_code == 0
    assert sorted(each.name for each in (tmp_path / "values").iterdir()) == ["nccl.yaml", "vision.yaml"]


def test_what_is_not_ours_is_passed_over_with_a_line_each(job: Path, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("{{- if .Values.a }}\nkind: Job\n{{- end }}\n")
    (tmp_path / "b.yaml").write_text("kind: Job\nspec: {a: [1,\n")
    (tmp_path / "c.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "d.yaml").write_text("a: &a [*a]\n")
    result = adopt(tmp_path, "-o", "json")
    told = json.loads(result.stdout)
    assert (result.exit_code, len(told["jobs"]), len(told["failed"])) == (0, 1, 4)


def test_a_job_that_no_chart_takes_ends_with_1_beside_one_that_is_adopted(job: Path, tmp_path: Path) -> None:
    refused = CASES["jobset"]["manifest"].replace("replicas: 2", "replicas: $NODES")
    (tmp_path / "other.yaml").write_text(refused)
    result = adopt(job, tmp_path / "other.yaml", "-o", tmp_path / "values.yaml")
    assert (result.exit_code, (tmp_path / "values.yaml").exists()) == (1, True)


def test_two_jobs_of_one_name_are_not_written_over_each_other(job: Path, tmp_path: Path) -> None:
    (tmp_path / "again.yaml").write_text(job.read_text())
    with pytest.raises(BiremeError, match="two jobs are called vision: adopt their files one by one"):
        adopt(tmp_path, "-o", tmp_path / "values")


def test_a_folder_without_jobs_is_a_sentence(tmp_path: Path) -> None:
    result = adopt(tmp_path)
    assert (result.exit_code, "no job of a kind" in result.stderr) == (1, True)


def test_types_of_other_objects_in_a_file_are_none_of_its_concern(adopter: Adopter, tmp_path: Path) -> None:
    queue = (
        "---\nkind: ClusterQueue\napiVersion: kueue.x-k8s.io/v1beta1\nspec: {resources: [{name: [cpu]}]}\n"
    )
    job = CASES["volcano"]["manifest"].replace("{name: master,", "{dependsOn: {name: [a]}, name: master,")
    there = objects(tmp_path, f"{job}\n{queue}")
    assert adopter.adopt(there[0], there[1:]).release


def test_mutated_jobs_are_adopted_or_refused_with_a_sentence(adopter: Adopter, tmp_path: Path) -> None:
    fuzzer = Fuzzer(adopter, tmp_path)
    # The last ones had faults: a field that a sentence names is missing, and a patch empties the containers.
    seeds = (*range(20), 1250, 3094, 5606, 9261, 9793)
    assert [fault for seed in seeds if (fault := fuzzer.fault(seed))] == []


def test_a_container_without_a_name_is_laid_over_none(adopter: Adopter, tmp_path: Path) -> None:
    patched = CASES["a-trainjob-with-its-runtime"]["manifest"].replace(
        "containers: [{name: node, ", "containers: [{"
    )
    there = objects(tmp_path, patched)
    with pytest.raises(BiremeError, match="give each container the name of the one that it changes"):
        adopter.adopt(there[-1], there[:-1])


@pytest.mark.whole
def test_a_thousand_mutated_jobs_end_without_a_traceback(adopter: Adopter, tmp_path: Path) -> None:
    fuzzer = Fuzzer(adopter, tmp_path)
    assert [fault for seed in range(1000, 2000) if (fault := fuzzer.fault(seed))] == []


@pytest.mark.whole
@pytest.mark.parametrize("name", ["pytorchjob", "mpijob", "jobset"])
def test_a_job_without_any_one_of_its_fields_is_adopted_or_refused_with_a_sentence(
    adopter: Adopter, name: str, tmp_path: Path
) -> None:
    [document] = jobs(tmp_path, CASES[name]["manifest"])
    told = [each for each in leaves(document.content) if each.key not in ("apiVersion", "kind")]
    for leaf in told[::4]:
        content = json.loads(json.dumps(document.content))
        holder = content
        for key in leaf.place[:-1]:
            holder = holder[key]
        holder[leaf.place[-1]] = None
        for changed in jobs(tmp_path, yaml.safe_dump(content)):
            with contextlib.suppress(BiremeError):
                assert unnamed(changed, adopter.adopt(changed)) == []
