#!/bin/sh
# One rank: ./rank.sh MODE PART COMMAND... sets the environment of the mode and becomes the command.
set -eu
CHORALE_JOB=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
mode=$1
CHORALE_PART=$2
export CHORALE_JOB CHORALE_PART
shift 2
. "$CHORALE_JOB/environment/$mode.sh"
exec "$@"
