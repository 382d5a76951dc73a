"""Buckets of the S3 server of a namespace (the fixture `s3_server`)."""

from __future__ import annotations

from tests.kind.shell import Shell

# Uploads a folder as a bucket; large files in parts, as most clients do.
_UPLOAD = """
import sys
from pathlib import Path
import boto3
s3, folder = boto3.client("s3"), Path("/source", sys.argv[1])
s3.create_bucket(Bucket=sys.argv[1])
for file in filter(Path.is_file, folder.rglob("*")):
    s3.upload_file(str(file), sys.argv[1], str(file.relative_to(folder)))
"""


def upload(shell: Shell, namespace: str, bucket: str) -> None:
    """Make a bucket of the folder of that name on the claim `source`, or add what is new in it."""
    shell.kubectl("exec", "-n", namespace, "s3", "--", "python3", "-c", _UPLOAD, bucket)
