"""Plans of one-sided operations of every kind do what they must, by the check and on a weakly ordered executor."""

import copy
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.collective import parse_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.lower import exceeded_limit, lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.plans.plan import Action, ExecutionPlan
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets import mscclpp_text
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import read_checked
from chorale.synth.targets.mscclpp_text import LIMITS, parse_plan, plan_text
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule
from tests.conformance.plan_cases import CASES, Json, document_of, ops_of, plan_case
from tests.properties import random_cases
from tests.unit.synth.lowering.programs import exchange_schedule, lowered, verified
from tests.unit.synth.programs.plans.examples import SMALL, made
from tests.unit.synth.programs.plans.weak import WeakRun

GOLDEN = Path(__file__).parents[4] / "golden" / "mscclpp-json-ring3-allreduce-inplace.json"


def test_the_text_is_as_recorded():
    assert made("ring:3", "allreduce") == GOLDEN.read_text()


def test_a_translation_is_used_again_for_equal_programs_only():
    """Lowering needs a plan twice: for its limits, and for its text."""
    program = lowered("ring:4", "allreduce", "mscclpp-json", "ring")
    plan = plan_of(program)
    assert plan_of(replace(program, origin="elsewhere")) == replace(plan, origin="elsewhere")
    assert plan_of(replace(program, protocol="LL")).protocol == "LL"


def checked(schedule: VerifiedSchedule, **options: object) -> ExecutionPlan:
    plan = plan_of(lower(schedule, LoweringOptions("mscclpp-json", **options)))
    assert check_program(plan) == []
    return plan


def test_an_allgather_in_place_needs_no_scratch_and_no_copies():
    plan = checked(verified("complete:4", "allgather"))
    assert all(body.scratch_chunks == 0 for body in plan.ranks)
    assert not {"copy", "re"} & set(actions(plan))


def test_what_an_exchange_overwrites_waits_in_scratch():
    """Both send what they then overwrite, and neither knows when the other has."""
    assert max(body.scratch_chunks for body in checked(exchange_schedule(3)).ranks) >= 6


def test_long_blocks_are_cut_until_there_are_too_many():
    schedule = verified("ring:16", "allreduce", "ring")
    whole, cut = checked(schedule, channels=2), checked(schedule, sm_count=7)
    for plan in (whole, cut):
        assert max(len(block.operations) for body in plan.ranks for block in body.blocks) <= 64
    assert len(cut.ranks[0].blocks) > len(lower(schedule, LoweringOptions("mscclpp-json")).ranks[0].blocks)
    with pytest.raises(InvalidInput, match=r"thread blocks that must run at once: 7 is above the limit 6"):
        lower(schedule, LoweringOptions("mscclpp-json", sm_count=6))


def test_a_plan_is_checked_on_its_network():
    text = made("ring:4", "allreduce").encode()
    plan = read_checked(text, parse_topology("ring:4"))
    assert (plan.target, len(plan.ranks), plan_text(plan).encode()) == ("mscclpp-json", 4, text)
    with pytest.raises(CheckFailed, match="ranks"):
        read_checked(text, parse_topology("ring:5"))


KINDS = {
    "packets": {"protocol": "LL"},
    "ports": {"ranks_per_box": 2},
    "packets through ports": {"protocol": "LL", "ranks_per_box": 2},
    "reads": {"reads": True},
    "reads and ports": {"reads": True, "ranks_per_box": 2},
    "groups": {"block_group": 2},
    "groups of packets": {"protocol": "LL", "block_group": 2},
    "pipelines": {"pipeline_bytes": 65536},
    "pipelines and ports": {"pipeline_bytes": 65536, "ranks_per_box": 2},
    "reading pipelines": {"pipeline_bytes": 65536, "reads": True},
}


def actions(plan: ExecutionPlan) -> Counter[str]:
    return Counter(
        f"{each.action.value}{'' if each.kind == 'memory' else f' by {each.kind}'}"
        for body in plan.ranks
        for block in body.blocks
        for each in block.every_operation()
    )


