"""How the processes of a request are started and watched; what they do is the interpreter's."""

from __future__ import annotations

import time

from chorale.runners.oneccl.install import INTERPRETER
from chorale.runners.oneccl.tasks import RankProcesses, local_ranks
from chorale.runners.process_launch.processes import LocalHost

SCRIPT = b"""#!/bin/sh
case "$(cat task)" in
first) echo address > key-store ;;
fails) echo "error: no luck" >&2; exit 4 ;;
esac
printf '%s of %s, %s, %s, ' "$CCL_LOCAL_RANK" "$CCL_LOCAL_SIZE" "$1" "$EXTRA" > seen
cat key-store >> seen
echo end > results
exec sleep 100
"""


PROGRAM = {INTERPRETER: SCRIPT}


def test_ranks_get_their_tasks_and_the_key_store() -> None:
    with RankProcesses([LocalHost(), LocalHost("127.0.0.2"), LocalHost()]) as processes:
        processes.start(PROGRAM, ["first", "b", "c"], {"EXTRA": "x"}, time.monotonic() + 10)
        assert processes.wait(time.monotonic() + 10)
        assert processes.texts("seen") == [
            "0 of 2, 127.0.0.1, x, address\n",
            "0 of 1, 127.0.0.2, x, address\n",
            "1 of 2, 127.0.0.1, x, address\n",
        ]
        assert processes.codes() == [None, None, None]


def test_the_others_stay_out_when_the_first_fails() -> None:
    with RankProcesses([LocalHost(), LocalHost()]) as processes:
        processes.start(PROGRAM, ["fails", "b"], {}, time.monotonic() + 10)
        assert not processes.wait(time.monotonic() + 10)
        assert processes.codes() == [4]
        assert processes.last_error(0) == "error: no luck"


def test_waiting_ends_with_the_first_that_ends() -> None:
    with RankProcesses([LocalHost(), LocalHost()]) as processes:
        processes.start(PROGRAM, ["first", "fails"], {}, time.monotonic() + 10)
        assert not processes.wait(time.monotonic() + 10)
        assert processes.codes() == [None, 4]
        processes.wait_for_reports(time.monotonic() + 0.1)


def test_without_a_key_store_in_time_the_others_stay_out() -> None:
    with RankProcesses([LocalHost(), LocalHost()]) as processes:
        processes.start(PROGRAM, ["never", "b"], {}, time.monotonic() + 0.2)
        assert processes.codes() == [None]


def test_positions_are_counted_for_each_address() -> None:
    places = [LocalHost(address) for address in "abacb"]
    assert local_ranks(places) == [(0, 2), (0, 2), (1, 2), (0, 1), (1, 2)]
