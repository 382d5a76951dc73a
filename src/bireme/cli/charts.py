"""Charts and values; no cluster is needed."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bireme.cli import views
from bireme.cli.options import (
    App,
    a_namespace,
    chart_and_values,
    chart_argument,
    cli,
    explained,
    fail_on_option,
    names,
    output_option,
    pass_app,
    report,
    request_of,
    reuse_option,
    target_options,
    value_names,
)
from bireme.cli.upgrades import begun
from bireme.core.errors import BiremeError, suggestion
from bireme.core.findings import WRITERS
from bireme.core.manifests import within
from bireme.helm import RenderRequest, SetFlags
from bireme.helm import values as value_files
from bireme.helm.yaml import block_text
from bireme.schemas.moves import MOVES, migrated
from bireme.workbench import Target


def _keys(context: click.Context) -> list[str]:
    """All keys of the chart that was typed before."""
    from bireme.schemas.bundle import comments

    values = App().charts.find(context.params["chart"]) / "values.yaml"
    return [".".join(path) for path in comments(values.read_text("utf-8"))]


def _kinds(context: click.Context) -> list[str]:
    """What the chart that was typed before is exported as."""
    from bireme.adopt.tables import table

    return list(table("export")[App().charts.find(context.params["chart"]).name]["kinds"])


_LIMITS = ("enum", "minimum", "maximum", "pattern")
_env_file_option = click.option(
    "--env-file", type=click.Path(path_type=Path), help="NAME=value lines that fill in $NAME and ${NAME}"
)


@cli.command()
@click.argument("name", shell_complete=names(value_names))
@pass_app
def values(app: App, /, name: str) -> None:
    """Print the values of an instance type or of a workload.

    \b
    Example: bireme values imagenet-efa > mine.yaml
    """
    kept = app.kept_values("instances", "workloads")
    if name not in kept:
        raise BiremeError(f"there are no values called {name}: {suggestion(name, kept)}")
    click.echo(kept[name].read_text("utf-8"), nl=False)


@cli.command()
@chart_argument()
@click.argument("key", default="", shell_complete=names(_keys))
@output_option("text", "json", "yaml")
@pass_app
def explain(app: App, /, chart: str, key: str, output: str) -> None:
    """Tell what a KEY of the values of CHART means: text, type, default.

    Without KEY, all keys are listed.

    \b
    Example: bireme explain torch-elastic pod.shm.size
    """
    found = _explanation(app.charts.find(chart), key)
    app.show(output, found, lambda: views.key_view(found))


def _explanation(chart: Path, key: str) -> dict[str, Any]:
    """Text, type, limits, default and keys below of ``key``, e.g. ``pod.shm.size``; "" stands for all.

    Raises BiremeError for a key that the chart does not have.
    """
    from bireme.schemas.bundle import BUNDLE, comments
    from bireme.schemas.problems import resolved

    file = chart / "values.yaml"
    text, default = value_files.read_text(file, "values file"), value_files.read_file(file)
    schema = json.loads(value_files.read_text(chart / BUNDLE, "schema")) if (chart / BUNDLE).is_file() else {}
    value: Any = default
    part, path = resolved(schema, schema), tuple(filter(None, key.split(".")))
    for name in path:
        inside = part.get("properties", {})
        known = {*inside, *within(value)}
        if name not in known:
            raise BiremeError(f"{chart.name} has no value {key}: {suggestion(name, known)}")
        part, value = resolved(schema, inside.get(name)), within(value).get(name)
    types, below = part.get("type", "any"), sorted({*part.get("properties", {}), *within(value)})
    return {
        "key": key,
        "text": comments(text).get(path) or part.get("description", ""),
        "type": types if isinstance(types, str) else " or ".join(types),
        **{name: part[name] for name in _LIMITS if name in part},
        **({"keys": below} if below else {"default": value}),
    }


@cli.command()
@click.argument("chart", type=click.Choice(sorted(MOVES)))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Change nothing, and exit with 1 where something moved")
def migrate(chart: str, files: tuple[Path, ...], check: bool) -> None:
    """Move in values files of CHART what moved between releases.

    Comments stay, and so does the order of all else. No file is changed when one of them cannot follow.

    \b
    Example: bireme migrate torch-elastic mine.yaml overlays/*.yaml
    """
    done = [(file, *migrated(chart, value_files.read_text(file, "values file"), str(file))) for file in files]
    for file, text, said in done:
        for sentence in said:
            click.echo(sentence)
        if said and not check:
            file.write_text(text, encoding="utf-8")
    moved = sum(bool(said) for _, _, said in done)
    if check and moved:
        sys.exit(1)
    if not moved:
        click.echo("nothing moved: today's charts take these names")


@cli.command()
@chart_and_values
@output_option("yaml", "json")
@pass_app
def render(app: App, /, output: str, **options: Any) -> None:
    """Render CHART and print its objects.

    \b
    Example: bireme render torch-elastic imagenet -f p4d.24xlarge
    """
    request = request_of(app, **options)
    with explained(app, request):
        if output == "yaml":
            click.echo(app.renderer.text(request), nl=False)
            return
        manifests = app.renderer.render(request).manifests
    click.echo(json.dumps([item.thaw() for item in manifests], indent=2))


@cli.command()
@chart_and_values
@output_option("table", "json", "yaml")
@pass_app
def validate(app: App, /, output: str, **options: Any) -> None:
    """Check values, and list everything that is wrong with them.

    They are checked against the schema and the rules of CHART.

    \b
    Example: bireme validate charts/paddle --set workers=0
    """
    from bireme.schemas.problems import refusals, shortened

    request = request_of(app, **options)
    found = refusals(app.renderer, request)
    valid = f"{request.chart}: the values are valid"
    app.show(output, {"problems": found}, lambda: shortened(found) or valid)
    sys.exit(1 if found else 0)


@cli.command()
@click.argument("files", metavar="[FILE]...", nargs=-1)
@_env_file_option
@target_options
@click.option(
    "-n", "--namespace", default="default", callback=a_namespace, help="Namespace of a cluster's jobs"
)
@fail_on_option
@output_option(*WRITERS)
@pass_app
def audit(
    app: App,
    /,
    files: tuple[str, ...],
    env_file: Path | None,
    target: Target,
    namespace: str,
    fail_on: str,
    output: str,
) -> None:
    """Check manifests of training jobs, whoever wrote them.

    FILE is a manifest (MPIJob, PyTorchJob, TrainJob, JobSet and more), a folder of manifests, or - for stdin.
    docs/audit.md has all rules. Without FILE, the jobs of a cluster are read that --cluster, --kubeconfig or
    --context names.

    \b
    Example: bireme audit job.yaml
             bireme audit --context production -n vision
    """
    from bireme.audit.documents import read, read_variables
    from bireme.audit.rules import Auditor

    if bool(files) == any((target.cluster, target.kubeconfig, target.context)):
        raise click.UsageError("give FILE, or name a cluster by --cluster, --kubeconfig or --context")
    auditor = Auditor(app.instances)
    if files:
        documents, passed_over = read(files, read_variables(env_file) if env_file else {})
        findings = [*auditor.audit(documents), *passed_over]
    else:
        from bireme.live.written import written

        # Lines are those of no file, and Secrets are not read.
        found = auditor.audit([*written(app.cluster(target).api, namespace)])
        findings = [replace(each, line=0) for each in found if each.rule != "secret-elsewhere"]
    report(output, findings, fail_on)


@cli.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@_env_file_option
@click.option(
    "-f", "--values", "given", multiple=True, metavar="FILE", help="Values that the manifest does not say"
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One such value")
@click.option(
    "-o", "--output", default="text", show_default=True, metavar="text|json|FILE", help="Where values go"
)
@pass_app
def adopt(
    app: App,
    /,
    files: tuple[str, ...],
    env_file: Path | None,
    given: tuple[str, ...],
    sets: tuple[str, ...],
    output: str,
) -> None:
    """Turn manifests of training jobs into values of a chart.

    FILE is what `bireme audit` takes. The job is rendered from the values, and both jobs are shown field by
    field: equal, better and why, or not carried over. With -o FILE the values go there, with several jobs
    into FILE as a folder. Exits with 1 when there is a job that no chart takes.

    \b
    Example: bireme adopt job.yaml -f p4d.24xlarge -o values.yaml
    """
    from bireme.adopt.jobs import Adopted, Adopter
    from bireme.adopt.tables import table
    from bireme.audit.documents import read, read_variables

    own = value_files.load([app.values_file(name) for name in given])
    settled = app.renderer.merged(RenderRequest(Path(), own, settings=SetFlags(sets))).values
    documents, passed_over = read(files, read_variables(env_file) if env_file else {})
    adopter = Adopter(app.renderer, app.paths.charts, app.instances, value_files.merge(own, settled))
    words = table("beside")
    others = [each for each in documents if each.kind not in table("charts")]
    beside = [f"{each.kind}/{each.name}: {words.get(each.kind, words['other'])}" for each in others]
    adopted: list[Adopted] = []
    refused: list[str] = []
    for found in (each for each in documents if each.kind in table("charts")):
        try:
            adopted.append(adopter.adopt(found, others))
        except BiremeError as error:
            named = f"{found.kind}/{found.name}: "
            refused.append(f"{found.file}:{found.line(())}: {named}{str(error).removeprefix(named)}")
    failed = [*(f"{each.file}: {each.sentence}" for each in passed_over), *refused]
    if not (adopted or refused):
        failed.append("there is no job of a kind that bireme adopt knows")
    names = Counter(job.release for job in adopted)
    if output not in ("text", "json") and names and max(names.values()) > 1:
        raise BiremeError(f"two jobs are called {names.most_common(1)[0][0]}: adopt their files one by one")
    code = 1 if refused or not adopted else 0
    if output == "json":
        told = {"jobs": [each.to_json() for each in adopted], "beside": beside, "failed": failed}
        click.echo(json.dumps(told, indent=2))
        sys.exit(code)
    for job in adopted:
        aim = output if output != "text" else "values.yaml" if len(adopted) == 1 else "values"
        file = Path(aim) if len(adopted) == 1 else Path(aim) / f"{job.release}.yaml"
        text = block_text([job.values], 110)
        if output != "text":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        type_ = (job.values.get("instance") or {}).get("type")
        placed = f"-n {job.namespace} {f'-f {type_} ' if type_ else ''}-f {file}"
        click.echo(f"bireme install {job.chart} {job.release} {placed}")
        for each in job.outcomes:
            ours = "" if each.outcome == "equal" or each.ours is None else f" → {_shown(each.ours)}"
            why = each.why and f" ({each.why})"
            click.echo(f"  {each.outcome}: {each.field}: {_shown(each.theirs)}{ours}{why}")
        text = f"\nWhat -o {aim} writes{'' if aim == str(file) else f' to {file}'}:\n{text}"
        click.echo("".join(f"  not said: {ask}\n" for ask in job.asks) + (text if output == "text" else ""))
    for sentence in (*beside, *failed):
        click.echo(sentence, err=sentence in failed)
    sys.exit(code)


def _shown(value: Any) -> str:
    """A value of a manifest on one line."""
    is_plain = isinstance(value, str) and "\n" not in value
    return value if is_plain else json.dumps(value, ensure_ascii=False)


@cli.command()
@chart_and_values
@click.option(
    "--as", "kind", metavar="KIND", required=True, shell_complete=names(_kinds), help="What the job becomes"
)
@reuse_option
@target_options
@output_option("yaml", "json")
@pass_app
def export(app: App, /, kind: str, reuses: bool, target: Target, output: str, **options: Any) -> None:
    """Print the job of CHART as plain manifests.

    They need neither Helm nor Bireme. Stock torchrun or mpirun starts the job, and what is lost with the
    runtime is listed on stderr. With --reuse-values it is the job of RELEASE, which is there.

    \b
    Example: bireme export torch-elastic imagenet -f p4d.24xlarge --as JobSet > job.yaml
    """
    from bireme.adopt import export as exporting

    request = request_of(app, **options)
    if reuses:
        request = begun(app, app.cluster(target), request, reuses, "yaml").request
    with explained(app, request):
        found = exporting.export(app.renderer, request, kind, app.instances)
    if output == "json":
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    click.echo(block_text(found.objects, 110), nl=False)
    for sentence in found.lost:
        click.echo(f"lost: {sentence}", err=True)


@cli.command()
@chart_and_values
@click.option("--nodes", help="Tell whether the job fits these nodes, e.g. p4d.24xlarge=2")
@click.option("--against", is_flag=True, help="Tell what an upgrade of RELEASE, which is there, will do")
@reuse_option
@target_options
@output_option("table", "wide", "json", "yaml", "svg")
@pass_app
def plan(
    app: App, /, nodes: str | None, against: bool, reuses: bool, target: Target, output: str, **options: Any
) -> None:
    """Show the pods, ranks, resources and nodes of CHART.

    No cluster is touched. Exits with 1 when the job does not fit --nodes, or when Kubernetes would refuse the
    upgrade of --against.

    \b
    Example: bireme plan torch-elastic -f p4d.24xlarge --nodes p4d.24xlarge=2
             bireme plan torch-elastic imagenet --against --reuse-values --set workers=5
    """
    from bireme.clusters.nodes import parse_nodes
    from bireme.plan.topology import fit

    if reuses and not against:
        raise BiremeError("--reuse-values: there are values to keep only with --against")
    request = request_of(app, **options)
    upgrade = begun(app, app.cluster(target), request, reuses, output) if against else None
    request = upgrade.request if upgrade else request
    available = parse_nodes(nodes, app.instances) if nodes is not None else None
    with explained(app, request):
        planned = app.planned(request)
    if upgrade:
        foreseen = app.deployer(upgrade.cluster).changes(request)
        said = [*foreseen.sentences(), *([upgrade.differing] if foreseen.is_refused else [])]
        app.show(output, foreseen.to_json(), lambda: "\n".join(said))
        sys.exit(1 if foreseen.is_refused else 0)
    if output == "svg":
        from bireme.plan.picture import svg

        click.echo(svg(planned), nl=False)
    else:
        app.show(output, planned.to_json(), lambda: views.plan_view(planned, every_pod=output == "wide"))
    reasons = fit(planned.pods, available, app.instances) if available else []
    for sentence in reasons:
        app.err.print(f"warning: {sentence}", style="yellow", soft_wrap=True)
    sys.exit(1 if reasons else 0)
