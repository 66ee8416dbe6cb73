#!/bin/sh
# Run one rank: ./rank.sh MODE PART COMMAND... sets the mode's environment, then executes the command.
set -eu
CHORALE_JOB=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
mode=$1
CHORALE_PART=$2
export CHORALE_JOB CHORALE_PART
shift 2
. "$CHORALE_JOB/environment/$mode.sh"
exec "$@"
