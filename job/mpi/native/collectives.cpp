// The MPI functions that intercept a program's calls. Decisions depend only on arguments that MPI requires to be the
// same on all ranks, so that all ranks make the same decisions.
#include <mpi.h>

#include <algorithm>
#include <stdexcept>

#include "entries.hpp"
#include "job.hpp"

using namespace chorale::job;

namespace {

// If padding increases the bytes of shards by more than this factor, it costs more time than a program saves.
constexpr size_t MOST_PADDING = 2;

// Returns the call that reduces a vector of `count` elements.
Call reduction(const char* collective, MPI_Comm comm, int root, size_t count, MPI_Datatype type, MPI_Op op) {
    const Element element = element_of(type);
    const int operation = operation_of(op, element);
    const char* unfit = element.name == nullptr ? DTYPE : operation < 0 ? OPERATION : nullptr;
    return {collective, comm, root, count * size_of(type), element.name, element.type, operation, unfit,
            count, type, op};
}

// Returns the call that copies a vector of `count` elements, as bytes.
Call movement(const char* collective, MPI_Comm comm, int root, size_t count, MPI_Datatype type) {
    const char* name = signature_of(type);
    return {collective, comm, root, count * size_of(type), name, -1, -1, name == nullptr ? DTYPE : nullptr};
}

// Returns the group of `comm`; null for invalid calls, which MPI refuses, and outside of a job.
template <typename Count>
Group* group_for(MPI_Comm comm, Count count, MPI_Datatype type) {
    return count < 0 || type == MPI_DATATYPE_NULL ? nullptr : group_of(comm);
}

// Returns the address of the input; with MPI_IN_PLACE this is the output `there`.
void* or_there(const void* in, void* there) { return in == MPI_IN_PLACE ? there : const_cast<void*>(in); }

char* after(void* at, MPI_Aint count, MPI_Datatype type) {
    MPI_Aint lower = 0, extent = 0;
    PMPI_Type_get_extent(type, &lower, &extent);
    return static_cast<char*>(at) + count * extent;
}

// Serves a call with a program, by calling `run`, or else by calling `library`, which calls MPI's own function.
template <typename Run, typename Library>
int serve_by(Group& group, const Call& call, Run run, Library library) {
    if (call.size_bytes == 0) return library();
    const double start = seconds_now();
    const Decision decision = group.decide(call);
    if (decision.entry == nullptr && !may_fall_back(call, decision.reason)) return refuse(call, decision.reason);
    const int status = decision.entry != nullptr ? run(*decision.entry) : library();
    if (job()->records() && call.dtype != nullptr)
        job()->counts.call(call.collective, call.dtype, group.json(), call.root, int64_t(call.size_bytes),
                           seconds_now() - start);
    return status;
}

template <typename Library>
int serve(Group& group, const Call& call, const Side& input, const Side& output, Library library) {
    return serve_by(group, call, [&](const Entry& entry) { return group.execute(entry, call, input, output); }, library);
}

// Passes a call that no program can serve to MPI and counts it with the reason; refuses it if CHORALE_STRICT is set.
template <typename Count, typename Library>
int counted(Library library, const char* reason, const char* collective, MPI_Comm comm, int root, Count count,
            MPI_Datatype type) {
    if (count == 0 || group_for(comm, count, type) == nullptr) return library();
    const Call call{collective, comm, root, size_t(count) * size_of(type), nullptr, -1, -1, reason};
    if (!job()->has_table()) reason = NO_TABLE;
    return may_fall_back(call, reason) ? library() : refuse(call, reason);
}

// Returns the sum of `counts` over all ranks from which a rank receives: for intercommunicators, the remote group.
template <typename Count>
size_t received(const Count* counts, MPI_Comm comm) {
    const Group* group = group_of(comm);
    if (group == nullptr || counts == nullptr) return 0;
    int ranks = group->ranks();
    if (group->is_inter()) PMPI_Comm_remote_size(comm, &ranks);
    size_t sum = 0;
    for (int rank = 0; rank < ranks; rank++) sum += counts[rank] > 0 ? size_t(counts[rank]) : 0;
    return sum;
}

// Returns the sum of `counts` over all ranks of `comm`; 0 for intercommunicators.
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

// The shards of a call: size of the largest shard and total size, in bytes, and number of shards.
struct Sizes {
    size_t largest = 0, total = 0, shards = 0;

