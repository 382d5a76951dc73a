"""hack/eks has no argument that AWS provider 6 does not know, and reads no attribute that it does not have.

Terraform runs with provider 5 on these machines. Of provider 6 its schema is used, as the npm package of
CDK for Terraform generates it from the provider: a file for each resource, which names each argument and
each attribute, also those of nested blocks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from typing import Any

import hcl2
import pytest

from bireme.core.paths import Paths
from tests.eks.conftest import ROOT

PACKAGE, VERSION = "@cdktf/provider-aws", "21.22.1"
# Of Terraform itself, in any resource.
META = {"count", "depends_on", "for_each", "lifecycle", "provider", "provisioner"}
Block = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="session")
def schema(tmp_path_factory: pytest.TempPathFactory) -> tarfile.TarFile:
    """The package, in the cache."""
    cache = Paths.discover(start=ROOT).cache / "provider-aws"
    cache.mkdir(parents=True, exist_ok=True)
    file = cache / f"cdktf-provider-aws-{VERSION}.tgz"
    if not file.exists():
        npm = shutil.which("npm")
        assert npm, "this test needs npm on PATH"
        made = tmp_path_factory.mktemp("npm")
        subprocess.run([npm, "pack", f"{PACKAGE}@{VERSION}"], cwd=made, check=True, capture_output=True)
        shutil.move(made / file.name, file)
    return tarfile.open(file)


def blocks() -> Iterator[Block]:
    """The resources and data sources of hack/eks: ``data-aws-`` or ``aws_``, their type, their arguments."""
    for file in sorted((ROOT / "hack/eks").glob("*.tf")):
        with file.open(encoding="utf-8") as text:
            parsed = hcl2.load(text)
        for kind in ("resource", "data"):
            for each in parsed.get(kind, []):
                for quoted, named in each.items():
                    for body in named.values():
                        yield kind, quoted.strip('"'), body


def arguments(body: dict[str, Any]) -> Iterator[str]:
    """The names of the arguments and blocks of a resource, at every depth."""
    for name, value in body.items():
        if name in META or name.startswith("__"):
            continue
        if name == "dynamic":
            for each in value:
                for block, inner in each.items():
                    if not block.startswith("__"):
                        yield block.strip('"')
                        for content in inner.get("content", []):
                            yield from arguments(content)
            continue
        yield name
        for each in value if isinstance(value, list) else []:
            if isinstance(each, dict) and each.get("__is_block__"):
                yield from arguments(each)


def described(schema: tarfile.TarFile, kind: str, resource: str) -> str:
    """What provider 6 says of a resource."""
    name = resource.removeprefix("aws_").replace("_", "-")
    folder = f"data-aws-{name}" if kind == "data" else name
    file = schema.extractfile(f"package/lib/{folder}/index.d.ts")
    assert file, f"provider 6 has no {resource}"
    return file.read().decode()


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def test_the_schema_is_that_of_provider_6(schema: tarfile.TarFile) -> None:
    assert "/providers/hashicorp/aws/6." in described(schema, "resource", "aws_vpc")


def test_every_argument_is_one_of_provider_6(schema: tarfile.TarFile) -> None:
    unknown, seen = [], set()
    for kind, resource, body in blocks():
        known = set(re.findall(r"#(\w+) \w+#\1\}", described(schema, kind, resource)))
        names = set(arguments(body))
        seen |= names
        unknown += [f"{resource}.{name}" for name in sorted(names - known)]
    assert unknown == []
    assert {"network_interfaces", "instance_market_options", "taint", "access_config"} <= seen


def test_every_attribute_that_is_read_is_one_of_provider_6(schema: tarfile.TarFile) -> None:
    text = "\n".join(file.read_text() for file in (ROOT / "hack/eks").glob("*.tf"))
    read = set(re.findall(r"\b(data\.)?(aws_\w+)\.\w+(?:\[[^\]]*\])?\.(\w+)", text))
    assert len(read) >= 20
    unknown = [
        f"{data}{resource}.{name}"
        for data, resource, name in sorted(read)
        if f"get {camel(name)}()" not in described(schema, "data" if data else "resource", resource)
    ]
    assert unknown == []
