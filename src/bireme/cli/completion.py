"""How a shell goes on with a word: names of charts, types, workloads and releases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names(find: Callable[[click.Context], Iterable[str]], beside: str = "") -> Completion:
    """Completes the names that ``find`` gives, and what the shell knows beside them: ``file`` or ``dir``.

    Nothing is said about what goes wrong: who presses Tab reads no errors.
    """

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found: list[str] = []
        with contextlib.suppress(Exception):
            found = sorted(name for name in find(context) if name.startswith(incomplete))
        more = [CompletionItem(incomplete, type=beside)] if beside else []
        return [CompletionItem(name) for name in found] + more

    return complete
