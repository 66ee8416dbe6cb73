# Variables of the mode library; $CHORALE_JOB is the folder of the job.
unset MSCCL_XML_FILES NCCL_ALGO
export NCCL_DEBUG=WARN
export NCCL_DEBUG_FILE="$CHORALE_JOB"/logs/library."$CHORALE_PART".%h.%p.txt
export LD_LIBRARY_PATH=/opt/msccl/lib"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
