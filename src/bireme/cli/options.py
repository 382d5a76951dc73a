"""What the commands share: the app, the group of commands, options, and the request that options make."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, reduce, wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click
from click.shell_completion import CompletionItem
from rich.console import Console, RenderableType

from bireme import __version__
from bireme.core.errors import BiremeError, refuse_name
from bireme.core.findings import SEVERITIES, WRITERS, Finding
from bireme.helm import RenderError, RenderRequest, SetFlags
from bireme.helm import values as value_files
from bireme.helm.yaml import block_text
from bireme.workbench import Target, Workbench

if TYPE_CHECKING:
    from bireme.clusters.base import Cluster

F = TypeVar("F", bound=Callable[..., Any])
UNLIMITED = 100_000
"""A console of this width, in characters, breaks no line of a table."""


class App(Workbench):
    """What the commands share. Results go to stdout, progress to stderr."""

    def __init__(self) -> None:
        # Names and messages may hold square brackets, which are not markup.
        super().__init__(Console(stderr=True, highlight=False, markup=False))
        self.out = Console(highlight=False, markup=False)
        if not self.out.is_terminal:
            self.out = self.unlimited

    @cached_property
    def unlimited(self) -> Console:
        """Stdout without a width: what is piped, or asked for with `-o wide`, is not folded."""
        return Console(highlight=False, markup=False, width=UNLIMITED)

    def show(self, output: str, data: Any, view: Callable[[], RenderableType]) -> None:
        """Print ``data`` as JSON or YAML, or the view of it for people."""
        if output == "json":
            click.echo(json.dumps(data, indent=2))
        elif output == "yaml":
            click.echo(block_text([data]), nl=False)
        else:
            (self.unlimited if output == "wide" else self.out).print(view())


def where(cluster: Cluster, namespace: str) -> str:
    """A cluster and a namespace as the first line of a command names them."""
    if cluster.provider != "existing":
        return f'on the cluster of bireme up "{cluster.name}", namespace {namespace}'
    context = cluster.context or value_files.read_file(cluster.kubeconfig, "kubeconfig")["current-context"]
    return f"context {context}, namespace {namespace}"


fail_on_option = click.option(
    "--fail-on",
    type=click.Choice([*SEVERITIES, "never"]),
    default="warning",
    show_default=True,
    help="Exit with 1 for findings of this severity or a higher one",
)


def report(
    output: str, findings: Sequence[Finding], fail_on: str = "warning", **beside: Sequence[Any]
) -> NoReturn:
    """Print ``findings`` and exit, with 1 if one has the severity ``fail_on`` or a higher one.

    What stands ``beside`` them is for people, and for JSON under these names.
    """
    told = WRITERS[output](findings)
    if output == "json":
        others = {name: [each.to_json() for each in facts] for name, facts in beside.items()}
        told = json.dumps(json.loads(told) | others, indent=2)
    elif output == "text":
        told = "\n".join([told, *(str(each) for facts in beside.values() for each in facts)])
    elif output == "markdown":
        told = "\n\n".join([told, *(_folded(each) for facts in beside.values() for each in facts)])
    click.echo(told)
    worst = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on in SEVERITIES else ()
    sys.exit(1 if any(each.severity in worst for each in findings) else 0)


def _folded(fact: Any) -> str:
    """A fact for a pull request: its first line, and the others and its differences folded below it."""
    title, *others = str(fact).splitlines()
    changed = [line for each in getattr(fact, "diffs", ()) for line in (f"# {each.object}", *each.lines)]
    blocks = [
        f"````{kind}\n{text}\n````\n"
        for kind, lines in (("text", others), ("diff", changed))
        if (text := "\n".join(lines))
    ]
    return f"<details><summary>{escape(title)}</summary>\n\n{''.join(blocks)}</details>"


pass_app = click.make_pass_decorator(App, ensure=True)


def stacked(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    return lambda command: reduce(lambda inner, decorate: decorate(inner), reversed(decorators), command)


def output_option(*formats: str) -> Callable[[F], F]:
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help="Format"
    )


def names(
    find: Callable[[click.Context], Iterable[str]], beside: str = ""
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completes the names that ``find`` gives, and what the shell knows beside them: ``file`` or ``dir``.

    Nothing is said about what goes wrong: who presses Tab reads no errors.
    """

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found: list[str] = []
        with suppress(Exception):
            found = sorted(name for name in find(context) if name.startswith(incomplete))
        more = [CompletionItem(incomplete, type=beside)] if beside else []
        return [CompletionItem(name) for name in found] + more

    return complete


