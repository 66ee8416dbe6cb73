"""The tuner plug-in of NCCL that applies what `chorale table export --for nccl` or `tune --nccl-tuner-csv` writes.

    NCCL_TUNER_PLUGIN=$(python -m chorale.job.nccl.plugin) NCCL_TUNER_CONFIG_FILE=tuner.csv ...

It is in the wheel, else built at first use, and needs neither CUDA nor NCCL's sources. NCCL's example plug-in reads the
same file, but its sources of NCCL 2.29.7 end the process at the first row that matches, and later ones have one channel
for all calls without a row.
"""

from __future__ import annotations

import sys
from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native, print_library

NATIVE = Path(__file__).parent / "native"
_FLAGS = ("-shared", "-fPIC", "-fvisibility=hidden")


def plugin_target() -> NativeTarget:
    """Return the library of the plug-in."""
    return NativeTarget("libnccl-tuner-chorale.so", tuple(sorted(NATIVE.glob("*.cpp"))), _FLAGS, (NATIVE,))


def tuner_plugin() -> Path:
    """Return the library for NCCL_TUNER_PLUGIN: that of the wheel, else built first where that was not done before.

    Unavailable without a compiler where it has to be built.
    """
    return build_native(plugin_target())


def main() -> int:
    """Print the path of the library."""
    return print_library(tuner_plugin)


if __name__ == "__main__":
    sys.exit(main())
