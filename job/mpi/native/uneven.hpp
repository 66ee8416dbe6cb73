// Calls whose shards differ in size: programs move shards of the largest size, and what is left of each is padding.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <vector>

#include "elements.hpp"
#include "job.hpp"

namespace chorale::job {

// A call, and the memory of the shards that its program moves.
struct Padded {
    Call call;
    size_t row_bytes;           // of a shard with its padding
    std::vector<Side> in, out;  // what goes into the rows, and what comes out of them
};


// Runs the entry's program for it.
int run_padded(Group& group, const Entry& entry, const Padded& work);

// The shards of a call, in bytes: the largest, all of them, and how many they are.
struct Sizes {
    size_t largest = 0, total = 0, shards = 0;
};

// A call on shards of the largest size; unfit where those are much more than what the shards hold.
Padded padded(const char* collective, MPI_Comm comm, MPI_Datatype type, const Sizes& sizes, int ranks);

// Has all ranks tell one another what they send, which is counted; returns what an MPI function returns.
int exchange_sizes(MPI_Comm comm, const std::vector<Side>& sent, Sizes& sizes);

// The elements of each rank at `at`: `counts` of them, `places` from there.
template <typename Count, typename Place>
std::vector<Side> shards_of(void* at, const Count* counts, const Place* places, MPI_Datatype type, int ranks) {
    MPI_Aint lower = 0, extent = 0;
    PMPI_Type_get_extent(type, &lower, &extent);
    std::vector<Side> shards;
    for (int rank = 0; rank < ranks; rank++)
        shards.push_back({static_cast<char*>(at) + MPI_Aint(places[rank]) * extent, size_t(counts[rank]), type});
    return shards;
}

// Whether `counts` are numbers of elements: MPI says what is wrong with others.
template <typename Count>
bool are_counts(const Count* counts, int ranks) {
    bool are = counts != nullptr;
    for (int rank = 0; are && rank < ranks; rank++) are = counts[rank] >= 0;
    return are;
}

// Whether shards are equal and lie one after the other, as those of calls with one count do.
template <typename Count, typename Place>
bool are_even(const Count* counts, const Place* places, int ranks) {
    for (int rank = 1; rank < ranks; rank++)
        if (counts[rank] != counts[0] || places[rank] != places[0] + Place(rank) * Place(counts[0])) return false;
    return true;
}

template <typename Count>
Sizes sizes_of(const Count* counts, MPI_Datatype type, int ranks) {
    Sizes sizes{0, 0, size_t(ranks)};
    for (int rank = 0; rank < ranks; rank++) {
        const size_t size_bytes = size_t(counts[rank]) * size_of(type);
        sizes.largest = std::max(sizes.largest, size_bytes);
        sizes.total += size_bytes;
    }
    return sizes;
}

template <typename Library>
int serve_padded(Group& group, const Padded& work, Library library) {
    return serve_by(
        group, work.call, [&](const Entry& entry) { return run_padded(group, entry, work); }, library);
}

template <typename Count, typename Place, typename Library>
int allgatherv(const void* in, Count in_count, MPI_Datatype in_type, void* out, const Count* counts,
               const Place* places, MPI_Datatype type, MPI_Comm comm, Group& group, Library library) {
    Padded work = padded("allgather", comm, type, sizes_of(counts, type, group.ranks()), group.ranks());
    work.out = shards_of(out, counts, places, type, group.ranks());
    work.in = {in == MPI_IN_PLACE ? work.out[group.rank()] : Side{const_cast<void*>(in), size_t(in_count), in_type}};
    return serve_padded(group, work, library);
}

template <typename Count, typename Place, typename Library>
int alltoallv(const void* in, const Count* in_counts, const Place* in_places, MPI_Datatype in_type, void* out,
              const Count* counts, const Place* places, MPI_Datatype type, MPI_Comm comm, Group& group,
              Library library) {
    const bool in_place = in == MPI_IN_PLACE;
    std::vector<Side> received = shards_of(out, counts, places, type, group.ranks());
    std::vector<Side> sent =
        in_place ? received : shards_of(const_cast<void*>(in), in_counts, in_places, in_type, group.ranks());
    Sizes sizes;
    if (const int status = exchange_sizes(comm, sent, sizes); status != MPI_SUCCESS) return status;
    Padded work = padded("alltoall", comm, in_place ? type : in_type, sizes, group.ranks());
    work.in = std::move(sent);
    work.out = std::move(received);
    return serve_padded(group, work, library);
}

template <typename Count, typename Library>
int reduce_scatter_uneven(const void* in, void* out, const Count* counts, MPI_Datatype type, const Call& reduction,
                          Group& group, Library library) {
    Padded work = padded("reduce_scatter", reduction.comm, type, sizes_of(counts, type, group.ranks()), group.ranks());
    const char* unfit = reduction.unfit != nullptr ? reduction.unfit : work.call.unfit;
    const size_t size_bytes = work.call.size_bytes;
    work.call = reduction;
    work.call.size_bytes = size_bytes;
    work.call.unfit = unfit;
    std::vector<size_t> places{0};
    for (int rank = 1; rank < group.ranks(); rank++) places.push_back(places.back() + size_t(counts[rank - 1]));
    void* const from = in == MPI_IN_PLACE ? out : const_cast<void*>(in);
    work.in = shards_of(from, counts, places.data(), type, group.ranks());
    work.out = {Side{out, size_t(counts[group.rank()]), type}};
    return serve_padded(group, work, library);
}

}  // namespace chorale::job
