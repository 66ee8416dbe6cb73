"""`chorale verify` of program files: XML of any dialect and plans for MSCCL++."""

import pytest

from tests.command import chorale


@pytest.fixture(params=["msccl-xml", "mscclpp-json"])
def files(request, capsys, tmp_path):
    schedule = tmp_path / "schedule.parquet"
    program = tmp_path / ("program.xml" if request.param == "msccl-xml" else "program.json")
    assert chorale(capsys, "synth", "bfb", "hypercube:3", "--collective", "allreduce", "-o", schedule).code == 0
    assert chorale(capsys, "lower", schedule, "--target", request.param, "-o", program).code == 0
    return schedule, program


def test_a_right_program_has_the_loads_and_the_cost_of_its_schedule(capsys, files):
    schedule, program = (chorale(capsys, "verify", file, "--json").document for file in files)
    assert program["ok"] is True
    assert program["cost"]["time_per_byte"] == schedule["cost"]["time_per_byte"] == "7/12"
    assert program["link_loads"].items() <= schedule["link_loads"].items()
    assert chorale(capsys, "verify", files[1], "--spec", "hypercube:3").code == 0


def test_a_damaged_program_is_exit_code_1(capsys, files):
    _, program = files
    text = program.read_text()
    program.write_text(text.replace('type="rrc"', 'type="r"', 1).replace('"name": "nop"', '"name": "wait"', 1))
    done = chorale(capsys, "verify", program, "--json")
    assert (done.code, done.document["ok"], done.document["cost"]) == (1, False, None)
    assert done.document["violations"]
    assert chorale(capsys, "verify", program).code == 1


def test_a_program_that_names_no_network_is_judged_alone(capsys, files):
    schedule, program = files
    program.write_text(program.read_text().replace("allreduce bfb hypercube:3", "mine"))
    for command in ("verify", "lift"):
        alone = chorale(capsys, command, program, "--json").document
        assert (alone["ok"], alone["network"]) == (True, None)
        assert "every pair of ranks is taken as connected" in alone["notices"][-1]["message"]
    assert alone["predicted"] is None
    assert chorale(capsys, "verify", program, "--spec", "hypercube:3").code == 0
    assert chorale(capsys, "verify", program, "--spec", "ring:5").code == 1
    refused = chorale(capsys, "verify", schedule, "--spec", "hypercube:3")
    assert (refused.code, "leave it out" in refused.stderr) == (2, True)


def test_programs_and_plans_say_in_which_order_they_add(capsys, files):
    _, program = files
    order = chorale(capsys, "verify", program, "--json").document["order_of_additions"]
    assert (order["fixed"], order["same_on_all_ranks"]) == (True, True)
    assert chorale(capsys, "lift", program, "--spec", "hypercube:3", "--json").document["order_of_additions"] == order
