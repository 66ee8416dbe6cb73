"""Reads the library's log (NCCL_DEBUG=INFO, subsystems INIT, ENV and TUNING) to find out how calls were executed.

A call's line has one of these forms; recorded logs are in tests/data/nccl-logs:

    262144 Bytes -> Algo 0 proto 1 time 54.707825                                    2.22 (numbers, on all ranks)
    AllGather: 151003136 Bytes -> Algo 1 proto 2 time 0.000000                       before 2.25, RCCL
    AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}                  2.25 to 2.30, RCCL (rank 0)
    AllReduce: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0} cgaClusterSize 4 2.31, 2.32
    AllReduce [Symmetric]: 2097152 Bytes -> Kernel AllReduce_RSxLDMC_AGxSTMC nchannels 16 nthreads 512 nWorks 1
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chorale.runners.nccl.parameters import ALGORITHMS, SYMMETRIC
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.library_call import LibrarySettings

SUBSYSTEMS = "INIT,ENV,TUNING"

_NAMES = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"}
_NUMBERED = (tuple(ALGORITHMS), ("ll", "ll128", "simple"))
_PLAIN = re.compile(
    r"NCCL INFO (?:(\w+):\s+)?(\d+) Bytes -> Algo (\w+) +[pP]roto (\w+) +"
    r"(?:time [\d.]+|channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})"
)
_SYMMETRIC = re.compile(r"NCCL INFO (\w+) \[Symmetric\]: (\d+) Bytes -> Kernel (\w+) nchannels (\d+)")
_OTHER = re.compile(r"NCCL INFO (\w+) \[([\w ]+)\]: (\d+) Bytes -> ")
_SETTABLE = "(?:(?:LL_|LL128_)?BUFFSIZE|NTHREADS|(?:MIN|MAX)_CTAS|CTA_POLICY|ALGO|PROTO)"
_IGNORED = re.compile(
    rf"NCCL (?:INFO|WARN) (.*(?:is ignored because|Invalid value \S+ for NCCL_{_SETTABLE}|Invalid NCCL_{_SETTABLE} "
    r"|tuner chunk size \d+ exceeds|no algorithm/protocol|cannot be honored|selected set (?:un|is )available"
    r"|[Uu]sing (?:internal|default) tuner|Chorale: no table|Chorale: .* is left out"
    r"|CsvTuner: (?:Skipping|Ignoring)).*)"
)
_VARIABLE = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.*?)\.?$")


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A call as the library executed it.

    collective: name of the collective; None if the version does not log it
    size_bytes: size as the library counts it, which is one rank's shard for allgather and reduce_scatter
    algorithm:  name as in tuner files; for other kernels, the word in the log line's brackets, such as `symmetric`
    protocol, channels: None if the call has none or the version does not log it
    kernel:     name of a symmetric call's kernel; None for other calls
    """

    collective: str | None
    size_bytes: int
    algorithm: str
    protocol: str | None
    channels: int | None
    kernel: str | None = None

    def __str__(self) -> str:
        words = [self.algorithm, self.protocol or self.kernel]
        words += [] if self.channels is None else [f"{self.channels} channel{'s' if self.channels != 1 else ''}"]
        return " ".join(word for word in words if word)


def logged_calls(lines: Iterable[str]) -> list[LoggedCall]:
    return [call for call in map(_call, lines) if call is not None]


def _call(line: str) -> LoggedCall | None:
    if match := _PLAIN.search(line):
        name, size, algorithm, protocol, low, high = match.groups()
        channels = None if low is None else int(high) - int(low) + 1
        return LoggedCall(name, int(size), _named(algorithm, 0), _named(protocol, 1), channels)
    if match := _SYMMETRIC.search(line):
        return LoggedCall(match[1], int(match[2]), SYMMETRIC, None, int(match[4]), match[3])
    if (match := _OTHER.search(line)) and match[1] in _NAMES:
        return LoggedCall(match[1], int(match[3]), match[2].lower(), None, None)
    return None


def _named(text: str, kind: int) -> str:
    names = _NUMBERED[kind]
    return names[int(text)] if text.isdigit() and int(text) < len(names) else text.lower()


def ignored_notices(lines: Iterable[str]) -> list[str]:
    """Return the library's messages about settings that it ignored, without duplicates."""
    return list(dict.fromkeys(match[1].strip() for line in lines if (match := _IGNORED.search(line))))


def variables_read(lines: Iterable[str]) -> dict[str, str]:
    """Return the environment variables that the library has read, according to `lines`."""
    return {match[1]: match[2] for line in lines if (match := _VARIABLE.search(line))}


def not_applied(
    settings: LibrarySettings, collective: CollectiveName, sizes_bytes: Sequence[int], logs: Sequence[Sequence[str]]
) -> str | None:
    """Return a line that says what differs from `settings` in the logged calls; None if the calls ran with `settings`.

    sizes_bytes: sizes as the library counts them
    logs:        for each size, the log lines of one call

    The library may use fewer CTAs than `settings` say for small sizes, but at one size or more it must use all of them.
    """
    reached = settings.ctas is None
    for size_bytes, lines in zip(sizes_bytes, logs, strict=True):
        if notices := ignored_notices(lines):
            return notices[0]
        name = collective.value.replace("_", "")
        calls = [
            call
            for call in logged_calls(lines)
            if call.size_bytes == size_bytes and (call.collective or name).lower() == name
        ]
        if not calls:
            return f"the log does not say what ran at {size_bytes} bytes"
        call = calls[-1]
        protocol = None if settings.protocol is None else settings.protocol.lower()
        if (call.algorithm, call.protocol) != (settings.algorithm, protocol):
            wanted = " ".join(filter(None, (settings.algorithm, protocol)))
            return f"{call} ran at {size_bytes} bytes, not {wanted}"
        in_chunks = f"in chunks of {settings.chunk_bytes}, "  # a message from Chorale's plug-in
        if settings.chunk_bytes is not None and not any(in_chunks in line for line in lines):
            return f"the library did not ask for the size of chunks at {size_bytes} bytes"
        if settings.ctas is not None and call.channels is not None:
            if call.channels > settings.ctas:
                return f"{call} ran at {size_bytes} bytes, more than {settings.ctas}"
            reached = reached or call.channels == settings.ctas
        elif call.channels is None:
            reached = True  # this version of the library does not log the number of channels
    return None if reached else f"fewer than {settings.ctas} channels ran at every size"
