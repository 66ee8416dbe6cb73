"""What was set for recorded runs."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.runners.sizes import format_size


@dataclass(frozen=True, slots=True)
class ScheduleOrigin:
    """Where the instructions of a recorded run came from: a schedule that a generator wrote, or the vendor's library.

    schedule:     the name of the file, or of the library
    k, instances: trees per root, and copies on channels of their own; None where the record does not say
    """

    fabric: str
    collective: str
    generator: str
    schedule: str
    k: int | None = None
    instances: int | None = None

    def __str__(self) -> str:
        return f"{self.generator} {self.schedule} ({self.collective} on {self.fabric})"


@dataclass(frozen=True, slots=True)
class RecordedConfiguration:
    """Everything that was set for recorded runs, but for the size.

    buffer_bytes: of each connection's buffer, None for what the runtime takes by itself
    in_place:     whether input and output shared memory
    """

    origin: ScheduleOrigin
    buffer_bytes: int | None
    in_place: bool

    def __str__(self) -> str:
        buffer = "its own buffers" if self.buffer_bytes is None else f"buffers of {format_size(self.buffer_bytes)}"
        return f"{self.origin} with {buffer}, {'in' if self.in_place else 'out of'} place"
