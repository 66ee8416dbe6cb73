#!/bin/sh
# One rank: ./rank.sh MODE PART COMMAND... says where it is, sets the environment of the mode and becomes the command.
set -eu
CHORALE_JOB=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
mode=$1
CHORALE_PART=$2
export CHORALE_JOB CHORALE_PART
shift 2
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${SLURM_PROCID:-}}}}
if [ -n "$rank" ]; then
  host=$(hostname)
  aliases="$host $(hostname -I 2>/dev/null || true)"
  echo "${SLURMD_NODENAME:-$host} $aliases" > "$CHORALE_JOB/hosts/$mode.$CHORALE_PART.$rank"
fi
. "$CHORALE_JOB/environment/$mode.sh"
exec "$@"