def a_namespace(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """A click callback: refuses what cannot be the name of a namespace, or of each of several."""
    for each in value if isinstance(value, tuple) else (value,):
        if each is not None and each != parameter.default:
            refuse_name(parameter.opts[-1], each, 63)
    return value


def _a_release(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    # Helm takes dots too, and others may have installed it.
    if value is not None:
        refuse_name("RELEASE", value, 53, inner=".-")
    return value


def _releases(context: click.Context) -> list[str]:
    given, app = context.params, App()
    target = Target(given.get("cluster"), given.get("kubeconfig"), given.get("context"))
    found = app.releases(app.cluster(target)).list(given.get("namespace") or "default")
    return [each.release for each in found]


def release_argument(required: bool = True) -> Callable[[F], F]:
    """The name of a release that is there."""
    complete = names(_releases)
    return click.argument("release", required=required, callback=_a_release, shell_complete=complete)


def chart_argument(required: bool = True) -> Callable[[F], F]:
    """A chart by what `Charts.find` takes."""
    complete = names(lambda _: App().charts.names(), "dir")
    return click.argument("chart", required=required, shell_complete=complete)


def chart_and_release_names(context: click.Context) -> list[str]:
    """What `bireme doctor` takes. Charts complete without a cluster, too."""
    releases: list[str] = []
    with suppress(BiremeError):
        releases = _releases(context)
    return [*App().charts.names(), *releases]


def value_names(context: click.Context) -> list[str]:
    """Names that -f takes."""
    return list(App().kept_values("instances", "workloads"))


namespace_option = click.option(
    "-n",
    "--namespace",
    default="default",
    show_default=True,
    callback=a_namespace,
    help="Namespace of the release",
)


timeout_option = click.option(
    "--timeout",
    default=300,
    show_default=True,
    type=click.IntRange(0, 10_000_000),
    help="Longest wait, in seconds",
)


_target_options = stacked(
    click.option(
        "--cluster", metavar="NAME", help="A cluster of `bireme up` (default: the only one there is)"
    ),
    click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig of another cluster"),
    click.option("--context", help="Context in the kubeconfig"),
)


def target_options(command: F) -> F:
    """Let ``command`` take a Target as ``target``, from three options."""

    @_target_options
    @wraps(command)
    def with_target(
        *args: Any, cluster: str | None, kubeconfig: Path | None, context: str | None, **options: Any
    ) -> Any:
        return command(*args, target=Target(cluster, kubeconfig, context), **options)

    return cast(F, with_target)


on_release = stacked(release_argument(), namespace_option, target_options)
replace_option = click.option(
    "--replace", is_flag=True, help="Stop a run that cannot change in place, and train on in the next run"
)
tables_option = output_option("table", "wide", "json", "yaml")


def _image_values(context: click.Context, parameter: click.Parameter, image: str | None) -> str | None:
    """The values of an image as an argument of --set-json: registry, repository, and tag, digest or both."""
    if image is None:
        return None
    found = value_files.image_values(image)
    if not found.get("tag") and not found.get("digest"):
        raise click.BadParameter(
            f"{image!r} is no image with a tag or a digest, as in registry.example.com/team/train:1.4"
        )
    return ",".join(f"image.{key}={json.dumps(part)}" for key, part in found.items())


values_options = stacked(
    click.option(
        "-f",
        "--values",
        "files",
        multiple=True,
        metavar="FILE",
        shell_complete=names(value_names, "file"),
        help="Values file, or the name of an instance type or a workload (`bireme list`); later ones win",
    ),
    click.option(
        "--image", metavar="IMAGE", callback=_image_values, help="The chart's image, as REGISTRY/NAME:TAG"
    ),
    click.option(
        "--script",
        metavar="FILE|FOLDER|git+URL@REF",
        default="",
        help="What a job trains: a Python file, a folder with train.py or main.py, or a repository",
    ),
    click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One value, typed as Helm does"),
    click.option(
        "--set-string", "set_strings", multiple=True, metavar="KEY=VALUE", help="One value, as text"
    ),
    click.option("--set-json", "set_jsons", multiple=True, metavar="KEY=JSON", help="One value, as JSON"),
    click.option("--set-file", "set_files", multiple=True, metavar="KEY=FILE", help="One value, from a file"),
    click.option("--plain-http", is_flag=True, help="Pull an oci:// chart without TLS"),
    namespace_option,
)


reuse_option = click.option(
    "--reuse-values", "reuses", is_flag=True, help="Keep the values of the release that are not given here"
)
chart_and_values = stacked(chart_argument(), release_argument(required=False), values_options)


def request_of(
    app: App,
    /,
    chart: str,
    files: tuple[str, ...],
    image: str | None,
    script: str,
    sets: tuple[str, ...],
    set_strings: tuple[str, ...],
    set_jsons: tuple[str, ...],
    set_files: tuple[str, ...],
    release: str | None,
    plain_http: bool,
    namespace: str,
) -> RenderRequest:
    settings = SetFlags(sets, set_strings, ((image,) if image else ()) + set_jsons, set_files)
    return app.request(chart, release, files, None, script, namespace, settings, plain_http)


@contextmanager
def explained(app: App, /, request: RenderRequest) -> Iterator[None]:
    """A refusal inside says all that is wrong with the values, in the words of `bireme validate`."""
    try:
        yield
    except RenderError as error:
        from bireme.schemas.problems import refusals, shortened

        raise BiremeError(shortened(refusals(app.renderer, request)) or str(error)) from error


class _Group(click.Group):
    """Commands, listed under the titles of their modules. A file that cannot be read ends in a sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            title = (sys.modules[command.callback.__module__].__doc__ or "").rstrip(".")
            row = name, command.get_short_help_str(formatter.width)
            sections.setdefault(title, []).append(row)
        for title, rows in sorted(sections.items()):
            with formatter.section(title):
                formatter.write_dl(sorted(rows), col_spacing=4)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except OSError as error:
            name = str(error.filename or "a file")[:200]
            elsewhere = ""
            # A folder that cannot be made has many errors: /proc says that it does not exist.
            paths = Workbench().paths
            ours = any(folder.is_relative_to(name) for folder in (paths.cache, paths.state))
            if ours or isinstance(error, PermissionError) or error.errno == errno.EROFS:
                elsewhere = " (BIREME_CACHE and BIREME_STATE name folders for the cache and for clusters)"
            raise BiremeError(f"{name}: {error.strerror or error}{elsewhere}") from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Plan, install and check distributed training jobs on Kubernetes.

    Commands that need a cluster take that of --cluster, --kubeconfig or --context, else that of $KUBECONFIG,
    else that of `bireme up`, else that of ~/.kube/config.
    """
