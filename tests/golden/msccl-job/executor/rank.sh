#!/bin/sh
# One rank: ./rank.sh MODE COMMAND... sets the environment of the mode and becomes the command.
set -eu
CHORALE_JOB=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export CHORALE_JOB
mode=$1
shift
. "$CHORALE_JOB/environment/$mode.sh"
exec "$@"
