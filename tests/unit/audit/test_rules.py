"""The rules of `bireme audit`: each finds what breaks it, and nothing in a manifest that keeps it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.audit.documents import read
from bireme.audit.rules import Auditor, list_of_rules, load_rules
from bireme.core.findings import Finding
from bireme.plan.instances import Instance

HERE = Path(__file__).parent
BASES: Mapping[str, Any] = yaml.safe_load((HERE / "bases.yaml").read_text())
CASES: Mapping[str, Any] = yaml.safe_load((HERE / "cases.yaml").read_text())
RULES = {rule.name: rule for rule in load_rules()}
_LAUNCHER = ["spec", "mpiReplicaSpecs", "Launcher", "template", "spec", "containers", 0]


@pytest.fixture(scope="session")
def auditor(instances: Mapping[str, Instance]) -> Auditor:
    return Auditor(instances)


def at(value: Any, path: list[Any]) -> Any:
    for part in path:
        value = value[part]
    return value


def merge_patch(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(target.get(key), dict):
            merge_patch(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def manifest(base: str, patches: Mapping[str, Any]) -> str:
    """The objects of ``base`` with ``patches``, as one file."""
    objects = copy.deepcopy(BASES[base]["objects"])
    first, way = objects[0], BASES[base]["pod"]
    for name, patch in patches.items():
        if name == "object":
            merge_patch(first, patch)
        elif name == "launcher":
            merge_patch(at(first, _LAUNCHER), patch)
        elif name == "template":
            merge_patch(at(first, way[:-1]), patch)
        elif name == "pod":
            merge_patch(at(first, way), patch)
        elif name == "main":
            merge_patch(at(first, [*way, "containers", 0]), patch)
        elif name == "env":
            container = at(first, [*way, "containers", 0])
            own = [{"name": key, "value": value} for key, value in patch.items()]
            container["env"] = [*container.get("env", ()), *own]
        else:
            (other,) = [each for each in objects if each["kind"] == name]
            merge_patch(other, patch)
    return str(yaml.safe_dump_all(objects, sort_keys=False))


def findings(auditor: Auditor, folder: Path, text: str) -> list[Finding]:
    file = folder / "job.yaml"
    file.write_text(text)
    documents, passed_over = read([str(file)], {})
    assert passed_over == []
    return auditor.audit(documents)


@pytest.mark.parametrize("base", [name for name in BASES if name != "anchors"])
def test_a_manifest_without_a_mistake_has_no_findings(base: str, auditor: Auditor, tmp_path: Path) -> None:
    assert [str(each) for each in findings(auditor, tmp_path, manifest(base, {}))] == []


def test_each_rule_has_a_case_and_names_a_public_source() -> None:
    assert sorted(CASES) == sorted(RULES)
    assert [rule.name for rule in RULES.values() if not rule.source.startswith("https://")] == []


@pytest.mark.parametrize("rule", [name for name, case in CASES.items() if "keeps" in case])
def test_a_rule_is_silent_where_it_is_kept(rule: str, auditor: Auditor, tmp_path: Path) -> None:
    found = findings(auditor, tmp_path, manifest(CASES[rule]["base"], CASES[rule]["keeps"]))
    assert [str(each) for each in found if each.rule == rule] == []


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_breaks_it(rule: str, auditor: Auditor, tmp_path: Path) -> None:
    case = CASES[rule]
    text = manifest(case["base"], case.get("breaks", {}))
    if "text" in case:
        text = text.replace(*case["text"])
    found = [each for each in findings(auditor, tmp_path, text) if each.rule == rule]
    assert found
    for each in found:
        assert each.severity == RULES[rule].severity
        assert each.sentence
        assert each.remedy
        assert 1 <= each.line <= text.count("\n")


def test_the_document_lists_the_rules() -> None:
    page = (HERE.parents[2] / "docs/audit.md").read_text()
    assert page.endswith(f"## The rules\n\n{list_of_rules()}"), "make docs"
    assert all(f"| {name}, {rule.severity} |" in page for name, rule in RULES.items())
