"""Programs that somebody wrote by hand compete in campaigns: as candidates and as baselines, up to best and tables."""

from pathlib import Path
from typing import Any

import pytest

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.tuner.cli.tune import _checked_campaign
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.campaign_file import load_campaign
from chorale.tuner.config.values import is_adopted, read_program_file
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.plan import adopted_programs, check_methods
from chorale.tuner.launch.tune import TuneReport
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.registry import load_best
from chorale.tuner.trials.records import CompleteTrial
from tests.campaigns import small_campaign
from tests.command import chorale
from tests.hand_written import direct_allreduce
from tests.unit.synth.programs.plans.examples import made
from tests.unit.tuner.launch.test_tuning import run


@pytest.fixture
def hand(tmp_path: Path) -> Path:
    path = tmp_path / "by hand.xml"
    path.write_text(direct_allreduce(4))
    return path


def campaign(hand: Path, **changes: Any) -> Campaign:
    """Return a campaign of which `hand` is a candidate beside rings, and a baseline beside a ring."""
    document = {
        "topology": "complete:4",
        "search": {"methods": ["ring"], "programs": [str(hand)], "channels": [1, 2]},
        "baselines": ["ring"],
    }
    return small_campaign(**{**document, **changes})


def adopted_trials(report: TuneReport) -> list[CompleteTrial]:
    return [trial for trial in report.trials if isinstance(trial, CompleteTrial) and is_adopted(trial.candidate.method)]


@pytest.mark.parametrize("target", ["msccl-xml", "mscclpp-json"])
def test_a_program_wins_and_comes_back_without_a_schedule_and_in_a_table(home, hand, tmp_path, capsys, target):
    if target == "mscclpp-json":
        hand = tmp_path / "plan.json"
        hand.write_text(made("complete:4", "allreduce"))
    report, name = run(home, campaign(hand)), read_program_file(str(hand)).name
    [trial] = adopted_trials(report)
    assert (trial.candidate.method, trial.schedule_id) == (name, "")
    if target == "msccl-xml":
        assert (trial.channels, trial.blocks) == (1, 3)
        assert set(report.versions) == {4096, 65536}
    best = load_best(MlflowStore(home.mlflow_uri, home.artifacts), load_topology("complete:4"), "allreduce", 65536)
    assert best.manifest["parameters"]["method"] == name
    assert (best.program.schedule, best.program.program) == (None, hand.read_bytes())
    answer = ("--topology", "complete:4", "--collective", "allreduce", "--size", "64KiB")
    found = chorale(capsys, "best", *answer, "-o", tmp_path, "--json").document
    assert found["schedule"] is None
    assert Path(found["program"]).read_bytes() == hand.read_bytes()
    chorale(capsys, "table", "write", "--campaign", "small", "-o", tmp_path / "table", code=0)
    shown = chorale(capsys, "table", "show", tmp_path / "table", "--json").document
    [program] = shown["programs"].values()
    assert (program["method"], program["target"]) == (name, target)
    if target == "msccl-xml":
        assert {entry["certificate"]["gap"] for entry in shown["entries"]} == {"0"}  # half the vector over each link
    chorale(capsys, "table", "verify", tmp_path / "table", code=0)
    chorale(capsys, "table", "write", "--topology", "complete:4", "-o", tmp_path / "other", code=0)


def test_a_program_is_a_baseline_and_the_answer_where_nothing_beats_it(home, hand):
    report = run(home, campaign(hand, search={"methods": ["ring"]}, baselines=["ring", str(hand)]))
    name = read_program_file(str(hand)).name
    for trial in report.trials:
        assert set(trial.sizes[0].baseline_times_s) == {"ring", name}
    best = load_best(MlflowStore(home.mlflow_uri, home.artifacts), load_topology("complete:4"), "allreduce", 65536)
    assert best.program.program == direct_allreduce(4).encode()


def test_a_plan_needs_memory_that_ranks_share(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(made("complete:4", "allreduce"))
    place = f"campaign key `search.programs`: {plan}"
    for runner in ({"kind": "local"}, {"kind": "mpi"}):
        message = refusal(campaign(plan, runner=runner))
        assert message.startswith(f"{place}: plans of MSCCL++ must be measured with shared memory or a model"), message
    plan.write_text(plan.read_text().replace('"name": "signal"', '"name": "nop"', 1))
    assert refusal(campaign(plan)).startswith(place)


def test_a_resumed_launch_knows_the_file_by_its_content(home, hand):
    wanted = campaign(hand, baselines=["ring", str(hand)])
    first, again = run(home, wanted), run(home, wanted, resume=True)
    assert len(again.trials) == len(first.trials)
    hand.write_text(direct_allreduce(4, max_bytes=2**20))
    with pytest.raises(InvalidInput, match="baselines"):
        run(home, wanted, resume=True)


def test_paths_are_relative_to_the_campaign_file(home, hand, tmp_path):
    (tmp_path / "campaign.yaml").write_text(
        "{name: c, topology: 'complete:4', collective: allreduce, sizes: [4KiB], runner: {kind: simulated},"
        " search: {programs: [by hand.xml]}, baselines: [by hand.xml]}"
    )
    loaded = load_campaign(str(tmp_path / "campaign.yaml"))
    assert loaded.search.programs == loaded.baselines == [str(hand)]
    assert _checked_campaign(str(tmp_path / "campaign.yaml"), ())[0] == loaded


def refusal(wanted: Campaign) -> str:
    with pytest.raises((InvalidInput, CheckFailed)) as refused:
        adopted_programs(wanted, load_topology(wanted.topology))
    return str(refused.value)


def test_refusals_name_the_key_the_file_the_rule_and_the_way_out(hand):
    place = f"campaign key `search.programs`: {hand}"
    assert refusal(campaign(hand, collective="allgather")) == (
        f"{place}: a program must be for the collective of the campaign, allgather, got allreduce; "
        "leave it out, or change `collective`"
    )
    gpus = refusal(campaign(hand, runner={"kind": "oneccl"}))
    assert gpus.startswith(f"{place}: programs for the oneccl runner must be oneccl-xml, in place, got msccl-xml")
    assert "the program is for 3 ranks" not in refusal(campaign(hand, topology="complete:5"))
    hand.write_text(direct_allreduce(4, max_bytes=8192))
    assert refusal(campaign(hand)).startswith(f"{place}: a program must support all sizes of the campaign, got 64KiB, ")
    hand.write_text(direct_allreduce(4).replace('type="rrc"', 'type="r"', 1))
    wrong = refusal(campaign(hand))
    assert wrong.startswith(f"{place}: a program must compute its collective correctly on complete:4 (")
    assert wrong.endswith(f"see all violations with `chorale lift {hand}`")
    hand.write_text("<algo")
    assert refusal(campaign(hand)).startswith(place)
    hand.write_text('{"name": "plan", "gpus": []}')
    assert refusal(campaign(hand)).startswith(place)
    assert refusal(campaign(hand.with_name("no.xml"))).startswith("campaign key `search.programs`: cannot read")
    with pytest.raises(InvalidInput, match="unknown method in campaign key `baselines`"):  # services take no files
        check_methods(campaign(hand, baselines=[str(hand)]))
    check_methods(campaign(hand, baselines=[str(hand)]), files=True)
