"""Command lines: a test program for some sizes, and what starts one of it for each rank."""

from __future__ import annotations

from collections.abc import Mapping

from chorale.runners.msccl.options import DTYPES, JobOptions
from chorale.runners.msccl.sizes import SizeProgression
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import Program

TEST_PROGRAMS: Mapping[CollectiveName, str] = {
    CollectiveName.ALLREDUCE: "all_reduce_perf",
    CollectiveName.ALLGATHER: "all_gather_perf",
    CollectiveName.REDUCE_SCATTER: "reduce_scatter_perf",
    CollectiveName.BROADCAST: "broadcast_perf",
    CollectiveName.REDUCE: "reduce_perf",
    CollectiveName.ALLTOALL: "alltoall_perf",
}

PROOF_ITERATIONS = 2
"""Calls of each size and placement in a proof, besides those that check and warm up."""


def perf_command(program: Program, options: JobOptions, sizes: SizeProgression) -> list[str]:
    """Return the command of one rank but for `-n` and `-w`: one GPU per process, checked once, mean over the ranks."""
    collective = program.collective
    name = TEST_PROGRAMS[collective.name]
    command = [name if options.tests_folder is None else f"{options.tests_folder}/{name}"]
    command += ["-b", str(sizes.sizes_bytes[0]), "-e", str(sizes.sizes_bytes[-1]), "-f", str(sizes.factor)]
    command += ["-d", DTYPES[options.dtype]]
    if collective.reduces:
        command += ["-o", "sum"]
    if collective.is_rooted:
        command += ["-r", str(collective.root or 0)]
    return [*command, "-g", "1", "-c", "1", "-a", "1"]


def gpus_per_node(ranks: int, options: JobOptions) -> int:
    """Return how many ranks each node has; InvalidInput unless every rank gets a GPU and every GPU of a host a rank."""
    nodes = len(options.hosts)
    per_node = options.gpus_per_node or -(-ranks // max(1, nodes))
    if nodes and nodes * per_node != ranks:
        there = f"{nodes} hosts with {per_node} GPUs"
        raise InvalidInput(f"the hosts must have exactly {ranks} GPUs, one per rank", there, "name other hosts")
    if ranks % per_node:
        raise InvalidInput(f"gpus_per_node must divide the {ranks} ranks", per_node, "choose a divisor")
    return per_node


def launch_command(ranks: int, options: JobOptions) -> list[str]:
    """Return what starts the command that follows it once for each rank, node by node in the order of `hosts`."""
    per_node = gpus_per_node(ranks, options)
    hosts = ",".join(options.hosts)
    if options.launcher == "openmpi":
        slots = ",".join(f"{host}:{per_node}" for host in options.hosts)
        command = ["mpirun", "-np", str(ranks), "--map-by", f"ppr:{per_node}:node"]
        return [*command, "--host", slots] if slots else command
    if options.launcher == "mpich":
        command = ["mpiexec", "-n", str(ranks), "-ppn", str(per_node)]
        return [*command, "-hosts", hosts] if hosts else command
    command = ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", f"--ntasks={ranks}", f"--ntasks-per-node={per_node}"]
    return [*command, f"--nodelist={hosts}"] if hosts else command