PLANS = [
    *((kind, "ring:4", "ring", "allreduce", number % 2 == 0) for number, kind in enumerate(KINDS)),
    ("ports", "ring:4", "ring", "allgather", False),
    ("reads", "ring:4", "ring", "reduce_scatter", False),
    ("groups", "ring:4", "ring", "reduce_scatter", True),
    ("pipelines", "ring:4", "ring", "allgather", True),
    ("several channels", "complete:4", "bfb", "allgather", False),
    ("plain", "torus:2x3", "bfb", "allreduce", False),
    ("plain", "complete:4", "bfb", "reduce_scatter", True),
    ("plain", "a100:1", "forest", "allgather", True),
    ("plain", "hypercube:3", "recursive-doubling", "allreduce", True),
]


@pytest.mark.parametrize(("kind", "spec", "method", "collective", "in_place"), PLANS)
def test_plans_of_each_kind_are_right_in_any_order(kind, spec, method, collective, in_place):
    options = KINDS.get(kind, {"channels": 2, "instances": 2} if kind == "several channels" else {})
    text = made(spec, collective, method, in_place=in_place, fuse=in_place, **options)
    plan = parse_plan(text.encode())
    assert check_program(plan) == []
    assert plan_text(plan) == text
    assert WeakRun(json.loads(text), 3, 0).is_right()


@pytest.mark.parametrize("kind", KINDS)
def test_rooted_collectives(kind):
    """Nothing leads back to a root, so that its next call has to hear that the last one is over."""
    options = LoweringOptions("mscclpp-json", **KINDS[kind])
    for name in ("broadcast", "reduce"):
        tree = synthesized("forest", "ring:4", parse_collective(name, 1))
        if options.protocol == "LL" and name == "reduce":
            with pytest.raises(InvalidInput, match=r"with packets a sum .* use protocol Simple"):
                lower(tree, options)
        else:
            assert check_program(plan_of(lower(tree, options))) == []


def test_ports_join_the_boxes_that_the_topology_has():
    plan = checked(verified("a100:2", "allgather", "forest"))
    for rank, body in enumerate(plan.ranks):
        assert all((peer < 8) == (rank < 8) for peer in body.peers)
        assert all((peer < 8) != (rank < 8) for peer in body.port_peers)
    assert actions(plan)["pws by port"] > 0


def test_reads_are_where_nothing_is_overwritten_before():
    """In an exchange both overwrite what the other needs, so that nobody can read it there."""
    plan = checked(exchange_schedule(3), reads=True)
    assert actions(plan)["put"] > 0 == actions(plan)["get"]
    ring = checked(verified("ring:4", "reduce_scatter", "ring"), reads=True)
    assert actions(ring)["rre"] == 12
    assert max(body.scratch_chunks for body in ring.ranks) == 0


def test_a_source_that_is_overwritten_is_copied_for_the_port():
    plan = checked(exchange_schedule(3), ranks_per_box=1)
    assert actions(plan)["pws by port"] == actions(plan)["copy"] > 0


def test_packets_of_a_sum_are_sent_as_it_is_made():
    plan = parse_plan(made("ring:4", "allreduce", "ring", protocol="LL", fuse=True).encode())
    assert actions(plan)["respkt"] == 8
    assert actions(plan)["rppkt"] == 8
    assert actions(plan)["signal"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "LL128"}, "protocol Simple or LL"),
        ({"protocol": "LL", "reads": True}, "plans with packets have no option"),
        ({"protocol": "LL", "pipeline_bytes": 64}, "plans with packets have no option"),
        ({"block_group": 2, "pipeline_bytes": 64}, "a plan has either pipelines or block groups, not both"),
        ({"pipeline_bytes": 24}, "multiples of 16 bytes"),
        ({"block_group": 65}, "1 to 64 thread blocks"),
        ({"ranks_per_box": 3}, "do not divide the 4 ranks"),
        ({"max_bytes": 2**32 - 1, "instances": 6, "in_place": False, "fuse": True}, "offsets have 32 bits"),
        ({"collective": "reduce_scatter", "protocol": "LL", "in_place": False}, "a sum .* must be in input or output"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        made("ring:4", **({"collective": "allreduce", "method": "ring"} | options))
    with pytest.raises(InvalidInput, match="its runtime sends and receives"):
        lower(verified("ring:4", "allgather"), LoweringOptions("msccl-xml", reads=True))


WRONG = [(name, wrong) for name, case in CASES.items() for wrong in case.wrong]


def rules_of(document: Json) -> set[str]:
    try:
        return {violation.rule for violation in check_program(parse_plan(json.dumps(document).encode()))}
    except InvalidInput:
        return {"refused"}


@pytest.mark.parametrize("name", CASES)
def test_right_plans_are_right_and_written_again(name):
    plan = plan_case(name)
    assert [violation.message for violation in check_program(plan)] == []
    assert parse_plan(plan_text(plan).encode()) == plan
    assert not fails(document_of(name))


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=[f"{name}: {wrong}" for name, wrong in WRONG])
def test_wrong_plans_break_the_rule(name, wrong):
    assert CASES[name].wrong[wrong][1] in rules_of(document_of(name, wrong))


