# Variables of the mode library; $CHORALE_JOB is the folder of the job.
unset MSCCL_ALGO_DIR
export NCCL_MSCCL_ENABLE=0
export NCCL_DEBUG=WARN
export NCCL_DEBUG_FILE="$CHORALE_JOB"/logs/library."$CHORALE_PART".%h.%p.txt
