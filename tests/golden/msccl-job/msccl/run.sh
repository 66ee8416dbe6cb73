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
mkdir -p "$CHORALE_JOB/logs"
rm -f "$CHORALE_JOB/logs/$mode".*
if [ -n "${SLURM_JOB_ID:-}" ]; then
  export PRTE_MCA_plm_slurm_args="--overlap --job-name=${CHORALE_STEP:-chorale}" OMPI_MCA_plm_slurm_args="--overlap --job-name=${CHORALE_STEP:-chorale}"
fi
mpirun -np 4 --map-by ppr:2:node --host gpu-a:2,gpu-b:2 "$CHORALE_JOB/rank.sh" "$mode" 0 \
  all_reduce_perf -b 1048576 -e 16777216 -f 4 -d float -o sum -g 1 -c 1 -a 1 -n "$iterations" -w "$warmup"
