"""Measures offsets between the clocks of processes, with an error bound that holds for any message delays.

`clock_identity` recognizes processes that read the same clock, so that no offset has to be measured for them.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chorale.synth.errors import CheckFailed, InvalidInput

MAX_DRIFT = 500e-6
"""Maximum drift between two clocks in seconds per second: NTP's limit for a clock's frequency error (RFC 5905, A.1.1,
MAXFREQ)."""

_RESOLUTION_S = 1e-9  # readings are rounded to this


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The times of one clock query: local time of the request and of the reply, and the remote time in the reply."""

    sent_s: float
    remote_s: float
    returned_s: float

    @property
    def delay_s(self) -> float:
        """Return the total travel time of the query and its reply."""
        return self.returned_s - self.sent_s


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The difference of two clocks, remote minus local. `error_s` bounds its error at the local time `at_s`."""

    offset_s: float
    error_s: float
    at_s: float
    max_drift: float

    def error_at(self, own_s: float) -> float:
        """Return the maximum error in seconds of the offset when the local clock shows `own_s`."""
        return self.error_s + self.max_drift * abs(own_s - self.at_s)


SAME_CLOCK = ClockOffset(0.0, 0.0, 0.0, 0.0)
"""Offset between processes that read the same clock."""


def clock_offset(samples: Sequence[ClockSample], max_drift: float = MAX_DRIFT) -> ClockOffset:
    """Return the midpoint of the tightest bounds on the clocks' offset. O(samples).

    No message arrives before it was sent. So every sample shows remote - returned <= offset <= remote - sent,
    widened by the possible drift of the clocks between the sample and the time of the result. The tightest bounds come
    from the fastest message in each direction, so delays may differ between directions. (NTP's minimum-delay
    filter, RFC 5905, section 10, uses one sample for both directions.) Raises CheckFailed if no offset satisfies all
    bounds, which means that a clock was set or drifts too fast.
    """
    if not samples:
        raise InvalidInput(
            "there are no samples of the clocks to compute an offset from", "", "sample the other clock at least once"
        )
    quickest = min(samples, key=lambda sample: sample.delay_s)
    at_s = (quickest.sent_s + quickest.returned_s) / 2
    low, high = -float("inf"), float("inf")
    for sample in samples:
        slack = _RESOLUTION_S + max_drift * max(abs(at_s - sample.sent_s), abs(at_s - sample.returned_s))
        low = max(low, sample.remote_s - sample.returned_s - slack)
        high = min(high, sample.remote_s - sample.sent_s + slack)
    if low > high:
        rule = f"two clocks must keep within {max_drift * 1e6:g} us per second of each other"
        raise CheckFailed(rule, f"bounds apart by {low - high:.3g} s", "check whether the clock was set meanwhile")
    return ClockOffset((low + high) / 2, (high - low) / 2, at_s, max_drift)


def clock_identity() -> str:
    """Return an id of this process's monotonic clock. Processes with the same id read the same clock. The id consists
    of the kernel's boot id and the time namespace.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    space = Path("/proc/self/ns/time")
    since = boot.read_text().strip() if boot.exists() else f"process {os.getpid()}"
    return f"{since} {os.readlink(space) if space.exists() else ''}"
