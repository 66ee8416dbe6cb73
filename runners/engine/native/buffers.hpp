// The memory of one run: the caller's memory if the program can work there, else copies of it.
//
// A program works on whole chunks. If the elements do not fill the last chunk, the vector (or each of its shards) is
// padded. The data are also copied if only one of the program and the caller's call works in place.
#pragma once

#include <cstddef>
#include <vector>

#include "chorale_engine.h"
#include "program.hpp"

namespace chorale {

class Buffers {
public:
    // Chooses the buffers and copies the input if necessary. Failure (CHORALE_INVALID) for sizes that do not fit.
    void prepare(const Program& program, const chorale_call& call, int rank, size_t element_bytes);

    // Copies the result to the caller's output if necessary.
    void finish();

    char* at(Place place) const { return bases_[place.buffer] + place.offset * chunk_bytes_; }
    size_t chunk_elements() const { return chunk_elements_; }
    char* output() const { return bases_[1]; }
    size_t output_bytes() const { return output_chunks_ * chunk_bytes_; }

private:
    // `count` pieces of `bytes` each, at equal distances.
    struct Pieces {
        size_t count, bytes;
    };

    void choose(const Program& program, const chorale_call& call, int rank);
    bool works_there(const Program& program, const chorale_call& call, int rank) const;
    static void copy(char* to, size_t to_stride, const char* from, size_t from_stride, Pieces pieces);

    char* bases_[3]{};
    size_t chunk_elements_ = 0, chunk_bytes_ = 0, output_chunks_ = 0;
    size_t padded_ = 0;  // bytes of a shard (or of the vector) including padding
    Pieces input_{}, output_{};
    bool copies_output_ = false;
    bool ignores_input_ = false, ignores_output_ = false;  // can only be true at ranks other than the root
    void* target_ = nullptr;
    std::vector<char> input_copy_, output_copy_, scratch_;
};

}  // namespace chorale