SEEDS, CALLS = 6, 3


def fails(document: Json, seeds: int = SEEDS) -> bool:
    return not all(WeakRun(document, CALLS, seed).is_right() for seed in range(seeds))


SHOWN = [
    ("put", "only relaxed signals after the put"),
    ("put", "a signal before the threads have met"),
    ("put", "nothing says that the put is over"),
    ("put", "nobody waits for the other to begin"),
    ("packets", "without halves of scratch"),
    ("packets by turns", "one half only"),
    ("a source that a port still reads", "no nop before the port reads"),
    ("packets put by a port", "before all threads have written them"),
    ("switch", "nothing says that it is over"),
    ("switch packets", "one half only"),
    ("groups and barriers", "no barrier"),
    ("pipeline", "a semaphore that begins high"),
    ("reduce and send", "no nop between a wait and the sum"),
]


@pytest.mark.parametrize(("name", "wrong"), SHOWN)
def test_wrong_plans_fail_in_some_order(name, wrong):
    """Where a case breaks no rule of the text, some order of threads and writes gives a wrong result, or hangs."""
    assert fails(document_of(name, wrong), seeds=300)


@random_cases(250)
@given(st.data())
def test_what_passes_the_check_is_right_in_any_order(data):
    """Plans with operations left out, doubled, swapped or moved are refused, or right in every order that is tried."""
    texts = [plan_text(plan) for plan in SMALL]
    document = data.draw(st.sampled_from(sorted(CASES)).map(document_of) | st.sampled_from(texts).map(json.loads))
    for _ in range(data.draw(st.integers(1, 2))):
        _damage(document, data)
    assert rules_of(document) or not fails(document)


def _damage(document: Json, data: Any) -> None:
    rank = data.draw(st.integers(0, len(document["gpus"]) - 1))
    block = data.draw(st.integers(0, len(document["gpus"][rank]["threadblocks"]) - 1))
    ops = ops_of(document, rank, block)
    if ops and ops[0]["name"] == "pipeline":
        ops = ops[0]["ops"]
    if not ops:
        return
    at = data.draw(st.integers(0, len(ops) - 1))
    how = data.draw(st.sampled_from(["drop", "double", "swap", "shift", "number", "all ranks"]))
    if how == "drop":
        del ops[at]
    elif how == "double":
        ops.insert(at, copy.deepcopy(ops[at]))
    elif how == "swap":
        other = (at + 1) % len(ops)
        ops[at], ops[other] = ops[other], ops[at]
    elif how == "shift" and ops[at].get(side := data.draw(st.sampled_from(["src_buff", "dst_buff"]))):
        ops[at][side][-1]["index"] = data.draw(st.integers(0, 3))
    elif how == "number" and (name := next((n for n in ("channel_ids", "semaphore_ids") if n in ops[at]), None)):
        ops[at][name] = [data.draw(st.integers(0, 3))]
    elif how == "all ranks":
        for each, gpu in enumerate(document["gpus"]):
            others = ops_of(document, each, min(block, len(gpu["threadblocks"]) - 1))
            others = others[0]["ops"] if others and others[0]["name"] == "pipeline" else others
            if at < len(others):
                del others[at]


TEXT = made("ring:3", "allreduce", in_place=False)


