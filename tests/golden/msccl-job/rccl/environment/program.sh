# Variables of the mode program; $CHORALE_JOB is the folder of the job.
export MSCCL_ALGO_DIR="$CHORALE_JOB"/algorithms
export RCCL_MSCCL_FORCE_ENABLE=1
export NCCL_MIN_NCHANNELS=1
export NCCL_DEBUG=WARN
export NCCL_DEBUG_FILE="$CHORALE_JOB"/logs/program."$CHORALE_PART".%h.%p.txt
