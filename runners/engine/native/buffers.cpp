#include "buffers.hpp"

#include <cstring>

#include "failure.hpp"

namespace chorale {
namespace {

constexpr size_t most_bytes = size_t{1} << 46;

char* at_least(std::vector<char>& memory, size_t bytes) {
    if (memory.size() < bytes) memory.resize(bytes);
    return memory.data();
}

}  // namespace

void Buffers::prepare(const Program& program, const chorale_call& call, int rank, size_t element_bytes) {
    const size_t shards = program.has_shards() ? program.ranks : 1;
    if (call.elements % shards != 0)
        throw Failure(CHORALE_INVALID, "the elements of this collective must be a multiple of the ranks");
    const size_t shard = call.elements / shards, chunks = program.chunks / shards;
    chunk_elements_ = shard / chunks + (shard % chunks != 0);
    if (chunk_elements_ > most_bytes / element_bytes / (program.chunks + program.scratch_chunks))
        throw Failure(CHORALE_INVALID, "so many elements in so many chunks fit into no memory");
    chunk_bytes_ = chunk_elements_ * element_bytes;
    output_chunks_ = program.output_chunks();
    padded_ = chunk_bytes_ * chunks;
    input_ = {program.collective == Collective::allgather ? 1 : shards, shard * element_bytes};
    output_ = {program.collective == Collective::reduce_scatter ? 1 : shards, shard * element_bytes};
    ignores_input_ = program.collective == Collective::broadcast && rank != program.root;
    ignores_output_ = program.collective == Collective::reduce && rank != program.root;
    target_ = ignores_output_ ? nullptr : call.output;
    choose(program, call, rank);
    scratch_.resize(program.scratch_chunks * chunk_bytes_);
    bases_[2] = scratch_.data();
}

// Returns whether the program can work directly on the caller's memory.
bool Buffers::works_there(const Program& program, const chorale_call& call, int rank) const {
    const auto* input = static_cast<const char*>(call.input);
    const auto* output = static_cast<const char*>(call.output);
    const size_t own = static_cast<size_t>(rank) * padded_;
    const bool is_in_place = program.collective == Collective::allgather        ? input == output + own
                             : program.collective == Collective::reduce_scatter ? output == input + own
                                                                                : input == output;
    const bool overlaps = input < output + output_.count * output_.bytes && output < input + input_.count * input_.bytes;
    if (padded_ != output_.bytes) return false;
    if ((input == nullptr && !ignores_input_) || (output == nullptr && !ignores_output_)) return false;
    if (program.in_place) return (is_in_place || ignores_input_) && output != nullptr;
    return !overlaps || ignores_input_ || ignores_output_;
}

void Buffers::choose(const Program& program, const chorale_call& call, int rank) {
    copies_output_ = !works_there(program, call, rank);
    if (!copies_output_) {
        bases_[0] = static_cast<char*>(const_cast<void*>(call.input));
        bases_[1] = static_cast<char*>(call.output);
        if (ignores_input_) bases_[0] = program.in_place ? bases_[1] : at_least(input_copy_, padded_);
        if (ignores_output_ && !program.in_place) bases_[1] = at_least(output_copy_, padded_);
        return;
    }
    // The padding is initialized with zeros.
    input_copy_.assign(program.input_chunks() * chunk_bytes_, 0);
    output_copy_.assign(program.output_chunks() * chunk_bytes_, 0);
    bases_[0] = input_copy_.data();
    bases_[1] = output_copy_.data();
    if (program.in_place) {
        const size_t own = static_cast<size_t>(rank) * padded_;
        if (program.collective == Collective::allgather)
            bases_[0] = bases_[1] + own;
        else
            bases_[1] = bases_[0] + (program.collective == Collective::reduce_scatter ? own : 0);
    }
    if (call.input != nullptr && !ignores_input_)
        copy(bases_[0], padded_, static_cast<const char*>(call.input), input_.bytes, input_);
}

void Buffers::finish() {
    if (copies_output_ && target_ != nullptr)
        copy(static_cast<char*>(target_), output_.bytes, bases_[1], padded_, output_);
}

void Buffers::copy(char* to, size_t to_stride, const char* from, size_t from_stride, Pieces pieces) {
    for (size_t i = 0; i < pieces.count; i++) std::memcpy(to + i * to_stride, from + i * from_stride, pieces.bytes);
}

}  // namespace chorale
