"""The critical path of an execution: known causes in small cases, and no gaps in any."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.api.base import ExecutionTrace, RankTrace, StepSpan
from chorale.runners.measurement.critical_path import Cause, CriticalPath, time_by_cause
from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.launch.executions import execution_line, execution_row
from chorale.tuner.plots.trace_events import trace_events


def program_of(spec: str, collective=ALLGATHER, method: str = "ring") -> Program:
    verified = synthesize(method, parse_topology(spec), collective, None, SerialExecutor())
    return lower(verified, LoweringOptions("oneccl-xml"))


PAIR = program_of("complete:2", method="bfb")


def pair_trace(sender_ready_s: float, sender_start_s: float, arrival_s: float, start_s: float = 0.0) -> ExecutionTrace:
    """Rank 1 waits for rank 0; what rank 0 receives comes early."""
    ranks = []
    for rank in range(2):
        spans = []
        for number, block in enumerate(PAIR.ranks[rank].blocks):
            for step, instruction in enumerate(block.instructions):
                times = (start_s, start_s, start_s + 0.01)
                if rank == 0 and instruction.op.sends:
                    times = (sender_ready_s, sender_start_s, sender_start_s)
                if rank == 1 and instruction.op.receives:
                    times = (0.0, arrival_s, arrival_s)
                spans.append(StepSpan(number, step, 0, 0, *times))
        ranks.append(RankTrace(start_s if rank == 0 else 0.0, arrival_s, 0.001 * rank, tuple(spans)))
    return ExecutionTrace("pair", 8, tuple(ranks))


def causes(trace: ExecutionTrace) -> dict[Cause, float]:
    return {cause: pytest.approx(time) for cause, time in time_by_cause(CriticalPath(PAIR, trace).segments()).items()}


def test_a_rank_that_begins_late_is_start_skew():
    found = causes(pair_trace(0.5, 0.5, 0.7, start_s=0.5))
    assert found[Cause.START] == 0.5
    assert found[Cause.LINK] == 0.2


def test_a_connection_without_room_is_a_full_buffer():
    found = causes(pair_trace(0.1, 0.6, 0.7))
    assert found[Cause.BUFFER] == 0.5
    assert found[Cause.LINK] == 0.1


def test_a_rank_that_does_not_come_to_it_is_the_processor():
    found = causes(pair_trace(0.4, 0.4, 0.5))
    assert found[Cause.PROCESSOR] == 0.4
    assert found[Cause.LINK] == 0.1


ALLREDUCE_PROGRAM = program_of("hypercube:2", ALLREDUCE, "bfb")


@given(st.integers(0, 2**32 - 1))
def test_the_path_has_no_gaps(seed: int):
    random = np.random.default_rng(seed)
    ranks = []
    for part in ALLREDUCE_PROGRAM.ranks:
        spans = []
        for number, block in enumerate(part.blocks):
            clock_s = 0.0
            for step in range(len(block.instructions)):
                ready, start, end = clock_s + np.cumsum(random.exponential(size=3))
                spans.append(StepSpan(number, step, 0, 0, float(ready), float(start), float(end)))
                clock_s = float(end)
        last_s = max(span.end_s for span in spans)
        ranks.append(RankTrace(float(random.random()), last_s, 0.0, tuple(spans)))
    trace = ExecutionTrace("random", 64, tuple(ranks))
    segments = CriticalPath(ALLREDUCE_PROGRAM, trace).segments()
    assert segments[0].begin_s == 0
    assert segments[-1].end_s == trace.time_s
    assert all(one.end_s == pytest.approx(two.begin_s) for one, two in itertools.pairwise(segments))
    assert sum(time_by_cause(segments).values()) == pytest.approx(trace.time_s)


def test_nothing_traced_has_no_path():
    trace = pair_trace(0.1, 0.1, 0.2)
    bare = replace(trace, ranks=tuple(replace(rank, steps=()) for rank in trace.ranks))
    assert CriticalPath(PAIR, bare).segments() == ()


def test_a_trace_travels_as_plain_values():
    for rank in pair_trace(0.1, 0.25, 0.5).ranks:
        assert RankTrace.from_json(json.loads(json.dumps(rank.to_json()))) == rank


def test_a_report_names_cause_and_rank():
    row = execution_row(PAIR, pair_trace(0.5, 0.5, 0.7, start_s=0.5), 0.2)
    assert row["latest_start"] == {"rank": 0, "us": 500_000}
    assert row["most_processor_time"]["rank"] == 1
    assert "start skew 71%" in execution_line(row)
    assert "rank 0 began last, 500000 us late" in execution_line(row)


def test_events_are_those_of_perfetto_and_repeat_byte_for_byte():
    traces = [(pair_trace(0.1, 0.1, 0.2), None), (pair_trace(0.1, 0.15, 0.3), None)]
    text = trace_events(PAIR, traces)
    assert text == trace_events(PAIR, traces)
    events = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    assert len(events) == 2 * sum(len(block.instructions) for part in PAIR.ranks for block in part.blocks)
    assert all(event["dur"] >= 0 and {"pid", "tid", "ts", "name"} <= event.keys() for event in events)
    assert any(event["args"]["critical"] for event in events)
    second = [event["ts"] for event in events[len(events) // 2 :]]
    assert min(second) >= 200_000 + 1000
