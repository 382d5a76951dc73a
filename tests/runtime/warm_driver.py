"""Runs scripts by a template: `python3 warm_driver.py SCRIPT ARGS…`, prints {"codes", "pids"} as JSON.

The script is run twice. SIGTERM is sent to the second as soon as it has made the file that BIREME_TEST_READY
names, if any.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from bireme_runtime.elastic.agent import warm
from bireme_runtime.elastic.agent.supervisor import LAUNCHER
from bireme_runtime.process import children

script = sys.argv[1:]
children.adopt_orphans()
template = warm.start((*LAUNCHER, *script), os.environ)
codes, pids = [], []
for run in range(2):
    env = {**os.environ, "RANK": str(run)}
    template.ask(warm.ForkRequest("script", tuple(script), env, os.getcwd()))
    pid = template.answer(60)
    assert pid is not None
    process = warm.Forked(pid, script)
    ready = os.environ.get("BIREME_TEST_READY")
    while run and ready and not Path(ready).exists():
        time.sleep(0.01)
    if run and ready:
        process.send_signal(signal.SIGTERM)
    codes.append(process.wait(120))
    pids.append(pid)
print(json.dumps({"codes": codes, "pids": pids, "template": template.pid}), flush=True)
template.close()
