"""Values of charts/fsx for tests: with a file system that exists, and with one that the driver makes."""

from __future__ import annotations

from typing import Any

STATIC: dict[str, Any] = {
    "provisioning": "static",
    "static": {
        "fileSystemId": "fs-0123456789abcdef0",
        "dnsName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        "mountName": "fsx",
    },
}
DYNAMIC: dict[str, Any] = {
    "provisioning": "dynamic",
    "dynamic": {"subnetId": "subnet-0123456789abcdef0", "securityGroupIds": ["sg-0123456789abcdef0"]},
}
