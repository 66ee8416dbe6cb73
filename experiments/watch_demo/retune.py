"""A campaign that the watch launches itself once a job has ended, and the next job, which runs what it found."""

from __future__ import annotations

import time
from dataclasses import replace

from chorale.experiments.watch_demo.demo import WATCH_NAME, Json, WatchDemo, WatchProcess, read_steps, wait_until
from chorale.experiments.watch_demo.figures import median_s
from chorale.synth.errors import CheckFailed
from chorale.tuner.files.home import Home
from chorale.tuner.watch.assembly import watch_folder

_STEPS = 12
_CAMPAIGN: Json = {"final": {"launches": 4, "contenders": 2, "minutes": 0.5}, "repeats": 3, "parallel": 1}
_SECTION: Json = {"hours": ["00:00-24:00"], "trials": 2, "minutes": 1, "campaign": _CAMPAIGN}
_CAMPAIGN_LIMIT_S = 600.0
"""At the lowest priority it gets what others leave of a busy machine."""


def retune(demo: WatchDemo, steps_before: int) -> Json:
    """A job whose times part from the prediction ends; the watch tunes, and a job trains on the table that follows."""
    demo = replace(demo, settings={"retune": _SECTION, "jobs": [str(demo.status_path)]})
    log, stop = demo.fresh_files()
    (watch_folder(Home.from_environment(), WATCH_NAME) / "retune.json").unlink(missing_ok=True)  # what is tuned already
    with demo.watching() as watch:
        with demo.training(log, stop):
            wait_until("the job has trained", lambda: len(read_steps(log)) >= max(steps_before, _STEPS))
            wait_until("its times have parted from the prediction", lambda: _stage(watch, "due") is not None)
            began_early = _stage(watch, "began")
            stop.touch()
        stopped_s, before = time.time(), read_steps(log)
        wait_until("the campaign has begun", lambda: _stage(watch, "began") is not None)
        wait_until("it has ended", lambda: _has_ended(watch), _CAMPAIGN_LIMIT_S)
        wait_until("its programs were compared", lambda: _is_settled(watch))
        stop.unlink()
        with demo.training(log, stop):
            count = len(read_steps(log))
            wait_until("the next job has trained", lambda: len(read_steps(log)) >= count + _STEPS)
            stop.touch()
    due, began, ended = (_stage(watch, stage) or {} for stage in ("due", "began", "ended"))
    tables = [event for event in watch.events if event["event"] == "publish"]
    return {
        "departures": due["rows"],
        "began_while_the_job_ran": began_early is not None,
        "began_s": began["time_s"] - stopped_s,
        "campaign_s": ended["time_s"] - began["time_s"],
        "programs": ended["rows"],
        "canaries": [event["rows"] for event in watch.events if event["event"] == "canary"],
        "published": [event["why"] for event in tables],
        "allreduce_s": {"before": median_s(before[1:]), "after": median_s(read_steps(log)[count + 1 :])},
        "wrong_sums": sum(step["wrong"] > 0 for step in read_steps(log)),
    }


def _stage(watch: WatchProcess, stage: str) -> Json | None:
    return next((e for e in watch.events if e["event"] == "retune" and e["stage"] == stage), None)


def _has_ended(watch: WatchProcess) -> bool:
    """Return whether the campaign has; CheckFailed where it has found no program."""
    failure = _stage(watch, "failed")
    if failure is not None:
        raise CheckFailed("the campaign must find a program", failure["why"], "see what was printed above")
    return _stage(watch, "ended") is not None


def _is_settled(watch: WatchProcess) -> bool:
    """Return whether what the campaign found is published, or nothing new was found or compared to be as fast."""
    ended = _stage(watch, "ended")
    if ended is None or not any(row["is_new"] for row in ended["rows"]):
        return True
    return any(e["event"] in ("canary", "publish") and e["time_s"] >= ended["time_s"] for e in watch.events)
