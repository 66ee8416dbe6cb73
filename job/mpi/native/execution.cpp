// How a group runs programs: it connects its engine at the first call, and copies elements that do not lie side by side.
#include <algorithm>
#include <climits>
#include <cstring>
#include <stdexcept>

#include "element_types.hpp"
#include "elements.hpp"
#include "job.hpp"
#include "meeting.hpp"
#include "nodes.hpp"

namespace chorale::job {

namespace {

// How many elements go into one call of MPI_Pack, which counts bytes by int.
size_t pack_count(size_t element_bytes) {
    if (element_bytes > INT_MAX) throw std::runtime_error("one element of a derived type has more than 2 GiB");
    return INT_MAX / element_bytes;
}

template <typename Move>
void in_batches(const Side& side, Move move) {
    MPI_Aint lower = 0, extent = 0;
    PMPI_Type_get_extent(side.type, &lower, &extent);
    const size_t element_bytes = size_of(side.type), most = pack_count(element_bytes);
    for (size_t from = 0; from < side.count; from += most) {
        const size_t count = std::min(most, side.count - from);
        move(static_cast<char*>(side.at) + MPI_Aint(from) * extent, int(count), from * element_bytes,
             int(count * element_bytes));
    }
}

std::vector<char> packed(const Side& side, MPI_Comm comm) {
    std::vector<char> bytes(side.count * size_of(side.type));
    pack(side, bytes.data(), comm);
    return bytes;
}

bool needs_copy(const Side& side) { return side.at != nullptr && !is_dense(side.type); }

}  // namespace

void pack(const Side& side, char* to, MPI_Comm comm) {
    const size_t size_bytes = side.count * size_of(side.type);
    if (size_bytes == 0) return;
    if (is_dense(side.type)) {
        std::memcpy(to, side.at, size_bytes);
        return;
    }
    in_batches(side, [&](char* at, int count, size_t offset, int size) {
        int position = 0;
        PMPI_Pack(at, count, side.type, to + offset, size, &position, comm);
    });
}

void unpack(const char* from, const Side& side, MPI_Comm comm) {
    const size_t size_bytes = side.count * size_of(side.type);
    if (size_bytes == 0) return;
    if (is_dense(side.type)) {
        std::memcpy(side.at, from, size_bytes);
        return;
    }
    in_batches(side, [&](char* at, int count, size_t offset, int size) {
        int position = 0;
        PMPI_Unpack(from + offset, size, &position, at, count, side.type, comm);
    });
}

void Group::connect(MPI_Comm comm) {
    engine_ = chorale_engine_new(rank_, ranks());
    if (engine_ == nullptr) throw std::runtime_error("the engine could not be made");
    numbers_.assign(job()->table.programs.size(), -1);
    for (const Entry* entry : entries_.all()) {
        if (entry->program < 0 || numbers_[entry->program] >= 0) continue;
        const auto words = job()->table.words(entry->program, rank_);
        numbers_[entry->program] = chorale_program_load(engine_, words.data(), words.size());
        if (numbers_[entry->program] < 0) throw std::runtime_error(chorale_error(engine_));
    }
    meet(engine_, comm, job()->settings.interface, std::min(60.0, job()->settings.limit_s));
}

void Group::run(const Entry& entry, const Call& call, const void* input, void* output) {
    if (nodes_) return nodes_->run(entry, call, input, output);
    if (engine_ == nullptr) connect(call.comm);
    chorale_call work{};
    work.program = numbers_[entry.program];
    work.input = input;
    work.output = output;
    work.elements = call.operation < 0 ? call.size_bytes : call.size_bytes / element_size(call.type);
    work.type = call.operation < 0 ? int(CHORALE_UINT8) : call.type;
    work.operation = call.operation < 0 ? int(CHORALE_SUM) : call.operation;
    work.parts = 1;
    work.limit_s = job()->settings.limit_s;
    if (chorale_execute(engine_, &work) != CHORALE_OK) throw std::runtime_error(chorale_error(engine_));
}

int Group::execute(const Entry& entry, const Call& call, const Side& input, const Side& output) {
    const std::lock_guard guard(lock_);
    const double start = seconds_now();
    try {
        if (!broken_.empty()) throw std::runtime_error("an earlier call failed: " + broken_);
        std::vector<char> in, out;
        if (needs_copy(input)) in = packed(input, call.comm);
        if (needs_copy(output)) out = packed(output, call.comm);
        run(entry, call, needs_copy(input) ? in.data() : input.at, needs_copy(output) ? out.data() : output.at);
        if (needs_copy(output)) unpack(out.data(), output, call.comm);
    } catch (const std::exception& error) {
        if (broken_.empty()) broken_ = error.what();
        return fail(call, error.what(), MPI_ERR_OTHER);
    }
    job()->counts.program(job()->table.programs[entry.program].digest, call.collective, int64_t(call.size_bytes),
                          seconds_now() - start);
    return MPI_SUCCESS;
}

}  // namespace chorale::job
