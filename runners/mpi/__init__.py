"""The MPI runner: the ranks of a program are processes of one MPI job, which exchange MPI messages."""
