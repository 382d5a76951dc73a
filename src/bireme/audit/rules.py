"""The rules of rules.yaml, and what they find."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

import yaml

from bireme.audit.documents import Document, spelled
from bireme.audit.facts import Facts, Known, Scope, facts_of, files_of
from bireme.core.findings import SEVERITIES, Finding
from bireme.plan.instances import Instance

if TYPE_CHECKING:
    import cel


@dataclass(frozen=True)
class Rule:
    """One check: the condition ``when`` about each thing of the kind ``of``, in CEL, and what it says.

    ``compares`` names the fields that are compared, ``source`` is the URL of the fact behind it.
    """

    name: str
    severity: Literal["error", "warning", "note"]
    of: str
    when: str
    says: str
    fix: str
    source: str
    at: str = ""
    compares: Sequence[str] = ()


class _Sentence(string.Formatter):
    """Fills facts into a sentence; lists become words with commas, and what is not told becomes "none"."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        try:
            return super().get_field(field_name, args, kwargs)
        except LookupError:
            return "none", field_name

    def vformat(self, format_string: str, args: Any, kwargs: Any) -> str:
        said = super().vformat(format_string, args, kwargs)
        return re.sub(r"(?<![\w.])1 (GPU|EFA interface|node|pod|worker|slot|process)e?s\b", r"1 \1", said)

    def format_field(self, value: Any, spec: str) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _content() -> dict[str, Any]:
    text = resources.files("bireme.audit").joinpath("rules.yaml").read_text("utf-8")
    return dict(yaml.load(text, yaml.CSafeLoader))


def load_rules() -> list[Rule]:
    """All rules, in the order of rules.yaml."""
    return [Rule(**each) for each in _content()["rules"]]


class Auditor:
    """Applies all rules to objects; the conditions are compiled once."""

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        # It takes a third of a second, which no other command has to wait for.
        import cel

        content = _content()
        self._known = Known(content["fields"], content["kinds"], content["variables"], instances)
        self._context = cel.Context
        self._rules: dict[str, list[tuple[Rule, cel.Program]]] = {}
        for rule in load_rules():
            self._rules.setdefault(rule.of, []).append((rule, cel.compile(rule.when)))

    def audit(self, documents: Sequence[Document]) -> list[Finding]:
        """What the rules find in ``documents``, object by object; those of one folder are seen together."""
        folders: dict[str, list[Document]] = {}
        for each in documents:
            folders.setdefault(each.folder, []).append(each)
        found: dict[str, list[Finding]] = {}
        for together in folders.values():
            files: Facts = {"files": files_of(together)}
            context = self._context(files)
            for each in together:
                scope = facts_of(each, self._known)
                found.setdefault(each.file, []).extend(self._in(scope, each, files, context))
        return [finding for own in found.values() for finding in own]

    def _in(self, scope: Scope, document: Document, around: Facts, context: cel.Context) -> Iterator[Finding]:
        own = scope.facts if scope.kind == "object" else {scope.kind: scope.facts}
        facts = {**around, **own}
        context.update(own)
        for rule, condition in self._rules.get(scope.kind, ()):
            try:
                holds = condition.execute(context) is True
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):  # not told
                continue
            if holds:
                says, fix, at = (_Sentence().vformat(t, (), facts) for t in (rule.says, rule.fix, rule.at))
                # A TrainJob has the container's fields under spec.trainer, and one by another name.
                at = at.replace("resources", "resourcesPerNode") if scope.place[-1:] == ("trainer",) else at
                place = (*scope.place, *filter(None, at.split(".")))
                line, path = document.line(place), spelled(place)
                yield Finding(rule.name, says, fix, rule.severity, document.file, line, path, rule.source)
        for inner in scope.inner:
            yield from self._in(inner, document, facts, context)


def list_of_rules() -> str:
    """The rules as a table in Markdown, by severity."""
    rows = ["| rule | finds | source |", "|---|---|---|"]
    for rule in sorted(load_rules(), key=lambda each: SEVERITIES.index(each.severity)):
        compared = f" (compares {' with '.join(rule.compares)})" if rule.compares else ""
        says = re.sub(
            r"\{\{|\}\}|\{.*?\]\}", lambda each: each[0][0] if len(each[0]) == 2 else "…", rule.says
        )
        rows.append(f"| {rule.name}, {rule.severity} | {says}{compared} | [source]({rule.source}) |")
    return "\n".join(rows) + "\n"
