# Variables of the mode proof; $CHORALE_JOB is the folder of the job.
export MSCCL_XML_FILES="$CHORALE_JOB"/algorithms/program.xml
export NCCL_ALGO=MSCCL,RING,TREE
export NCCL_DEBUG=INFO
export NCCL_DEBUG_SUBSYS=INIT,ENV
export NCCL_DEBUG_FILE="$CHORALE_JOB"/logs/proof."$CHORALE_PART".%h.%p.txt
export LD_LIBRARY_PATH=/opt/msccl/lib"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
