"""What mkdocs makes the site of: the project's Markdown files where they are, so that their links hold."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_LIST = ("git", "ls-files", "*.md", "docs", "examples", ":!.github")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the theme, and those of the clone, seen from its root, in place of those in docs/."""
    root = Path(config.config_file_path).parent
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    listed = subprocess.run(_LIST, cwd=root, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        files.append(File(name, str(root), config.site_dir, config.use_directory_urls))
    return files
