"""The MPI runner: the ranks of a program as processes of one MPI job, messages as MPI messages."""
