#!/bin/sh
# Install a wheel with all that it has: programs and libraries too, not only modules.
set -eu
PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-deps --no-index --no-cache-dir "$1"
ldconfig