    void add(size_t size_bytes) {
        largest = std::max(largest, size_bytes);
        total += size_bytes;
        shards++;
    }
};

template <typename Count>
Sizes sizes_of(const Count* counts, MPI_Datatype type, int ranks) {
    Sizes sizes;
    for (int rank = 0; rank < ranks; rank++) sizes.add(size_t(counts[rank]) * size_of(type));
    return sizes;
}

// Returns the shard of each rank: `counts[rank]` elements, displaced by `places[rank]` elements from `at`.
template <typename Count, typename Place>
std::vector<Side> shards_of(void* at, const Count* counts, const Place* places, MPI_Datatype type, int ranks) {
    std::vector<Side> shards;
    for (int rank = 0; rank < ranks; rank++)
        shards.push_back({after(at, MPI_Aint(places[rank]), type), size_t(counts[rank]), type});
    return shards;
}

// Whether `counts` are valid; MPI reports the error otherwise.
template <typename Count>
bool are_counts(const Count* counts, int ranks) {
    return counts != nullptr && std::all_of(counts, counts + ranks, [](Count count) { return count >= 0; });
}

// Serves a call with shards of different sizes: all shards are padded to the size of the largest one. `in` is packed
// into the rows that the program moves, and `out` is unpacked from them.
template <typename Library>
int serve_padded(Group& group, Call call, const Sizes& sizes, const std::vector<Side>& in, const std::vector<Side>& out,
                 Library library) {
    const size_t row_bytes = sizes.largest;
    call.size_bytes = row_bytes * size_t(group.ranks());
    if (call.unfit == nullptr && row_bytes > MOST_PADDING * sizes.total / sizes.shards) call.unfit = SHAPE;
    const auto run = [&](const Entry& entry) {
        try {
            std::vector<char> sent(in.size() * row_bytes), come(out.size() * row_bytes);
            for (size_t i = 0; i < in.size(); i++) {
                if (in[i].count * size_of(in[i].type) > row_bytes)
                    throw std::runtime_error("a shard has more elements than the counts say");
                copy(PACK, in[i], sent.data() + i * row_bytes, call.comm);
            }
            const Side input{sent.data(), sent.size(), MPI_BYTE}, output{come.data(), come.size(), MPI_BYTE};
            const int status = group.execute(entry, call, input, output);
            for (size_t i = 0; status == MPI_SUCCESS && i < out.size(); i++)
                copy(UNPACK, out[i], come.data() + i * row_bytes, call.comm);
            return status;
        } catch (const std::exception& error) {
            return fail(call, error.what(), MPI_ERR_OTHER);
        }
    };
    return serve_by(group, call, run, library);
}

template <typename Count, typename Library>
int allreduce(Library library, const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    Group* group = group_for(comm, n, type);
    if (group == nullptr) return library();
    const Call call = reduction("allreduce", comm, -1, size_t(n), type, op);
    return serve(*group, call, {or_there(in, out), size_t(n), type}, {out, size_t(n), type}, library);
}

template <typename Count, typename Library>
int reduce(Library library, const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    Group* group = group_for(comm, n, type);
    if (group == nullptr) return library();
    const Call call = reduction("reduce", comm, root, size_t(n), type, op);
    void* const target = group->rank() == root ? out : nullptr;
    return serve(*group, call, {or_there(in, out), size_t(n), type}, {target, size_t(n), type}, library);
}

template <typename Count, typename Library>
int reduce_scatter_block(Library library, const void* in, void* out, Count n, MPI_Datatype type, MPI_Op op,
                         MPI_Comm comm) {
    Group* group = group_for(comm, n, type);
    if (group == nullptr) return library();
    const size_t total = size_t(n) * group->ranks();
    const Call call = reduction("reduce_scatter", comm, -1, total, type, op);
    return serve(*group, call, {or_there(in, out), total, type}, {out, size_t(n), type}, library);
}

template <typename Count, typename Library>
int reduce_scatter(Library library, const void* in, void* out, const Count* n, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm) {
    Group* group = group_for(comm, 0, type);
    if (group == nullptr || !are_counts(n, group->ranks())) return library();
    const int ranks = group->ranks();
    if (std::all_of(n, n + ranks, [&](Count count) { return count == n[0]; }))
        return reduce_scatter_block(library, in, out, n[0], type, op, comm);
    std::vector<size_t> places{0};
    for (int rank = 1; rank < ranks; rank++) places.push_back(places.back() + size_t(n[rank - 1]));
    return serve_padded(*group, reduction("reduce_scatter", comm, -1, 0, type, op), sizes_of(n, type, ranks),
                        shards_of(or_there(in, out), n, places.data(), type, ranks),
                        {Side{out, size_t(n[group->rank()]), type}}, library);
}

template <typename Count, typename Library>
int bcast(Library library, void* at, Count n, MPI_Datatype type, int root, MPI_Comm comm) {
    Group* group = group_for(comm, n, type);
    if (group == nullptr) return library();
    const Side side{at, size_t(n), type};
    return serve(*group, movement("broadcast", comm, root, size_t(n), type), side, side, library);
}

template <typename Count, typename Library>
int allgather(Library library, const void* in, Count in_n, MPI_Datatype in_type, void* out, Count n, MPI_Datatype type,
              MPI_Comm comm) {
    Group* group = group_for(comm, n, type);
    if (group == nullptr) return library();
    const size_t shard = size_t(n), total = shard * group->ranks();
    const Side input = in == MPI_IN_PLACE ? Side{after(out, MPI_Aint(shard) * group->rank(), type), shard, type}
                                          : Side{const_cast<void*>(in), size_t(in_n), in_type};
    return serve(*group, movement("allgather", comm, -1, total, type), input, {out, total, type}, library);
}

template <typename Count, typename Library>
int alltoall(Library library, const void* in, Count in_n, MPI_Datatype in_type, void* out, Count n, MPI_Datatype type,
             MPI_Comm comm) {
    Group* group = group_for(comm, n, type);
    if (group == nullptr) return library();
    const size_t total = size_t(n) * group->ranks();
    const Side output{out, total, type};
    const Side input =
        in == MPI_IN_PLACE ? output : Side{const_cast<void*>(in), size_t(in_n) * group->ranks(), in_type};
    return serve(*group, movement("alltoall", comm, -1, total, type), input, output, library);
}

// Every rank knows the counts of all ranks. If all shards are equal and contiguous, this is an ordinary allgather.
template <typename Count, typename Place, typename Library>
int allgatherv(Library library, const void* in, Count in_n, MPI_Datatype in_type, void* out, const Count* n,
               const Place* at, MPI_Datatype type, MPI_Comm comm) {
    Group* group = group_of(comm);
    if (group != nullptr && group->is_inter())
        return counted(library, GROUP, "allgather", comm, -1, received(n, comm), type);
    const bool has_input = in == MPI_IN_PLACE || in_n >= 0;
    if (group == nullptr || !are_counts(n, group->ranks()) || type == MPI_DATATYPE_NULL || !has_input) return library();
    bool is_even = true;
    for (int rank = 1; rank < group->ranks(); rank++)
        is_even = is_even && n[rank] == n[0] && at[rank] == at[0] + Place(rank) * Place(n[0]);
    if (is_even) return allgather(library, in, in_n, in_type, after(out, MPI_Aint(at[0]), type), n[0], type, comm);
    const std::vector<Side> shards = shards_of(out, n, at, type, group->ranks());
    const Side input = in == MPI_IN_PLACE ? shards[group->rank()] : Side{const_cast<void*>(in), size_t(in_n), in_type};
    return serve_padded(*group, movement("allgather", comm, -1, 0, type), sizes_of(n, type, group->ranks()), {input},
                        shards, library);
}

// Exchanges the sizes of all shards among all ranks, and counts this exchange; returns an MPI error code.
int exchange_sizes(MPI_Comm comm, const std::vector<Side>& sent, Sizes& sizes) {
    const double start = seconds_now();
    Sizes own;
    for (const Side& shard : sent) own.add(shard.count * size_of(shard.type));
    const int64_t mine[2] = {int64_t(own.largest), int64_t(own.total)};
    std::vector<int64_t> all(2 * sent.size());
    const int status = PMPI_Allgather(mine, 2, MPI_INT64_T, all.data(), 2, MPI_INT64_T, comm);
    if (status != MPI_SUCCESS) return status;
    sizes = {0, 0, sent.size() * sent.size()};
    for (size_t rank = 0; rank < sent.size(); rank++) {
        sizes.largest = std::max(sizes.largest, size_t(all[2 * rank]));
        sizes.total += size_t(all[2 * rank + 1]);
    }
    job()->counts.exchange(int64_t(all.size() * sizeof all[0]), seconds_now() - start);
    return MPI_SUCCESS;
}

// Ranks do not know how much others send, so they exchange the sizes first if the table has programs for alltoall.
template <typename Count, typename Place, typename Library>
int alltoallv(Library library, const void* in, const Count* in_n, const Place* in_at, MPI_Datatype in_type, void* out,
              const Count* n, const Place* at, MPI_Datatype type, MPI_Comm comm) {
    Group* group = group_of(comm);
    if (group != nullptr && group->is_inter())
        return counted(library, GROUP, "alltoall", comm, -1, received(n, comm), type);
    const bool in_place = in == MPI_IN_PLACE;
    if (group == nullptr || !are_counts(n, group->ranks()) || type == MPI_DATATYPE_NULL ||
        (!in_place && (!are_counts(in_n, group->ranks()) || in_type == MPI_DATATYPE_NULL)))
        return library();
    if (!group->has("alltoall")) {
        const Call call = movement("alltoall", comm, -1, received(n, comm), type);
        const char* reason = job()->has_table() ? group->decide(call).reason : NO_TABLE;
        return may_fall_back(call, reason) ? library() : refuse(call, reason);
    }
    const std::vector<Side> come = shards_of(out, n, at, type, group->ranks());
    const std::vector<Side> sent =
        in_place ? come : shards_of(const_cast<void*>(in), in_n, in_at, in_type, group->ranks());
    Sizes sizes;
    if (const int status = exchange_sizes(comm, sent, sizes); status != MPI_SUCCESS) return status;
    return serve_padded(*group, movement("alltoall", comm, -1, 0, in_place ? type : in_type), sizes, sent, come, library);
}

template <typename Count, typename Bytes, typename Library>
int alltoallw(Library library, const void*, const Count*, const Bytes*, const MPI_Datatype*, void*, const Count* n,
              const Bytes*, const MPI_Datatype* types, MPI_Comm comm) {
    return counted(library, SHAPE, "alltoall", comm, -1, bytes_of(n, types, comm), MPI_BYTE);
}

}  // namespace

