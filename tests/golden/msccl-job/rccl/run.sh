#!/bin/sh
# ./run.sh MODE: one launch over all sizes. Modes: program (timed), proof (with a log that shows whether the
# program ran), library (the library's own algorithm).
set -eu
CHORALE_JOB=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
mode=${1:-program} iterations=50 warmup=20
case $mode in
  program | library) ;;
  proof) iterations=2 warmup=1 ;;
  *) echo "usage: ./run.sh program | proof | library" >&2; exit 2 ;;
esac
mkdir -p "$CHORALE_JOB/logs" "$CHORALE_JOB/hosts"
rm -f "$CHORALE_JOB/logs/$mode".* "$CHORALE_JOB/hosts/$mode".*
if [ -n "${SLURM_JOB_ID:-}" ] && [ -z "${HYDRA_LAUNCHER:-}" ]; then
  export HYDRA_LAUNCHER=slurm HYDRA_LAUNCHER_EXEC="$CHORALE_JOB/hydra-srun.sh"
fi
mpiexec -n 4 -ppn 2 -hosts gpu-a,gpu-b "$CHORALE_JOB/rank.sh" "$mode" 0 \
  all_reduce_perf -b 1048576 -e 16777216 -f 4 -d double -o sum -g 1 -c 1 -a 1 -n "$iterations" -w "$warmup"
