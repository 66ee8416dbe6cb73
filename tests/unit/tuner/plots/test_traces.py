"""Traces of executions for Perfetto."""

import json

from chorale.runners.api.base import StepSpan
from chorale.tuner.cli.run import trace_events
from tests.conformance.example_programs import ring_allreduce

RING = ring_allreduce(range(2))


def test_every_step_is_an_event_and_executions_follow_one_another():
    steps = [
        (rank, number, step)
        for rank, part in enumerate(RING.ranks)
        for number, block in enumerate(part.blocks)
        for step in range(len(block.instructions))
    ]
    executions = [[StepSpan(*step, 0, 0.1, *times_s) for step in steps] for times_s in ((0, 0.2), (0.15, 0.3))]
    text = trace_events(RING, executions)
    assert text == trace_events(RING, executions)
    first, second = (json.loads(text)["traceEvents"] for text in (text, trace_events(RING, executions[:1])))
    events = [(event["ts"], event["dur"], event["args"]) for event in first if event["ph"] == "X"]
    told = [(at_us, took_us, more["until_first_byte_us"]) for at_us, took_us, more in events]
    assert len(events) == 2 * len(steps) == len(first) - len(second) + len(steps)
    assert set(told[: len(steps)]) == {(100_000, 100_000, 0)}
    assert set(told[len(steps) :]) == {(301_000, 200_000, 50_000)}
