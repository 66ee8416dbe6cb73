#!/bin/sh
# In place of srun for the mpiexec of MPICH: its proxies start in the order of its hosts, beside what the job runs. They
# go by the number of their node, which srun counts in its own order, so that the number of their task takes its place.
unset SLURM_HOSTFILE
words=$#
while [ "$words" -gt 0 ]; do
  case $1 in
    hydra_*_proxy | */hydra_*_proxy)
      set -- "$@" sh -c 'SLURM_NODEID=$SLURM_PROCID; export SLURM_NODEID; exec "$@"' sh ;;
  esac
  set -- "$@" "$1"
  shift
  words=$((words - 1))
done
exec srun --overlap --mpi=none --job-name="${CHORALE_STEP:-chorale}" --distribution=arbitrary "$@"
