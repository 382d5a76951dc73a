"""The dispatcher's command: `python3 -m bireme_runtime.dispatcher …` (docs/dispatcher.md)."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from bireme_runtime.dispatcher.client import Dispatcher, DispatcherError, Unavailable
from bireme_runtime.process.errors import CONFIG, FAILED, TEMPORARY, USAGE
from bireme_runtime.process.log import log_of


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"bireme dispatcher: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python3 -m bireme_runtime.dispatcher", description="Hand out shards to trainers.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    commands.add_parser("serve", help="run a replica")
    add = commands.add_parser("add", help="define the dataset")
    add.add_argument("names", nargs="*", metavar="NAME")
    add.add_argument("--from", dest="file", help="a file with a name in each line; - for standard input")
    add.add_argument("--passes", type=int, default=1)
    add.add_argument("--timeout", type=float, default=600.0, help="seconds that a trainer may keep a shard")
    add.add_argument(
        "--failures", type=int, default=3, help="number in a pass after which a shard is given up"
    )
    commands.add_parser("wait", help="wait until the service answers and has a leader")
    commands.add_parser("wait-finished", help="wait until the last trainer has left after the last pass")
    commands.add_parser("delete", help="delete the dataset, which must have no trainers")
    status = commands.add_parser("status", help="show passes, counts, trainers and failed shards")
    # JSON is all there is. Scripts ask for it by this option.
    status.add_argument("-o", "--output", choices=("json",))
    return parser


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Carry out the command; returns an exit code of docs/dispatcher.md."""
    options = _parser().parse_args(argv)
    try:
        if options.command == "serve":
            # Imported here, because trainers do not have the service.
            from bireme_runtime.dispatcher.service import server

            return server.serve(env)
        return _act_as_client(options, Dispatcher(env=env))
    except (DispatcherError, OSError, ValueError) as error:
        log_of("dispatcher")(str(error))
        if isinstance(error, Unavailable):
            return TEMPORARY
        return FAILED if isinstance(error, DispatcherError) else CONFIG


def _act_as_client(options: argparse.Namespace, dispatcher: Dispatcher) -> int:
    if options.command == "add":
        names = [*options.names, *(_lines(options.file) if options.file else ())]
        added = dispatcher.add(names, options.passes, options.timeout, options.failures)
        print(f"dataset {dispatcher.dataset} {'has' if added else 'had'} {len(names)} shards")
    elif options.command == "wait":
        print(f"the dispatcher answers; {dispatcher.status()['leader']} leads")
    elif options.command == "wait-finished":
        dispatcher.wait_finished()
        print(f"dataset {dispatcher.dataset} is finished")
    elif options.command == "delete":
        dispatcher.delete()
        print(f"dataset {dispatcher.dataset} is deleted")
    else:
        print(json.dumps(dispatcher.status(), indent=2))
    return 0


def _lines(file: str) -> list[str]:
    with contextlib.ExitStack() as stack:
        source = sys.stdin if file == "-" else stack.enter_context(open(file, encoding="utf-8"))
        return [line.strip() for line in source if line.strip()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
