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
CHORALE_STEP=${CHORALE_STEP:-chorale}
unset SLURM_HOSTFILE
# srun must offer the PMI that the MPI of the test programs uses: try the likely kind first, then the other.
if [ -z "${CHORALE_MPI:-}" ]; then
  case $(ldd "$(command -v /opt/nccl-tests/build/all_gather_perf)" 2>/dev/null) in
    *libmpi.so.12* | *libmpich*) types="pmi2 pmix" ;;
    *) types="pmix pmi2" ;;
  esac
  for CHORALE_MPI in $types; do
    ! srun --overlap --mpi="$CHORALE_MPI" --nodes=1 --ntasks=1 true 2>/dev/null || break
  done
fi
srun --mpi="$CHORALE_MPI" --overlap --kill-on-bad-exit=1 --job-name="$CHORALE_STEP" --nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=block "$CHORALE_JOB/rank.sh" "$mode" 0 \
  /opt/nccl-tests/build/all_gather_perf -b 1048576 -e 3145728 -f 3 -d float -g 1 -c 1 -a 1 -n "$iterations" -w "$warmup"
