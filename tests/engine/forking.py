"""A process that has imported everything and forks a child for each command it is sent.

The child runs the same entry point as `python -m imsvd`, in a process of its own that can be
killed, without paying seconds for imports every time.
"""

import json
import os
import sys
import traceback

from imsvd import cli, figures
from imsvd.pretraining import pretrain


def _run(arguments: list[str], output: str) -> int:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["imsvd", *arguments]
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def serve() -> None:
    """Read (arguments, output file) as JSON lines; answer with the child's id, then its status."""
    assert pretrain is not None
    assert figures is not None
    for line in sys.stdin:
        arguments, output = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _run(arguments, output)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
