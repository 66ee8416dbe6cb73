"""`python -m tests.local_stack [--check]`: the processes of the compose file on this machine, without containers."""

import json
import signal
import sys
import time

from chorale.synth.errors import ChoraleError
from tests.local_stack.check import check
from tests.local_stack.stack import Stack

USAGE = "usage: python -m tests.local_stack [--check]"


def main(arguments: list[str]) -> int:
    """Start everything; with --check use it once and end, else run until SIGINT or SIGTERM. Return the exit code."""
    if arguments not in ([], ["--check"]):
        print(USAGE, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # so that everything is ended then, too
    try:
        with Stack() as stack:
            stack.start()
            print(f"service {stack.service_url}\ntoken {stack.token}\nmlflow {stack.mlflow_url}", file=sys.stderr)
            if arguments:
                print(json.dumps(check(stack), indent=1))
                return 0
            while True:
                stack.require_running()
                time.sleep(1)
    except KeyboardInterrupt:
        return 130
    except ChoraleError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
