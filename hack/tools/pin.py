"""Write hack/tools/<folder>/go.mod and go.sum for one pinned tool.

    python hack/tools/pin.py helm 4.3.1

Packages and module come from tools.toml. Needs Go, and the module proxy for what the module cache lacks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Whose go.mod has the tool directive.
OLDEST_GO = "1.24"
OWN_MAIN = "."


def pin(folder: str, version: str) -> None:
    """Pin ``folder`` at ``version`` (with or without a leading v); the old pin stays if anything fails."""
    modules = _modules_of(folder)
    path, tag = modules[0]["module"], "v" + version.removeprefix("v")
    with tempfile.TemporaryDirectory() as scratch:
        upstream = json.loads(_go(["mod", "download", "-json", f"{path}@{tag}"], scratch))["GoMod"]
        facts = json.loads(_go(["mod", "edit", "-json", upstream], scratch))
        _go(["mod", "init", f"bireme.dev/tools/{folder}"], scratch)
        line = max(facts["Go"], OLDEST_GO, key=lambda each: [int(part) for part in each.split(".")])
        edits = [f"-go={line}", f"-require={path}@{tag}", *_replacements(facts, tag)]
        packages = [tool["package"] for module in modules for tool in module["tools"].values()]
        edits += [f"-tool={package}" for package in packages if package != OWN_MAIN]
        for file in (HERE / folder).glob("*.go"):
            shutil.copy(file, scratch)
        _go(["mod", "edit", *edits], scratch)
        _go(["mod", "tidy"], scratch)
        (HERE / folder).mkdir(exist_ok=True)
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(Path(scratch, name), HERE / folder / name)


def _modules_of(folder: str) -> list[dict[str, Any]]:
    """The modules whose tools are pinned in ``folder``; the version is that of the first."""
    modules = tomllib.loads((HERE / "tools.toml").read_text())["modules"]
    found = [module for name, module in modules.items() if folder in module.get("folders", [name])]
    if not found:
        raise SystemExit(f"error: tools.toml knows no folder {folder}: add it there first")
    return found


def _replacements(facts: dict[str, Any], tag: str) -> list[str]:
    """What upstream replaces, which Go heeds in a main module only.

    Modules that the upstream repository keeps in itself as v0.0.0 are published as v0.<minor>.<patch>.
    """
    required = {require["Path"]: require["Version"] for require in facts["Require"]}
    published = "v0." + tag.split(".", 1)[1]
    made = []
    for replaced in facts.get("Replace") or []:
        path, new = replaced["Old"]["Path"], replaced["New"]
        if not new["Path"].startswith("."):
            made.append(f"-replace={path}={new['Path']}@{new['Version']}")
        elif required.get(path) == "v0.0.0":
            made.append(f"-replace={path}={path}@{published}")
    return made


def _go(arguments: list[str], folder: str) -> str:
    done = subprocess.run(["go", *arguments], cwd=folder, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: go {' '.join(arguments[:2])}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit((__doc__ or "").strip())
    pin(sys.argv[1], sys.argv[2])
