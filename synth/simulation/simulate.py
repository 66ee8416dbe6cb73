"""Predicts the time of a traffic pattern on a network, with the congestion model or a flow-level simulation."""

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast, get_args

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Progress
from chorale.synth.names import name_among
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.congestion import congestion_of
from chorale.synth.simulation.flow_simulation import NetworkModel, pipelined_flows, simulate_flows, stepped_flows

Fidelity: TypeAlias = Literal["step", "flow"]
FIDELITIES: tuple[str, ...] = get_args(Fidelity)
DEFAULT_PIPELINE_CHUNKS = 64
"""Default number of chunks into which the flow-level simulation divides pipelined traffic."""
MAX_CHUNKS = 2**16


def as_fidelity(text: str) -> Fidelity:
    """Return `text` as the name of a simulation model. Raises InvalidInput for unknown names."""
    return cast(Fidelity, name_among("model", text, FIDELITIES))


def simulate(
    traffic: Traffic,
    network: NetworkModel,
    sizes_bytes: Sequence[int],
    fidelity: Fidelity = "step",
    *,
    pipeline_chunks: int | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Return the predicted time in seconds for vectors of each size. The result is deterministic.

    fidelity: "step": the congestion model (`chorale.synth.simulation.congestion`), exact, with barriers between steps;
              "flow": the flow-level simulation (`chorale.synth.simulation.flow_simulation`), in which ranks only wait
              for data that they receive, and messages share links fairly
    pipeline_chunks: number of chunks per stream of a pipelined pattern; None for the best number ("step") or
              `DEFAULT_PIPELINE_CHUNKS` ("flow"); ignored for stepped patterns
    progress: called with (messages arrived, messages to simulate for all sizes); only used by "flow"

    >>> from chorale.synth import SerialExecutor, parse_collective, parse_topology, synthesize, traffic_of
    >>> ring = parse_topology("ring:4")
    >>> verified = synthesize("bfb", ring, parse_collective("allgather"), None, SerialExecutor())
    >>> network = NetworkModel.of(alpha_us="10", link_gbps="100")
    >>> [f"{seconds * 1e6:.1f} us" for seconds in simulate(traffic_of(verified.schedule), network, [1024, 2**20])]
    ['20.0 us', '51.5 us']
    """
    if pipeline_chunks is not None and not 1 <= pipeline_chunks <= MAX_CHUNKS:
        rule = f"what trees stream is cut into 1 to {MAX_CHUNKS} chunks"
        raise InvalidInput(rule, pipeline_chunks, "choose a number in this range")
    streams = list(traffic.streams())
    if fidelity == "step":
        congestions = [congestion_of(stream) for stream in streams]
        return [
            float(sum(part.seconds(network, size, pipeline_chunks) for part in congestions)) for size in sizes_bytes
        ]
    chunks = pipeline_chunks or DEFAULT_PIPELINE_CHUNKS
    seconds = [0.0] * len(sizes_bytes)
    for number, stream in enumerate(streams):
        is_pipelined = stream.kind == "pipelined"
        graph = pipelined_flows(stream, chunks) if is_pipelined else stepped_flows(stream)
        amounts = stream.denominator * (chunks if is_pipelined else 1)
        for index, size_bytes in enumerate(sizes_bytes):
            done_before = (number * len(sizes_bytes) + index) * graph.messages

            def report(done: int, messages: int, before: int = done_before) -> None:
                if progress is not None:
                    progress(before + done, len(streams) * len(sizes_bytes) * messages)

            times = simulate_flows(graph, stream.topology, network, size_bytes / amounts, progress=report)
            if stream.is_in_network and bool(np.isnan(times.arrived_s).any()):
                rule = "the flow model cannot simulate trees that cross switches in opposite directions in one step: {}"
                raise InvalidInput(rule, stream.topology.spec, "use the congestion model (--model step)")
            seconds[index] += times.end_s
    return seconds
