"""Values of users and of charts: files are merged here, the rest is left to Helm (docs/adr/0008)."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.core.errors import BiremeError
from bireme.helm.yaml import Values, parse_yaml, refuse_bombs
from bireme.helm.yaml import merge as merge

# What Helm prints: the values that templates see, and the schema of each chart they belong to. In Base64,
# because YAML has no room for some characters of JSON.
_PRINT = """\
{{- define "schemas" -}}
{{- $charts := dict -}}
{{- range $name, $chart := .Subcharts -}}
{{- $_ := include "schemas" $chart | fromJson | set $charts $name -}}
{{- end -}}
{{- dict "name" .Chart.Name "schema" (.Files.Get "schema.json") "charts" $charts | toJson -}}
{{- end -}}
apiVersion: v1
kind: Values
metadata: {name: values}
values: {{ toJson .Values | b64enc }}
schemas: {{ include "schemas" . | b64enc }}
"""


_IMAGE = re.compile(
    r"(?:(?P<registry>[^/@]*[.:][^/@]*|localhost)/)?(?P<repository>[a-z0-9][a-z0-9._/-]*)"
    r"(?::(?P<tag>[\w][\w.-]*))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


def image_values(image: str) -> dict[str, str]:
    """The values of an image: registry, repository, and tag if it has one. Empty for what is no image."""
    if not (found := _IMAGE.fullmatch(image)):
        return {}
    official = "" if found["registry"] or "/" in found["repository"] else "library/"
    return {
        "registry": found["registry"] or "docker.io",
        "repository": official + found["repository"],
        # A digest that a values file has would win over the tag.
        "digest": found["digest"] or "",
    } | ({"tag": found["tag"]} if found["tag"] else {})


@dataclass(frozen=True)
class SetFlags:
    """The arguments of --set, --set-string, --set-json and --set-file.

    Whatever their order on the command line, Helm applies ``jsons`` first, then ``sets``, ``strings`` and
    ``files``; of one option the later argument wins.
    """

    sets: Sequence[str] = ()
    strings: Sequence[str] = ()
    jsons: Sequence[str] = ()
    files: Sequence[str] = ()

    def flags(self) -> list[str]:
        """Helm's arguments for them; none when nothing is set."""
        return [
            *(f"--set-json={text}" for text in self.jsons),
            *(f"--set={text}" for text in self.sets),
            *(f"--set-string={text}" for text in self.strings),
            *(f"--set-file={text}" for text in self.files),
        ]


@dataclass(frozen=True)
class ChartValues:
    """What the templates of a chart see as .Values, its schema, and the same of its enabled dependencies."""

    name: str
    values: Mapping[str, Any]
    schema: Mapping[str, Any] | None
    dependencies: tuple[ChartValues, ...]

    @classmethod
    def printed(cls, values: Mapping[str, Any], schemas: Mapping[str, Any]) -> ChartValues:
        """From what a chart of `printing_chart` printed. Raises BiremeError for a schema that is not JSON."""
        name, text = schemas["name"], schemas["schema"]
        try:
            schema = json.loads(text) if text else None
        except ValueError as error:
            raise BiremeError(f"{name}/values.schema.json is not valid JSON: {error}") from error
        below = [cls.printed(values[each], schemas["charts"][each]) for each in schemas["charts"]]
        return cls(name, values, schema, tuple(below))


# Logs of large jobs are the largest.
_MOST_BYTES = 256 * 2**20


def load(files: Sequence[Path]) -> Values:
    """``files`` merged in order. A null stays: it deletes a chart's default.

    Raises BiremeError for a file that is missing or not a mapping.
    """
    merged: Values = {}
    for file in files:
        merged = merge(merged, read_file(file))
    return merged


def read_file(file: Path, what: str = "values file") -> Values:
    """One values file, as Helm reads it; ``what`` is what errors call it.

    Raises BiremeError when it is missing, broken, larger than a Secret can be, or not a mapping.
    """
    text = read_text(file, what)
    refuse_bombs(text, f"{what} {file}")
    return parse_yaml(text, str(file), as_written=what == "values file")


def read_text(file: Path, what: str) -> str:
    """A text file as it is; ``what`` is what errors call it.

    Raises BiremeError when it cannot be read, or is larger than anything that this reads.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BiremeError(f"{what} {file} has more than {_MOST_BYTES // 2**20} MiB")
        return content.decode("utf-8")
    except FileNotFoundError as error:
        raise BiremeError(f"{what} {file} does not exist: check the path") from error
    except UnicodeDecodeError as error:
        raise BiremeError(f"{what} {file} is not UTF-8 text") from error
    except OSError as error:
        raise BiremeError(f"{what} {file} cannot be read: {error.strerror}") from error


def printing_chart(folder: Path, chart: Path | None) -> Path:
    """Make a chart in ``folder`` that only prints its values: a copy of ``chart``, or one without any.

    Schemas of a copy get another name, so that Helm prints values that they refuse. Raises BiremeError for a
    dependency that is not an archive.
    """
    if chart:
        shutil.copytree(chart, folder, ignore=_only_templates_read)
        _strip(folder)
    else:
        folder.mkdir()
        (folder / "Chart.yaml").write_text("{apiVersion: v2, name: values, version: 0.0.0}")
    (folder / "templates").mkdir()
    (folder / "templates" / "values.yaml").write_text(_PRINT)
    return folder


def _only_templates_read(folder: str, names: Sequence[str]) -> set[str]:
    return {"templates", "files", "ci"} & set(names) if "Chart.yaml" in names else set()


def _strip(chart: Path) -> None:
    """Take the templates and the schemas away from ``chart`` and its dependencies, archives included."""
    shutil.rmtree(chart / "templates", ignore_errors=True)
    (chart / ".helmignore").unlink(missing_ok=True)
    if (chart / "values.schema.json").is_file():
        (chart / "values.schema.json").rename(chart / "schema.json")
    for archive in chart.glob("charts/*.tgz"):
        unpack(archive, archive.parent)
        archive.unlink()
    for dependency in chart.glob("charts/*/Chart.yaml"):
        _strip(dependency.parent)


def files_below(path: Path, skipped: str, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """All that is no folder in ``path`` and below it, or ``path`` itself. Links to folders are followed.

    Names that match ``skipped`` are left out. Raises BiremeError for a link back.
    """
    if not path.is_dir():
        yield path
        return
    real = path.resolve()
    if real in above:
        raise BiremeError(f"{path} links back to a folder it lies in: remove the link")
    for each in sorted(path.iterdir()):
        if not re.fullmatch(skipped, each.name):
            yield from files_below(each, skipped, above | {real})


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of a packaged chart into ``folder``. Raises BiremeError when it is none."""
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise BiremeError(f"{archive.name} is not a packaged chart: {error}") from error
