"""What makes native code new: a change of a header counts, wherever the header lies."""

import ctypes
from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native


def test_a_header_of_another_folder_that_changes_is_built_anew(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    source = tmp_path / "value.cpp"
    source.write_text('#include "value.h"\nextern "C" int value() { return VALUE; }\n')
    target = NativeTarget("libvalue.so", (source,), ("-shared", "-fPIC"), (headers,))
    for number in (1, 2):
        (headers / "value.h").write_text(f"#define VALUE {number}\n")
        assert ctypes.CDLL(str(build_native(target, tmp_path))).value() == number
