"""The all-to-all rate by the whole linear program of the full paper, appendix A.5: slow, for small networks."""

import numpy as np
from scipy.optimize import linprog

from chorale.synth.topology.topology import Topology


def full_alltoall_rate(topology: Topology, amounts: np.ndarray | None = None) -> float:
    """Maximise f such that every rank s has a flow that leaves f * amounts[s][t] at every other rank t (else f).

    The solver sees links of at most 1. Its tolerances are a part of that: NaN is returned where it gives up.
    """
    ranks, nodes, links = topology.compute_count, topology.node_count, list(topology.links)
    widest = max(link.bandwidth for link in links)
    variables = ranks * len(links) + 1
    capacity_rows = np.zeros((len(links), variables))
    delivery_rows = []
    for source in range(ranks):
        offset = source * len(links)
        capacity_rows[:, offset : offset + len(links)] = np.eye(len(links))
        for node in range(nodes):
            if node == source:
                continue
            row = np.zeros(variables)
            for index, link in enumerate(links):
                row[offset + index] = float(link.src == node) - float(link.dst == node)
            row[-1] = float(node < ranks) * (1 if amounts is None or node >= ranks else amounts[source][node])
            delivery_rows.append(row)
    objective = np.zeros(variables)
    objective[-1] = -1.0
    result = linprog(
        objective,
        A_ub=np.vstack([capacity_rows, *delivery_rows]),
        b_ub=np.concatenate([[float(link.bandwidth / widest) for link in links], np.zeros(len(delivery_rows))]),
    )
    return float("nan") if result.x is None else float(result.x[-1]) * float(widest)
