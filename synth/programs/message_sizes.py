"""How many chunks of a step travel as one message: what MSCCL's runtimes choose by size, and the sizes it holds for.

A slot of a connection holds a part of the buffer that the runtime has for it. A message is as many whole chunks as
fit into a slot, so that large vectors travel in more messages, and a program that is right for small ones may hang.
Source: the kernels' choice of chunks per message in microsoft/msccl and Azure/msccl-executor-nccl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chorale.synth.programs.program import Protocol

MOST_CHUNKS = 71
"""Chunks of the largest message, and of the largest step."""


@dataclass(frozen=True, slots=True)
class MessageBuffer:
    """The buffer of a connection as a runtime has it by default, and the part of it that one message may fill."""

    buffer_bytes: int
    slot_bytes: int

    def chunks_at(self, size_bytes: int, chunks: int) -> int:
        """Return the chunks of a message where the vector has `size_bytes`, cut into `chunks`; 0 bytes: any size."""
        if size_bytes == 0:
            return 1
        return min(max(self.slot_bytes // -(-size_bytes // chunks), 1), MOST_CHUNKS)

    def largest_size(self, message_chunks: int, chunks: int) -> int | None:
        """Return the bytes of the largest vector with messages of at least `message_chunks`; None for any size."""
        return None if message_chunks <= 1 else chunks * (self.slot_bytes // message_chunks)


MSCCL_BUFFERS: Mapping[Protocol, MessageBuffer] = {
    "Simple": MessageBuffer(4 * 2**20, 2 * 2**20),
    "LL": MessageBuffer(512 * 2**10, 32 * 2**10),
    "LL128": MessageBuffer(4_915_200, 576_000),
}
"""Of both MSCCL runtimes, unless NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE or NCCL_LL128_BUFFSIZE say otherwise."""
