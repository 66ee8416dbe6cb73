"""A job reads its table without any heavy library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import chorale
from chorale.job.table.layout import table_bytes
from chorale.synth.errors import InvalidInput
from tests.unit.job.table.test_layout import ring_table

HEAVY = ("ray", "mlflow", "scipy", "numpy", "torch", "optuna", "pyarrow", "pydantic", "rich", "yaml")
CODE = """
import json, sys, chorale as ch
table = ch.load_table(sys.argv[1])
print(json.dumps({"modules": sorted(sys.modules), "text": repr(table)}))
"""


def test_reading_a_table_loads_few_modules_and_no_heavy_ones(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(table_bytes(ring_table()))
    done = subprocess.run([sys.executable, "-c", CODE, tmp_path / "t"], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert not {name.partition(".")[0] for name in said["modules"]} & set(HEAVY)
    ours = [name for name in said["modules"] if name.startswith("chorale")]
    assert len(ours) < 20, ours
    assert said["text"] == "<Table of 4 ranks on ring:4: allreduce; 3 entries, 1 programs>"


def test_a_program_is_short_in_print(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(table_bytes(ring_table()))
    table = chorale.load_table(tmp_path / "t")
    assert table == ring_table()
    (program,) = table.programs.values()
    assert len(repr(program)) < 400


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="none"):
        chorale.load_table(str(tmp_path / "none"))