#define BLOCKING(form, lower, Name, UPPER, pointers, parameters, arguments, count)                                     \
    int MPI_##Name##form parameters { return lower([&] { return PMPI_##Name##form arguments; }, LIST arguments); }

#define NONBLOCKING(form, lower, Name, UPPER, pointers, parameters, arguments, count)                                  \
    int MPI_I##lower##form(LIST parameters, MPI_Request* request) {                                                    \
        return counted([&] { return PMPI_I##lower##form(LIST arguments, request); }, PENDING, LIST count);             \
    }

#define PERSISTENT(form, lower, Name, UPPER, pointers, parameters, arguments, count)                                   \
    int MPI_##Name##_init##form(LIST parameters, MPI_Info info, MPI_Request* request) {                                \
        return counted([&] { return PMPI_##Name##_init##form(LIST arguments, info, request); }, PENDING, LIST count);  \
    }

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

COLLECTIVES(BLOCKING, int, int, int, )
COLLECTIVES(NONBLOCKING, int, int, int, )
#if MPI_VERSION >= 4 || (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5)
COLLECTIVES(PERSISTENT, int, int, int, )
#endif
#if MPI_VERSION >= 4
COLLECTIVES(BLOCKING, MPI_Count, MPI_Aint, MPI_Aint, _c)
COLLECTIVES(NONBLOCKING, MPI_Count, MPI_Aint, MPI_Aint, _c)
COLLECTIVES(PERSISTENT, MPI_Count, MPI_Aint, MPI_Aint, _c)

int MPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session* session) {
    require_own_mpi();
    require_a_world();
    return PMPI_Session_init(info, handler, session);
}
#endif
}
#pragma GCC visibility pop
