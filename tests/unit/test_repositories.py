"""`--script git+URL@REF`: the commit is known before the install, and the pods clone that one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from bireme.cli import cli
from tests.support import git_server
from tests.support.git_server import Repository, git

CLONE = Path(__file__).parents[2] / "charts/training/files/clone.sh"
JOBS = pytest.mark.parametrize(
    "job", [["torch-elastic"], ["paddle"], ["mpi-training", "--image", "team/mpi:1"]]
)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with git_server.serving(tmp_path / "jobs") as served:
        served.commit("one", {"train.py": "print(1)\n", "src/main.py": "print('main')\n"})
        yield served


def bireme(*words: str) -> Result:
    return CliRunner().invoke(cli, words, env={"COLUMNS": "500"})


def source(result: Result) -> str:
    """What the plan says that the pods train."""
    assert result.exit_code == 0, result.exception or result.output
    return str(json.loads(result.stdout)["source"])


def cloned(
    folder: Path, url: str, ref: str = "", path: str = "train.py", **env: str
) -> subprocess.CompletedProcess[str]:
    """What the init container does, in ``folder``."""
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        ["sh", "-c", CLONE.read_text(), "clone", url, ref, path],
        cwd=folder, env={"PATH": os.environ["PATH"], "HOME": str(folder.parent), **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@JOBS
def test_the_plan_and_the_pods_have_the_commit_at_which_a_branch_is_now(
    job: list[str], repository: Repository
) -> None:
    first = git(repository.folder, "rev-parse", "HEAD").strip()
    # A tag with a message is an object of its own.
    git(repository.folder, "tag", "-a", "v1", "-m", "one")
    git(repository.folder, "switch", "--quiet", "-c", "feature/main")
    second = repository.commit("two", {"train.py": "print(2)\n"})
    refs = {"@main": first, "@feature/main": second, "": second, f"@{first}": first, "@v1": first}
    for ref, commit in refs.items() if job == ["paddle"] else [("@v1", first)]:
        assert source(bireme("plan", *job, "-o", "json", "--script", f"git+{repository.url}{ref}")) == (
            f"{repository.url}@{commit}"
        )


def test_a_ref_that_is_not_there_is_refused(repository: Repository) -> None:
    result = bireme("plan", "paddle", "--script", f"git+{repository.url}@v9")
    assert f"{repository.url} has no branch or tag v9" in str(result.exception)


@pytest.mark.parametrize(
    "given",
    ["git+ssh://git@example.com/a.git", "git+https://me:secret@example.com/a", "git+https://example.com"],
)
def test_an_address_with_a_password_or_of_another_kind_is_refused(given: str) -> None:
    assert "git+https://HOST/PATH@REF, without a name or a password" in str(
        bireme("plan", "paddle", "--script", given).exception
    )


def test_a_repository_that_is_private_is_cloned_by_name_and_the_reader_is_told(tmp_path: Path) -> None:
    with git_server.serving(tmp_path / "jobs", password="s3cret") as served:
        served.commit("one", {"train.py": "print(1)\n"})
        result = bireme("plan", "paddle", "--script", f"git+{served.url}@main")
        assert f"trains {served.url}@main as it is when a pod starts" in result.stdout
        refused = cloned(tmp_path / "a", served.url, "main")
        done = cloned(tmp_path / "b", served.url, "main", GIT_USERNAME="team", GIT_PASSWORD="s3cret")
    assert refused.returncode == 1
    assert "cannot be cloned at main" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b/train.py").read_text() == "print(1)\n"
    assert "s3cret" not in (tmp_path / "b/.git/config").read_text()


def test_a_values_file_may_name_the_path_and_the_secret(repository: Repository, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("{script: old, launch: {setup: 'true', git: {path: src/main.py, existingSecret: git}}}")
    result = bireme("render", "paddle", "-f", str(file), "--script", f"git+{repository.url}")
    assert result.exit_code == 0, result.exception
    job = next(each for each in yaml.safe_load_all(result.stdout) if each and each["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    (clone,) = (each for each in pod["initContainers"] if each["name"] == "git")
    assert clone["command"][-1] == "src/main.py"
    assert {each["name"] for each in clone["env"] if "valueFrom" in each} == {"GIT_USERNAME", "GIT_PASSWORD"}
    assert "/bireme/script/src/main.py" in pod["containers"][0]["args"]
    assert pod["containers"][0]["workingDir"] == "/bireme/script"


def test_a_file_takes_the_place_of_the_repository_of_a_values_file(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("{launch: {git: {url: https://example.com/a, ref: main}}}")
    (tmp_path / "train.py").write_text("print(1)")
    given = ("-f", str(tmp_path / "values.yaml"), "--script", str(tmp_path / "train.py"))
    assert "source" not in json.loads(bireme("plan", "paddle", "-o", "json", *given).stdout)


def test_a_pod_gets_a_branch_a_tag_or_any_commit(repository: Repository, tmp_path: Path) -> None:
    first = git(repository.folder, "rev-parse", "HEAD").strip()
    git(repository.folder, "tag", "v1")
    repository.commit("two", {"train.py": "print(2)\n"})
    repository.commit("three", {"train.py": "print(3)\n"})
    for number, (ref, text) in enumerate({"": "3", "main": "3", "v1": "1", first: "1"}.items()):
        done = cloned(tmp_path / str(number), repository.url, ref)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / str(number) / "train.py").read_text() == f"print({text})\n"


def test_a_container_that_starts_again_finds_its_clone(repository: Repository, tmp_path: Path) -> None:
    assert cloned(tmp_path / "a", repository.url, "main").returncode == 0
    last = repository.commit("two", {"train.py": "print(2)\n"})
    assert cloned(tmp_path / "a", repository.url, "main").stdout == f"{repository.url} at {last}\n"


def test_a_path_that_is_not_in_the_repository_is_named(repository: Repository, tmp_path: Path) -> None:
    done = cloned(tmp_path / "a", repository.url, "main", "main.py")
    assert done.returncode == 78
    assert f"{repository.url} at main has no main.py: set launch.git.path" in done.stderr


def test_a_repository_that_only_a_proxy_reaches_is_cloned_through_it(
    repository: Repository, tmp_path: Path
) -> None:
    """The server of the test is the proxy: the host of the address is nowhere."""
    url, proxy = "http://git.invalid/jobs.git", repository.url.removesuffix("/jobs.git")
    script = bireme("render", "paddle", "--set", f"launch.git.url={url},launch.git.proxy={proxy}")
    jobs = [each for each in yaml.safe_load_all(script.stdout) if each["kind"] == "Job"]
    clone = jobs[0]["spec"]["template"]["spec"]["initContainers"][0]
    env = {each["name"]: each["value"] for each in clone["env"] if "PROXY" in each["name"].upper()}
    done = cloned(tmp_path / "a", url, "main", **env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a/train.py").read_text() == "print(1)\n"
