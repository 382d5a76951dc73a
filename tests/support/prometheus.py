"""A real Prometheus that scrapes each second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bireme.clusters import programs
from bireme.tools import Toolbox
from tests.runtime.etcd_servers import free_port


@dataclass(frozen=True)
class Prometheus:
    """The program, and where it answers."""

    program: programs.Program
    url: str


@contextmanager
def scraping(
    toolbox: Toolbox, folder: Path, target: Mapping[str, Any], rules: str = ""
) -> Iterator[Prometheus]:
    """One that scrapes ``target``, as static_configs have it, and evaluates the text of ``rules``."""
    (folder / "rules.yaml").write_text(rules)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{folder}/rules.yaml"],
        "scrape_configs": [{"job_name": "tests", "static_configs": [dict(target)]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    arguments = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    url = f"http://127.0.0.1:{free_port()}"
    arguments += [f"--web.listen-address={url.removeprefix('http://')}"]
    program = programs.start(folder, toolbox.path("prometheus"), arguments, {})
    try:
        program.wait_ready(f"{url}/-/ready", 120)
        yield Prometheus(program, url)
    finally:
        program.stop()
