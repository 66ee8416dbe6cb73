// The collectives of MPI that the library intercepts, with an entry for each:
//   X(form, lower, Name, UPPER, pointers, parameters, arguments, counted)
// MPI_Name##form, MPI_Ilower##form and MPI_Name_init##form have `parameters`; in Fortran these are `pointers` pointers.
// `counted` are the arguments of `counted` for a call without a program: collective, communicator, root, count, type.
// Count, Place and Bytes are the types of counts, of displacements in elements and of displacements in bytes.
#pragma once

#define LIST(...) __VA_ARGS__
#define COLLECTIVES(X, Count, Place, Bytes, form)                                                                      \
    X(form, allreduce, Allreduce, ALLREDUCE, 6,                                                                        \
      (const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op, MPI_Comm comm), (in, out, n, type, op, comm), \
      ("allreduce", comm, -1, n, type))                                                                                \
    X(form, reduce, Reduce, REDUCE, 7,                                                                                 \
      (const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),                     \
      (in, out, n, type, op, root, comm), ("reduce", comm, root, n, type))                                             \
    X(form, bcast, Bcast, BCAST, 5, (void* at, Count n, MPI_Datatype type, int root, MPI_Comm comm),                   \
      (at, n, type, root, comm), ("broadcast", comm, root, n, type))                                                   \
    X(form, reduce_scatter_block, Reduce_scatter_block, REDUCE_SCATTER_BLOCK, 6,                                       \
      (const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op, MPI_Comm comm), (in, out, n, type, op, comm), \
      ("reduce_scatter", comm, -1, of_all(n, comm), type))                                                             \
    X(form, reduce_scatter, Reduce_scatter, REDUCE_SCATTER, 6,                                                         \
      (const void* in, void* out, const Count* n, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                        \
      (in, out, n, type, op, comm), ("reduce_scatter", comm, -1, sum_of(n, comm), type))                               \
    X(form, allgather, Allgather, ALLGATHER, 7,                                                                        \
      (const void* in, Count in_n, MPI_Datatype in_type, void* out, Count n, MPI_Datatype type, MPI_Comm comm),        \
      (in, in_n, in_type, out, n, type, comm), ("allgather", comm, -1, of_all(n, comm), type))                         \
    X(form, alltoall, Alltoall, ALLTOALL, 7,                                                                           \
      (const void* in, Count in_n, MPI_Datatype in_type, void* out, Count n, MPI_Datatype type, MPI_Comm comm),        \
      (in, in_n, in_type, out, n, type, comm), ("alltoall", comm, -1, of_all(n, comm), type))                          \
    X(form, allgatherv, Allgatherv, ALLGATHERV, 8,                                                                     \
      (const void* in, Count in_n, MPI_Datatype in_type, void* out, const Count* n, const Place* at,                   \
       MPI_Datatype type, MPI_Comm comm),                                                                              \
      (in, in_n, in_type, out, n, at, type, comm), ("allgather", comm, -1, received(n, comm), type))                   \
    X(form, alltoallv, Alltoallv, ALLTOALLV, 9,                                                                        \
      (const void* in, const Count* in_n, const Place* in_at, MPI_Datatype in_type, void* out, const Count* n,         \
       const Place* at, MPI_Datatype type, MPI_Comm comm),                                                             \
      (in, in_n, in_at, in_type, out, n, at, type, comm), ("alltoall", comm, -1, received(n, comm), type))             \
    X(form, alltoallw, Alltoallw, ALLTOALLW, 9,                                                                        \
      (const void* in, const Count* in_n, const Bytes* in_at, const MPI_Datatype* in_types, void* out, const Count* n, \
       const Bytes* at, const MPI_Datatype* types, MPI_Comm comm),                                                     \
      (in, in_n, in_at, in_types, out, n, at, types, comm), ("alltoall", comm, -1, bytes_of(n, types, comm), MPI_BYTE))
