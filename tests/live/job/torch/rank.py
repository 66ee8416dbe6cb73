"""One rank of a job in torch: `python -m tests.live.job.torch.rank FOLDER SCENARIO…`, with RANK and WORLD_SIZE set.

It leaves FOLDER/RANK.json: for each scenario "ok", or how it went wrong.
"""

import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from tests.live.job.torch import collectives, plans, refusals, reloading, training, unusual
from tests.live.job.torch.meeting import Meeting

SCENARIOS: Mapping[str, Callable[[Meeting], None]] = {
    name: scenario
    for module in (collectives, plans, training, refusals, reloading, unusual)
    for name, scenario in vars(module).items()
    if callable(scenario) and scenario.__module__ == module.__name__ and not name.startswith("_")
}
"""The public functions of these modules."""


SCENARIO_LIMIT_S = 100.0


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    results = {}
    for name in names:
        faulthandler.dump_traceback_later(SCENARIO_LIMIT_S, exit=True)  # says where it waits, of every thread
        start = time.monotonic()
        results[name] = _run(SCENARIOS[name], Meeting(folder / name, rank, ranks))
        sys.stderr.write(f"{name}: {time.monotonic() - start:.1f} s\n")
        (folder / f"{rank}.json").write_text(json.dumps(results))


def _run(scenario: Callable[[Meeting], None], meeting: Meeting) -> str:
    try:
        scenario(meeting)
    except Exception:
        return traceback.format_exc()
    finally:
        if dist.is_initialized() and scenario is not refusals.exit_without_destroy:
            dist.destroy_process_group()
    return "ok"


if __name__ == "__main__":
    main()
