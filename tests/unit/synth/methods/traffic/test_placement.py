"""Advice on experts: each step lowers the bound or evens loads, and the rule of EPLB is as it is published."""

import numpy as np

from chorale.synth import parse_topology
from chorale.synth.methods.traffic.copies import plan_dispatch
from chorale.synth.methods.traffic.placement import advise, bound_of, eplb
from chorale.synth.methods.traffic.tokens import TokenBatch, route_tokens


def skewed(tokens: int, experts: int, ranks: int) -> TokenBatch:
    random = np.random.default_rng(0)
    logits = -np.log(np.arange(experts) + 1.0) + random.gumbel(size=(tokens, experts))
    placement = (np.arange(experts) * ranks // experts)[:, None]
    return TokenBatch("skewed", np.argsort(-logits, axis=1)[:, :2], np.arange(tokens) * ranks // tokens, placement)


def test_steps_lower_the_bound_and_the_plan_follows():
    topology, batch = parse_topology("h100:2"), skewed(512, 32, 16)
    before = bound_of(topology, batch)
    steps = advise(topology, batch, 4)
    assert steps
    last = steps[-1]
    assert last.time_lower == bound_of(topology, batch._replace(placement=last.placement)) < before
    after = plan_dispatch(topology, route_tokens(batch._replace(placement=last.placement), 16))
    assert after.time < plan_dispatch(topology, route_tokens(batch, 16)).time
    for step in steps:
        assert step.target in step.placement[step.expert]
        assert step.source in step.placement[step.expert if step.other is None else step.other]


def test_the_rule_of_eplb():
    experts = np.repeat([0, 1, 2, 3], [8, 4, 3, 1])[:, None]
    batch = TokenBatch("eplb", experts, np.zeros(16, dtype=np.int64), np.array([[0], [0], [1], [1]]))
    assert eplb(batch, 2, 0).tolist() == [[0], [1], [1], [0]]
    assert eplb(batch, 2, 1).tolist() == [[0, 1], [0, -1], [1, -1], [1, -1]]
