"""`--script` makes a file or a folder of the user's the program of a job."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bireme.cli import cli

Write = Callable[[Mapping[str, str | bytes]], Path]
MPI = ("mpi-training", "--image", "team/mpi:1")
JOBS = pytest.mark.parametrize("job", [("torch-elastic",), ("paddle",), MPI], ids=lambda job: job[0])


def bireme(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], env={"COLUMNS": "500"})


def refusal(*words: str | Path) -> str:
    """The one sentence with which `bireme` ends."""
    result = bireme(*words)
    assert result.exit_code == 1
    assert "\n" not in str(result.exception)
    return str(result.exception)


def mounted(result: Result) -> dict[str, bytes]:
    """What is in /bireme/script, by path."""
    assert result.exit_code == 0, result.exception or result.output
    objects = json.loads(result.stdout)
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Job"]
    (volume,) = {
        json.dumps(volume["configMap"])
        for pod in pods
        for volume in pod["volumes"]
        if volume["name"] == "script"
    }
    items = json.loads(volume)
    (kept,) = (
        each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"] == items["name"]
    )
    content = {key: text.encode() for key, text in kept.get("data", {}).items()}
    content |= {key: base64.b64decode(text) for key, text in kept.get("binaryData", {}).items()}
    paths = {each["key"]: each["path"] for each in items.get("items", [])}
    return {paths.get(key, key): each for key, each in content.items()}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write files into a folder `work`, by path."""

    def writing(files: Mapping[str, str | bytes]) -> Path:
        for name, content in files.items():
            file = tmp_path / "work" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path / "work"

    return writing


@JOBS
def test_a_file_is_the_script_of_each_job_chart(job: tuple[str, ...], write: Write) -> None:
    script = write({"mnist.py": "print('é')\r\n"}) / "mnist.py"
    assert mounted(bireme("render", *job, "--script", script, "-o", "json")) == {
        "train.py": "print('é')\r\n".encode()
    }


def test_a_folder_brings_its_modules_and_its_data(write: Write) -> None:
    files: dict[str, str | bytes] = {
        "train.py": "from lib import net\n",
        "lib/__init__.py": "",
        "lib/net.py": "import helpers\n\x0c\n",
        "helpers.py": "x = 1\n",
        "data/words.pickle": bytes(range(256)),
        "prepare.py": "print(2)\n",
    }
    folder = write({**files, ".git/config": "x", "__pycache__/a.pyc": b"\0", "lib/.env": "KEY=1"})
    found = mounted(bireme("render", "torch-elastic", "--script", folder, "-o", "json"))
    assert found == {name: each.encode() if isinstance(each, str) else each for name, each in files.items()}


@pytest.mark.parametrize(
    ("files", "there"),
    [
        (["main.py"], {"train.py": "main.py"}),
        (["mnist.py", "conf.yaml"], {"train.py": "mnist.py", "conf.yaml": "conf.yaml"}),
        (["main.py", "util.py"], {"train.py": "main.py", "main.py": "main.py", "util.py": "util.py"}),
        (["train.py", "main.py"], {"train.py": "train.py", "main.py": "main.py"}),
        (["go.py", "lib/a.py"], {"train.py": "go.py", "go.py": "go.py", "lib/a.py": "lib/a.py"}),
    ],
)
def test_a_folder_starts_with_train_main_or_its_only_script(
    write: Write, files: list[str], there: dict[str, str]
) -> None:
    """Other modules may import the script under its own name too."""
    folder = write({name: f"'{name}'" for name in files})
    found = mounted(bireme("render", "torch-elastic", "--script", folder, "-o", "json"))
    assert {path: content.decode().strip("'") for path, content in found.items()} == there


def test_it_wins_over_a_values_file_whose_other_values_stay(write: Write) -> None:
    folder = write(
        {"train.py": "new", "values.yaml": "{script: old, launch: {files: {a.txt: A}}, workers: 2}"}
    )
    given = ("render", "torch-elastic", "-f", folder / "values.yaml", "-o", "json", "--script")
    assert mounted(bireme(*given, folder / "train.py")) == {"train.py": b"new", "a.txt": b"A"}
    whole = bireme(*given, folder)
    assert set(mounted(whole)) == {"train.py", "values.yaml"}
    (job,) = (each for each in json.loads(whole.stdout) if each["kind"] == "Job")
    assert job["spec"]["completions"] == 2


@pytest.mark.parametrize(
    ("files", "question"),
    [
        (["a.py", "b.py"], "which file starts, a.py or b.py? Call it train.py"),
        (["lib/a.py", "data.txt"], "which file starts? There is no Python file (.py) at its top"),
    ],
)
def test_a_folder_without_one_start_is_asked_about(write: Write, files: list[str], question: str) -> None:
    folder = write(dict.fromkeys(files, "1"))
    assert refusal("plan", "torch-elastic", "--script", folder) == f"--script {folder}: {question}"


def test_what_is_no_program_for_python_is_refused(write: Write, tmp_path: Path) -> None:
    script = write({"run.sh": "echo"}) / "run.sh"
    assert "takes a .py file, a folder or git+URL" in refusal("plan", "torch-elastic", "--script", script)
    assert "there is no such file" in refusal("plan", "torch-elastic", "--script", tmp_path / "none.py")
    latin = write({"train.py": "é".encode("latin-1")}) / "train.py"
    assert "is not UTF-8 text" in refusal("plan", "torch-elastic", "--script", latin)


@pytest.mark.parametrize(
    "large",
    [b"a" * 1_000_000, random.Random(1).randbytes(260_000)],
    ids=["than a ConfigMap", "compressed than a release"],
)
def test_more_than_a_release_holds_is_refused_with_what_to_do(write: Write, large: bytes) -> None:
    folder = write({"train.py": "1", "data/large.bin": large})
    said = refusal("validate", "torch-elastic", "--script", folder)
    assert f"e.g. {folder}/data/large.bin with {len(large) // 1000} kB, on a claim (claims)" in said
    assert "into an image (--image)" in said


def test_links_to_files_are_followed_and_circles_refused(write: Write) -> None:
    folder = write({"train.py": "1"})
    (folder / "same.py").symlink_to(folder / "train.py")
    assert set(mounted(bireme("render", "torch-elastic", "--script", folder, "-o", "json"))) == {
        "train.py",
        "same.py",
    }
    (folder / "here").symlink_to(folder)
    assert "links back to a folder it lies in" in refusal("plan", "torch-elastic", "--script", folder)


def test_paddles_data_is_prepared_in_the_folder(write: Write) -> None:
    folder = write({"train.py": "1", "prepare.py": "import lib", "lib.py": "x = 1"})
    result = bireme(
        "render", "paddle", "--script", folder, "-o", "json",
        "--set-json", 'data.prep={"enabled": true, "args": ["/bireme/script/prepare.py"]}',
    )  # fmt: skip
    assert set(mounted(result)) == {"train.py", "prepare.py", "lib.py"}
    (data,) = (
        each
        for each in json.loads(result.stdout)
        if each["kind"] == "Job" and "-data-" in each["metadata"]["name"]
    )
    assert data["spec"]["template"]["spec"]["containers"][0]["workingDir"] == "/bireme/script"
