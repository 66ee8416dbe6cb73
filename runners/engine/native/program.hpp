// A program of one rank, decoded and checked: whatever the words say, nothing outside of the buffers is ever touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace chorale {

enum class Collective { allgather, reduce_scatter, allreduce, broadcast, reduce, alltoall };
enum class Op { send, recv, recv_copy_send, recv_reduce_send, recv_reduce_copy, recv_reduce_copy_send, copy, reduce };

struct Place {
    int buffer;  // 0 input, 1 output, 2 scratch
    size_t offset;  // in chunks
};

struct Wait {
    size_t block, step;
    // Where the step waited for stores all that this one sends or adds to: the distance in chunks from the start of what
    // is stored. Then this one may work on what is there already. -1 elsewhere.
    int64_t shift;
};

struct Instruction {
    Op op;
    Place src, dst;
    size_t count;
    std::vector<Wait> waits;

    bool receives() const { return op >= Op::recv && op <= Op::recv_reduce_copy_send; }
    bool sends() const {
        return op == Op::send || op == Op::recv_copy_send || op == Op::recv_reduce_send ||
               op == Op::recv_reduce_copy_send;
    }
    bool reduces_message() const { return op >= Op::recv_reduce_send && op <= Op::recv_reduce_copy_send; }
    bool reads() const { return op != Op::recv && op != Op::recv_copy_send; }
    bool stores() const { return op != Op::send && op != Op::recv_reduce_send; }
};

struct Block {
    int send_peer, recv_peer;  // -1 where nothing is sent or received
    int channel;
    std::vector<Instruction> steps;
};

struct Program {
    Collective collective;
    int root;
    size_t ranks, chunks, scratch_chunks, depth;
    bool in_place;
    std::vector<Block> blocks;

    bool has_shards() const {
        return collective == Collective::allgather || collective == Collective::reduce_scatter ||
               collective == Collective::alltoall;
    }
    size_t input_chunks() const { return collective == Collective::allgather ? chunks / ranks : chunks; }
    size_t output_chunks() const { return collective == Collective::reduce_scatter ? chunks / ranks : chunks; }
};

// Throws Failure (CHORALE_INVALID) where the words are no program of `rank` among `ranks`.
Program decode_program(const int64_t* words, size_t count, int rank, int ranks);

}  // namespace chorale
