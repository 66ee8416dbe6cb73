"""The MPI runner: a program's ranks are processes of one MPI job, which exchange MPI messages."""
