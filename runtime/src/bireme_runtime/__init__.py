"""What runs inside the pods of a Bireme job. Standard library only: it is mounted into images as they are."""

import sys

__version__ = "0.3.0"

# Older releases cannot even read the other modules.
if sys.version_info < (3, 9):  # noqa: UP036
    found = ".".join(map(str, sys.version_info[:2]))
    sys.stderr.write(
        f"bireme: this image has Python {found}, and bireme-runtime needs 3.9: "
        "set launch.python to a newer one of the image, or launch.runtime=false\n"
    )
    sys.exit(78)
