"""Files that cannot be written are refused before any work: none of the inputs here is there, or fits."""

import pytest

from tests.command import chorale

LINES = (
    "alltoall nothing:4 -o no/a.parquet",
    "auto --dump no.xml -o no/a.json",
    "experiment nothing --plot no/a.png",
    "failures nothing:4 -o no/a.csv",
    "find --nodes many --degree 4 --plot no/a.png",
    "find --nodes many --degree 4 --search-record no/a.json",
    "lift no.xml -o no/a.xml",
    "lower no.parquet -o no/a.xml",
    "record -o no/a.json -- nothing",
    "record-training no:thing -o no/a.json",
    "run no.parquet --trace no/a.json",
    "show no.parquet --plot no/a.png",
    "simulate bfb nothing:4 --sizes 1M --plot no/a.png",
    "synth nothing:4 -o no/a.parquet",
    "table write no.xml -o no/a.table",
    "table export no.table --for nccl -o no/a.csv",
    "topology import no.xml -o no/a.json",
    "topology show nothing:4 --plot no/a.png",
    "training no.json nothing:4 --plot no/a.png",
    "verify no.json --fix -o no/a.json",
)


@pytest.mark.parametrize("line", LINES)
def test_a_missing_folder_is_told_first(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    finished = chorale(capsys, *line.split())
    assert finished.code == 2
    assert "the folder of an output file must exist; got no; create it first" in " ".join(finished.stderr.split())
