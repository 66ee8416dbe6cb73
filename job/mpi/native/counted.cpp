// The functions of MPI that begin a collective and return before it is over, and those with a type for each rank.
#include "counted.hpp"

using namespace chorale::job;

namespace {

// Those of the group that a reduction leaves shards with, unless there are two groups.
template <typename Count>
size_t sum_of(const Count* counts, MPI_Comm comm) {
    const Group* group = group_of(comm);
    return group == nullptr || group->is_inter() ? 0 : received(counts, comm);
}

size_t of_all(MPI_Count count, MPI_Comm comm) {
    const Group* group = group_of(comm);
    return group == nullptr || count < 0 ? 0 : size_t(count) * size_t(group->ranks());
}

template <typename Count>
size_t bytes_of(const Count* counts, const MPI_Datatype* types, MPI_Comm comm) {
    const Group* group = group_of(comm);
    if (group == nullptr || group->is_inter() || counts == nullptr || types == nullptr) return 0;
    size_t sum = 0;
    for (int rank = 0; rank < group->ranks(); rank++)
        if (counts[rank] > 0 && types[rank] != MPI_DATATYPE_NULL) sum += size_t(counts[rank]) * size_of(types[rank]);
    return sum;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

#define NONBLOCKING(name, Name, form) MPI_I##name##form
#define OWN_NONBLOCKING(name, Name, form) PMPI_I##name##form
#define PERSISTENT(name, Name, form) MPI_##Name##_init##form
#define OWN_PERSISTENT(name, Name, form) PMPI_##Name##_init##form
#define REQUEST MPI_Request* request
#define GIVEN_REQUEST request
#define INFO MPI_Info info, MPI_Request* request
#define GIVEN_INFO info, request

// Defines functions for a type of counts, of places in elements, and of places in bytes.
#define BEGUN(Count, Place, Bytes, NAME, OWN, form, MORE, REST)                                                        \
    int NAME(allreduce, Allreduce, form)(const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op,             \
            MPI_Comm comm, MORE) {                                                                                     \
        return counted("allreduce", comm, -1, n, type, PENDING,                                                        \
                       [&] { return OWN(allreduce, Allreduce, form)(in, out, n, type, op, comm, REST); });             \
    }                                                                                                                  \
    int NAME(reduce, Reduce, form)(const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op, int root,         \
            MPI_Comm comm, MORE) {                                                                                     \
        return counted("reduce", comm, root, n, type, PENDING,                                                         \
                       [&] { return OWN(reduce, Reduce, form)(in, out, n, type, op, root, comm, REST); });             \
    }                                                                                                                  \
    int NAME(bcast, Bcast, form)(void* at, Count n, MPI_Datatype type, int root, MPI_Comm comm, MORE) {                \
        return counted("broadcast", comm, root, n, type, PENDING,                                                      \
                       [&] { return OWN(bcast, Bcast, form)(at, n, type, root, comm, REST); });                        \
    }                                                                                                                  \
    int NAME(reduce_scatter_block, Reduce_scatter_block, form)(const void* in, void* out, Count n,                     \
            MPI_Datatype type, MPI_Op op, MPI_Comm comm, MORE) {                                                       \
        return counted("reduce_scatter", comm, -1, of_all(n, comm), type, PENDING,                                     \
                       [&] { return OWN(reduce_scatter_block, Reduce_scatter_block, form)(in, out, n, type, op,        \
            comm, REST); });                                                                                           \
    }                                                                                                                  \
    int NAME(reduce_scatter, Reduce_scatter, form)(const void* in, void* out, const Count* n, MPI_Datatype type,       \
            MPI_Op op, MPI_Comm comm, MORE) {                                                                          \
        return counted("reduce_scatter", comm, -1, sum_of(n, comm), type, PENDING,                                     \
                       [&] { return OWN(reduce_scatter, Reduce_scatter, form)(in, out, n, type, op, comm, REST); });   \
    }                                                                                                                  \
    int NAME(allgather, Allgather, form)(const void* in, Count in_n, MPI_Datatype in_type, void* out, Count n,         \
            MPI_Datatype type, MPI_Comm comm, MORE) {                                                                  \
        return counted("allgather", comm, -1, of_all(n, comm), type, PENDING,                                          \
                       [&] { return OWN(allgather, Allgather, form)(in, in_n, in_type, out, n, type, comm, REST); });  \
    }                                                                                                                  \
    int NAME(alltoall, Alltoall, form)(const void* in, Count in_n, MPI_Datatype in_type, void* out, Count n,           \
            MPI_Datatype type, MPI_Comm comm, MORE) {                                                                  \
        return counted("alltoall", comm, -1, of_all(n, comm), type, PENDING,                                           \
                       [&] { return OWN(alltoall, Alltoall, form)(in, in_n, in_type, out, n, type, comm, REST); });    \
    }                                                                                                                  \
    int NAME(allgatherv, Allgatherv, form)(const void* in, Count in_n, MPI_Datatype in_type, void* out,                \
            const Count* n, const Place* at, MPI_Datatype type, MPI_Comm comm, MORE) {                                 \
        return counted("allgather", comm, -1, received(n, comm), type, PENDING,                                        \
                       [&] { return OWN(allgatherv, Allgatherv, form)(in, in_n, in_type, out, n, at, type, comm,       \
            REST); });                                                                                                 \
    }                                                                                                                  \
    int NAME(alltoallv, Alltoallv, form)(const void* in, const Count* in_n, const Place* in_at,                        \
            MPI_Datatype in_type, void* out, const Count* n, const Place* at, MPI_Datatype type, MPI_Comm comm,        \
            MORE) {                                                                                                    \
        return counted("alltoall", comm, -1, received(n, comm), type, PENDING,                                         \
                       [&] { return OWN(alltoallv, Alltoallv, form)(in, in_n, in_at, in_type, out, n, at, type,        \
            comm, REST); });                                                                                           \
    }                                                                                                                  \
    int NAME(alltoallw, Alltoallw, form)(const void* in, const Count* in_n, const Bytes* in_at,                        \
            const MPI_Datatype* in_types, void* out, const Count* n, const Bytes* at, const MPI_Datatype* types,       \
            MPI_Comm comm, MORE) {                                                                                     \
        return counted("alltoall", comm, -1, bytes_of(n, types, comm), MPI_BYTE, PENDING,                              \
                       [&] { return OWN(alltoallw, Alltoallw, form)(in, in_n, in_at, in_types, out, n, at, types,      \
            comm, REST); });                                                                                           \
    }

BEGUN(int, int, int, NONBLOCKING, OWN_NONBLOCKING, , REQUEST, GIVEN_REQUEST)
#if MPI_VERSION >= 4 || (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5)
BEGUN(int, int, int, PERSISTENT, OWN_PERSISTENT, , INFO, GIVEN_INFO)
#endif
#if MPI_VERSION >= 4
BEGUN(MPI_Count, MPI_Aint, MPI_Aint, NONBLOCKING, OWN_NONBLOCKING, _c, REQUEST, GIVEN_REQUEST)
BEGUN(MPI_Count, MPI_Aint, MPI_Aint, PERSISTENT, OWN_PERSISTENT, _c, INFO, GIVEN_INFO)

int MPI_Alltoallw_c(const void* in, const MPI_Count* in_n, const MPI_Aint* in_at, const MPI_Datatype* in_types,
                    void* out, const MPI_Count* n, const MPI_Aint* at, const MPI_Datatype* types, MPI_Comm comm) {
    return counted("alltoall", comm, -1, bytes_of(n, types, comm), MPI_BYTE, SHAPE,
                   [&] { return PMPI_Alltoallw_c(in, in_n, in_at, in_types, out, n, at, types, comm); });
}
#endif

int MPI_Alltoallw(const void* in, const int* in_n, const int* in_at, const MPI_Datatype* in_types, void* out,
                  const int* n, const int* at, const MPI_Datatype* types, MPI_Comm comm) {
    return counted("alltoall", comm, -1, bytes_of(n, types, comm), MPI_BYTE, SHAPE,
                   [&] { return PMPI_Alltoallw(in, in_n, in_at, in_types, out, n, at, types, comm); });
}
}
#pragma GCC visibility pop
