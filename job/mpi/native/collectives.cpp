// The functions of MPI that stand before those of the library. Only what MPI wants to be the same on all ranks decides.
#include <mpi.h>

#include "elements.hpp"
#include "job.hpp"

using namespace chorale::job;

namespace {

// A vector of `count` elements that is reduced.
Call reduction(const char* collective, MPI_Comm comm, int root, size_t count, MPI_Datatype type, MPI_Op op) {
    const Element element = element_of(type);
    const int operation = operation_of(op, element);
    const char* unfit = element.name == nullptr ? DTYPE : operation < 0 ? OPERATION : nullptr;
    return {collective, comm, root, count * size_of(type), element.name, element.type, operation, unfit,
            count, type, op};
}

// A vector of `count` elements that is copied, as bytes.
Call movement(const char* collective, MPI_Comm comm, int root, size_t count, MPI_Datatype type) {
    const char* name = signature_of(type);
    return {collective, comm, root, count * size_of(type), name, -1, -1, name == nullptr ? DTYPE : nullptr};
}

bool is_usable(MPI_Datatype type) { return type != MPI_DATATYPE_NULL; }

// Where `in` is MPI_IN_PLACE, the elements are at `there`.
void* or_there(const void* in, void* there) { return in == MPI_IN_PLACE ? there : const_cast<void*>(in); }

char* after(void* at, size_t count, MPI_Datatype type) {
    MPI_Aint lower = 0, extent = 0;
    PMPI_Type_get_extent(type, &lower, &extent);
    return static_cast<char*>(at) + MPI_Aint(count) * extent;
}

template <typename Count, typename Library>
int allreduce(const void* in, void* out, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, Library library) {
    Group* group = group_of(comm);
    if (group == nullptr || count < 0 || !is_usable(type)) return library();
    const Call call = reduction("allreduce", comm, -1, size_t(count), type, op);
    return serve(*group, call, {or_there(in, out), size_t(count), type}, {out, size_t(count), type}, library);
}

template <typename Count, typename Library>
int reduce(const void* in, void* out, Count count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
           Library library) {
    Group* group = group_of(comm);
    if (group == nullptr || count < 0 || !is_usable(type)) return library();
    const Call call = reduction("reduce", comm, root, size_t(count), type, op);
    void* const target = group->rank() == root ? out : nullptr;
    return serve(*group, call, {or_there(in, out), size_t(count), type}, {target, size_t(count), type}, library);
}

// Of shards of `count` elements; unfit where they are not equal.
template <typename Count, typename Library>
int reduce_scatter(const void* in, void* out, Count count, const char* unfit, size_t total, MPI_Datatype type,
                   MPI_Op op, MPI_Comm comm, Group* group, Library library) {
    if (group == nullptr || count < 0 || !is_usable(type)) return library();
    Call call = reduction("reduce_scatter", comm, -1, total, type, op);
    if (call.unfit == nullptr) call.unfit = unfit;
    return serve(*group, call, {or_there(in, out), total, type}, {out, size_t(count), type}, library);
}

template <typename Count, typename Library>
int reduce_scatter_block(const void* in, void* out, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                         Library library) {
    Group* group = group_of(comm);
    const size_t total = group == nullptr || count < 0 ? 0 : size_t(count) * group->ranks();
    return reduce_scatter(in, out, count, nullptr, total, type, op, comm, group, library);
}

template <typename Count, typename Library>
int reduce_scatter_counts(const void* in, void* out, const Count* counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                          Library library) {
    Group* group = group_of(comm);
    if (group == nullptr || counts == nullptr) return library();
    bool is_equal = true;
    size_t total = 0;
    for (int rank = 0; rank < group->ranks(); rank++) {
        if (counts[rank] < 0) return library();
        is_equal = is_equal && counts[rank] == counts[0];
        total += size_t(counts[rank]);
    }
    return reduce_scatter(in, out, counts[0], is_equal ? nullptr : SHAPE, total, type, op, comm, group, library);
}

template <typename Count, typename Library>
int broadcast(void* at, Count count, MPI_Datatype type, int root, MPI_Comm comm, Library library) {
    Group* group = group_of(comm);
    if (group == nullptr || count < 0 || !is_usable(type)) return library();
    const Side side{at, size_t(count), type};
    return serve(*group, movement("broadcast", comm, root, size_t(count), type), side, side, library);
}

template <typename Count, typename Library>
int allgather(const void* in, Count in_count, MPI_Datatype in_type, void* out, Count count, MPI_Datatype type,
              MPI_Comm comm, Library library) {
    Group* group = group_of(comm);
    if (group == nullptr || count < 0 || !is_usable(type)) return library();
    const size_t shard = size_t(count), total = shard * group->ranks();
    const Side input = in == MPI_IN_PLACE ? Side{after(out, shard * group->rank(), type), shard, type}
                                          : Side{const_cast<void*>(in), size_t(in_count), in_type};
    return serve(*group, movement("allgather", comm, -1, total, type), input, {out, total, type}, library);
}

template <typename Count, typename Library>
int alltoall(const void* in, Count in_count, MPI_Datatype in_type, void* out, Count count, MPI_Datatype type,
             MPI_Comm comm, Library library) {
    Group* group = group_of(comm);
    if (group == nullptr || count < 0 || !is_usable(type)) return library();
    const size_t total = size_t(count) * group->ranks();
    const Side output{out, total, type};
    const Side input = in == MPI_IN_PLACE
                           ? output
                           : Side{const_cast<void*>(in), size_t(in_count) * group->ranks(), in_type};
    return serve(*group, movement("alltoall", comm, -1, total, type), input, output, library);
}

// A call that programs do not serve, counted; `library` makes it.
template <typename Library>
int left(Call call, const char* reason, Library library) {
    if (group_of(call.comm) == nullptr || call.size_bytes == 0) return library();
    if (!job()->has_table()) reason = NO_TABLE;
    return may_fall_back(call, reason) ? library() : refuse(call, reason);
}

template <typename Count>
size_t sum_of(const Count* counts, MPI_Comm comm) {
    int ranks = 0, is_inter = 0;
    PMPI_Comm_test_inter(comm, &is_inter);
    if (counts == nullptr || is_inter || PMPI_Comm_size(comm, &ranks) != MPI_SUCCESS) return 0;
    size_t sum = 0;
    for (int rank = 0; rank < ranks; rank++) sum += counts[rank] > 0 ? size_t(counts[rank]) : 0;
    return sum;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int MPI_Init(int* argc, char*** argv) {
    require_own_mpi();
    const int status = PMPI_Init(argc, argv);
    if (status == MPI_SUCCESS) begin();
    return status;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
    require_own_mpi();
    const int status = PMPI_Init_thread(argc, argv, required, provided);
    if (status == MPI_SUCCESS) begin();
    return status;
}

int MPI_Finalize(void) {
    end();
    return PMPI_Finalize();
}

// Defines MPI_NAME`form` for a type of counts.
#define COLLECTIVES(Count, form)                                                                                       \
    int MPI_Allreduce##form(const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {         \
        return allreduce(in, out, n, type, op, comm,                                                                   \
                         [&] { return PMPI_Allreduce##form(in, out, n, type, op, comm); });                            \
    }                                                                                                                  \
    int MPI_Reduce##form(const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {  \
        return reduce(in, out, n, type, op, root, comm,                                                                \
                      [&] { return PMPI_Reduce##form(in, out, n, type, op, root, comm); });                            \
    }                                                                                                                  \
    int MPI_Reduce_scatter_block##form(const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op,               \
                                       MPI_Comm comm) {                                                                \
        return reduce_scatter_block(in, out, n, type, op, comm,                                                        \
                                    [&] { return PMPI_Reduce_scatter_block##form(in, out, n, type, op, comm); });      \
    }                                                                                                                  \
    int MPI_Reduce_scatter##form(const void* in, void* out, const Count* n, MPI_Datatype type, MPI_Op op,              \
                                 MPI_Comm comm) {                                                                      \
        return reduce_scatter_counts(in, out, n, type, op, comm,                                                       \
                                     [&] { return PMPI_Reduce_scatter##form(in, out, n, type, op, comm); });           \
    }                                                                                                                  \
    int MPI_Bcast##form(void* at, Count n, MPI_Datatype type, int root, MPI_Comm comm) {                               \
        return broadcast(at, n, type, root, comm, [&] { return PMPI_Bcast##form(at, n, type, root, comm); });          \
    }                                                                                                                  \
    int MPI_Allgather##form(const void* in, Count in_n, MPI_Datatype in_type, void* out, Count n, MPI_Datatype type,   \
                            MPI_Comm comm) {                                                                           \
        return allgather(in, in_n, in_type, out, n, type, comm,                                                        \
                         [&] { return PMPI_Allgather##form(in, in_n, in_type, out, n, type, comm); });                 \
    }                                                                                                                  \
    int MPI_Alltoall##form(const void* in, Count in_n, MPI_Datatype in_type, void* out, Count n, MPI_Datatype type,    \
                           MPI_Comm comm) {                                                                            \
        return alltoall(in, in_n, in_type, out, n, type, comm,                                                         \
                        [&] { return PMPI_Alltoall##form(in, in_n, in_type, out, n, type, comm); });                   \
    }

// Defines those that return before they are over, and those of shards of different sizes: MPI's own, counted.
#define COUNTED(Count, Place, form)                                                                                    \
    int MPI_Iallreduce##form(const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,          \
                             MPI_Request* request) {                                                                   \
        return left(movement("allreduce", comm, -1, size_t(n), type), PENDING,                                         \
                    [&] { return PMPI_Iallreduce##form(in, out, n, type, op, comm, request); });                       \
    }                                                                                                                  \
    int MPI_Ibcast##form(void* at, Count n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {        \
        return left(movement("broadcast", comm, root, size_t(n), type), PENDING,                                       \
                    [&] { return PMPI_Ibcast##form(at, n, type, root, comm, request); });                              \
    }                                                                                                                  \
    int MPI_Allgatherv##form(const void* in, Count in_n, MPI_Datatype in_type, void* out, const Count* n,              \
                             const Place* at, MPI_Datatype type, MPI_Comm comm) {                                      \
        return left(movement("allgather", comm, -1, sum_of(n, comm), type), SHAPE,                                     \
                    [&] { return PMPI_Allgatherv##form(in, in_n, in_type, out, n, at, type, comm); });                 \
    }                                                                                                                  \
    int MPI_Alltoallv##form(const void* in, const Count* in_n, const Place* in_at, MPI_Datatype in_type, void* out,    \
                            const Count* n, const Place* at, MPI_Datatype type, MPI_Comm comm) {                       \
        return left(movement("alltoall", comm, -1, sum_of(n, comm), type), SHAPE,                                      \
                    [&] { return PMPI_Alltoallv##form(in, in_n, in_at, in_type, out, n, at, type, comm); });           \
    }

COLLECTIVES(int, )
COUNTED(int, int, )
#if MPI_VERSION >= 4
COLLECTIVES(MPI_Count, _c)
COUNTED(MPI_Count, MPI_Aint, _c)

int MPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session* session) {
    require_own_mpi();
    return PMPI_Session_init(info, handler, session);
}
#endif
}
#pragma GCC visibility pop
