"""The files about the project: documents, hooks and templates name what is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    file
    for pattern in ("*.md", ".github/**/*.md", "docs/**/*.md", "images/*.md", "charts/*/README.md")
    for file in ROOT.glob(pattern)
)
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


def links(document: Path) -> list[str]:
    """The targets of links to files, without the place in the file."""
    targets = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    return [target.partition("#")[0] for target in targets if "://" not in target and target[0] != "#"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_of_a_document_leads_to_a_file(document: Path) -> None:
    assert [target for target in links(document) if not (document.parent / target).exists()] == []


def test_the_map_of_the_documents_has_all_of_them() -> None:
    documents = {file.relative_to(ROOT / "docs") for file in (ROOT / "docs").rglob("*.md")}
    assert {str(file) for file in documents} == {"README.md", *links(ROOT / "docs/README.md")} - {
        target for target in links(ROOT / "docs/README.md") if target.startswith("../")
    }


def test_the_readme_leads_to_the_documents_a_newcomer_needs() -> None:
    assert {"docs/README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} <= set(
        links(ROOT / "README.md")
    )


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_every_hook_runs_a_command_that_is_there(hook: dict[str, str]) -> None:
    program = hook["entry"].split()[0]
    if not program.startswith(".venv/"):
        assert subprocess.run([ROOT / program, "/dev/null"], cwd=ROOT, capture_output=True).returncode == 1
        return
    helped = subprocess.run([ROOT / program, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert helped.returncode == 0, helped.stderr


def test_make_lint_runs_what_the_hooks_run() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("$(BIN)/", ".venv/bin/")
    of_venv = [hook["entry"] for hook in HOOKS if hook["entry"].startswith(".venv/")]
    assert of_venv
    assert [entry for entry in of_venv if not re.search(rf"^\t{re.escape(entry)}\b", makefile, re.M)] == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("charts: one pod template", ""),
        ("charts: one pod template\n\nThree charts had a copy each.\n# a comment of git\n", ""),
        (f'Revert "{"a" * 80}"', ""),
        ("a" * 72, ""),
        ("a" * 73, "the subject has 73 characters, at most 72"),
        ("ä" * 72, ""),
        ("charts: one pod template\nThree charts had a copy each.", "the second line is not empty"),
        ("\n# nothing but a comment\n", "the subject is empty"),
    ],
)
def test_a_commit_message_has_a_short_subject_and_then_an_empty_line(
    message: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    checked = subprocess.run(
        [ROOT / "hack/lint/commit-subject", file],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == (1 if problem else 0)
    assert problem in checked.stderr


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda file: file.stem)
def test_an_issue_template_has_a_name_and_says_what_it_is_for(template: Path) -> None:
    head = template.read_text().split("---\n")[1]
    assert set(yaml.safe_load(head)) >= {"name", "about"}


def test_names_of_tests_have_at_most_80_characters() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    names = [name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)]
    assert len(names) > 500
    assert [name for name in names if len(name) > 80] == []
