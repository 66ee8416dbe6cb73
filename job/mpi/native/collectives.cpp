// The functions of MPI that stand before those of the library. Only what MPI wants to be the same on all ranks decides.
#include <mpi.h>

#include <algorithm>
#include <numeric>

#include "elements.hpp"
#include "counted.hpp"
#include "job.hpp"
#include "uneven.hpp"

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

template <typename Count, typename Library>
int reduce_scatter_block(const void* in, void* out, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                         Library library) {
    Group* group = group_of(comm);
    if (group == nullptr || count < 0 || !is_usable(type)) return library();
    const size_t total = size_t(count) * group->ranks();
    const Call call = reduction("reduce_scatter", comm, -1, total, type, op);
    return serve(*group, call, {or_there(in, out), total, type}, {out, size_t(count), type}, library);
}

template <typename Count, typename Library>
int reduce_scatter_counts(const void* in, void* out, const Count* counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                          Library library) {
    Group* group = group_of(comm);
    if (group == nullptr) return library();
    if (!are_counts(counts, group->ranks()) || !is_usable(type)) return library();
    if (std::all_of(counts, counts + group->ranks(), [&](Count count) { return count == counts[0]; }))
        return reduce_scatter_block(in, out, counts[0], type, op, comm, library);
    const Call call = reduction("reduce_scatter", comm, -1, 0, type, op);
    return reduce_scatter_uneven(in, out, counts, type, call, *group, library);
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

// Every rank knows the counts of all. Equal shards that lie side by side are those of `allgather`.
template <typename Count, typename Place, typename Library>
int gather_shards(const void* in, Count in_count, MPI_Datatype in_type, void* out, const Count* counts,
                  const Place* places, MPI_Datatype type, MPI_Comm comm, Library library) {
    Group* group = group_of(comm);
    if (group != nullptr && group->is_inter())
        return counted("allgather", comm, -1, received(counts, comm), type, GROUP, library);
    if (group == nullptr || !are_counts(counts, group->ranks()) || !is_usable(type) ||
        (in != MPI_IN_PLACE && in_count < 0))
        return library();
    if (are_even(counts, places, group->ranks()))
        return allgather(in, in_count, in_type, after(out, size_t(places[0]), type), counts[0], type, comm, library);
    return allgatherv(in, in_count, in_type, out, counts, places, type, comm, *group, library);
}

// No rank knows what others send: they tell one another first, where a program might serve the call.
template <typename Count, typename Place, typename Library>
int exchange_shards(const void* in, const Count* in_counts, const Place* in_places, MPI_Datatype in_type, void* out,
                    const Count* counts, const Place* places, MPI_Datatype type, MPI_Comm comm, Library library) {
    Group* group = group_of(comm);
    if (group != nullptr && group->is_inter())
        return counted("alltoall", comm, -1, received(counts, comm), type, GROUP, library);
    const bool is_right = group != nullptr && are_counts(counts, group->ranks()) && is_usable(type) &&
                          (in == MPI_IN_PLACE || (are_counts(in_counts, group->ranks()) && is_usable(in_type)));
    if (!is_right) return library();
    if (group->has("alltoall"))
        return alltoallv(in, in_counts, in_places, in_type, out, counts, places, type, comm, *group, library);
    const auto received = size_t(std::accumulate(counts, counts + group->ranks(), Count(0)));
    const Call call = movement("alltoall", comm, -1, received, type);
    const char* reason = job()->has_table() ? group->decide(call).reason : NO_TABLE;
    return may_fall_back(call, reason) ? library() : refuse(call, reason);
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

// Defines those with a count for each rank.
#define UNEVEN(Count, Place, form)                                                                                     \
    int MPI_Allgatherv##form(const void* in, Count in_n, MPI_Datatype in_type, void* out, const Count* n,              \
                             const Place* at, MPI_Datatype type, MPI_Comm comm) {                                      \
        return gather_shards(in, in_n, in_type, out, n, at, type, comm,                                                \
                             [&] { return PMPI_Allgatherv##form(in, in_n, in_type, out, n, at, type, comm); });        \
    }                                                                                                                  \
    int MPI_Alltoallv##form(const void* in, const Count* in_n, const Place* in_at, MPI_Datatype in_type, void* out,    \
                            const Count* n, const Place* at, MPI_Datatype type, MPI_Comm comm) {                       \
        return exchange_shards(in, in_n, in_at, in_type, out, n, at, type, comm, [&] {                                 \
            return PMPI_Alltoallv##form(in, in_n, in_at, in_type, out, n, at, type, comm);                             \
        });                                                                                                            \
    }

COLLECTIVES(int, )
UNEVEN(int, int, )
#if MPI_VERSION >= 4
COLLECTIVES(MPI_Count, _c)
UNEVEN(MPI_Count, MPI_Aint, _c)

int MPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session* session) {
    require_own_mpi();
    require_a_world();
    return PMPI_Session_init(info, handler, session);
}
#endif
}
#pragma GCC visibility pop
