#include "uneven.hpp"

#include <algorithm>
#include <stdexcept>

namespace chorale::job {

namespace {

// Shards with padding of more than so many times their bytes take longer than a program gains.
constexpr size_t MOST_PADDING = 2;

std::vector<char> rows_of(const std::vector<Side>& shards, size_t row_bytes, MPI_Comm comm) {
    std::vector<char> rows(shards.size() * row_bytes);
    for (size_t i = 0; i < shards.size(); i++) {
        if (shards[i].count * size_of(shards[i].type) > row_bytes)
            throw std::runtime_error("a shard has more elements than the counts say");
        pack(shards[i], rows.data() + i * row_bytes, comm);
    }
    return rows;
}

}  // namespace

Padded padded(const char* collective, MPI_Comm comm, MPI_Datatype type, const Sizes& sizes, int ranks) {
    const char* name = signature_of(type);
    const bool is_sparse = sizes.largest > MOST_PADDING * sizes.total / sizes.shards;
    const char* unfit = name == nullptr ? DTYPE : is_sparse ? SHAPE : nullptr;
    return {{collective, comm, -1, sizes.largest * size_t(ranks), name, -1, -1, unfit}, sizes.largest, {}, {}};
}

int exchange_sizes(MPI_Comm comm, const std::vector<Side>& sent, Sizes& sizes) {
    const double start = seconds_now();
    int64_t mine[2] = {0, 0};
    for (const Side& shard : sent) {
        const auto bytes = int64_t(shard.count * size_of(shard.type));
        mine[0] = std::max(mine[0], bytes);
        mine[1] += bytes;
    }
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

int run_padded(Group& group, const Entry& entry, const Padded& work) {
    const MPI_Comm comm = work.call.comm;
    try {
        std::vector<char> in = rows_of(work.in, work.row_bytes, comm), out(work.out.size() * work.row_bytes);
        const Side input{in.data(), in.size(), MPI_BYTE}, output{out.data(), out.size(), MPI_BYTE};
        const int status = group.execute(entry, work.call, input, output);
        for (size_t i = 0; status == MPI_SUCCESS && i < work.out.size(); i++)
            unpack(out.data() + i * work.row_bytes, work.out[i], comm);
        return status;
    } catch (const std::exception& error) {
        return fail(work.call, error.what(), MPI_ERR_OTHER);
    }
}

}  // namespace chorale::job