def changed(**changes: object) -> bytes:
    return json.dumps(json.loads(TEXT) | changes).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"\xff\xfe{}",
        b"{}",
        b'{"name": NaN}',
        b'{"a":' * 200_000,
        b'{"name": ' + b"9" * 5000 + b"}",
        changed(protocol="LL128"),
        changed(collective="sendrecv"),
        changed(reuse_resources="yes"),
        changed(gpus=[]),
        changed(inplace=1),
        changed(max_message_size=2**64),
        TEXT.replace('"id": 1', '"id": 2', 1).encode(),
        TEXT.replace('"memory"', '"nvls"', 1).encode(),
        TEXT.replace('"name": "put"', '"name": "fetch"', 1).encode(),
        TEXT.replace('"type": "o"', '"type": "x"', 1).encode(),
        TEXT.replace('"index": 1', '"index": -1', 1).encode(),
        TEXT.replace('"size": 1', '"size": 4294967296', 1).encode(),
        TEXT.replace('"name": "nop"', '"name": "nop", "tbg_info": {}', 1).encode(),
        TEXT.replace('"input_chunks": 3', '"input_chunks": 0', 1).encode(),
    ],
    ids=lambda text: str(text[:24]),
)
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(InvalidInput) as refusal:
        parse_plan(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


def test_what_is_too_long_is_refused_before_it_is_parsed():
    with pytest.raises(InvalidInput, match="at most 67108864 bytes"):
        parse_plan(b"{" * (64 * 2**20 + 1))


VALUES = st.sampled_from([None, True, -1, 0, 1, 2, 7, 2**40, 2**63, "", "i", "o", "s", "nop", "put", [], {}, [0], 1.5])


@random_cases(300)
@given(st.data())
def test_damaged_text_is_refused_or_harmless(data):
    document = json.loads(TEXT)
    node: Any = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.integers(0, 3)) == 0:
            break
        node = node[key]
    node[key] = data.draw(VALUES)
    assert rules_of(document) or not fails(document, 1)


ODD = st.sampled_from([None, True, -1, 2**70, 1.5, "i", "zz", [], {}, [0], [[0]], {"index": 0, "size": 1, "type": "i"}])
OPERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from([action.value for action in Action]) | ODD,
        "channel_type": st.sampled_from(["memory", "port", "switch", "none"]) | ODD,
        "channel_ids": st.lists(st.integers(0, 3)) | ODD,
        "semaphore_ids": st.lists(st.integers(0, 3)) | ODD,
        "src_buff": st.lists(
            st.fixed_dictionaries(
                {"index": st.integers(0, 9) | ODD, "size": st.integers(0, 9), "type": st.just("o") | ODD}
            )
            | st.fixed_dictionaries({"index": st.integers(0, 9), "size": ODD, "buffer_id": st.integers(0, 3) | ODD})
        )
        | ODD,
        "dst_buff": st.lists(st.just({"type": "s", "index": 1, "size": 1})) | ODD,
        "else": ODD,
    },
)


@given(OPERATIONS)
def test_an_odd_operation_is_read_or_refused_with_what_is_wrong(value):
    fields = mscclpp_text.JsonFields(value, "an operation")
    try:
        operation = mscclpp_text._read_operation(fields)
    except InvalidInput:
        return
    assert operation.action.value == value["name"]


def test_clocks_beyond_the_check_are_a_limit_that_shows_at_once(monkeypatch):
    program = lowered("ring:4", "allreduce", "mscclpp-json")
    monkeypatch.setattr("chorale.synth.lowering.lower.MAX_CLOCK_ENTRIES", 100)
    assert "clock entries with which order is checked: at least 640 is above the limit 100" in exceeded_limit(
        program, LIMITS
    )


def test_128_ranks_are_lowered_and_more_refused():
    program = lowered("hypercube:7", "allreduce", "mscclpp-json", "recursive-doubling")
    assert len(parse_plan(plan_text(plan_of(program)).encode()).ranks) == 128
    with pytest.raises(InvalidInput, match="256 is above the limit 128"):
        lowered("hypercube:8", "allreduce", "mscclpp-json", "recursive-doubling")
