// The program of one rank, decoded and checked, so that it only accesses the buffers, whatever the words contain.
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
    // If this step may use the first bytes while the other step still stores more: distance in chunks from the first
    // chunk that the other step stores to the first chunk that this step reads. Otherwise -1.
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
    int send_peer, recv_peer;  // -1: none
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

// Failure (CHORALE_INVALID) if the words are not a valid program for `rank`.
Program decode_program(const int64_t* words, size_t count, int rank, int ranks);

}  // namespace chorale
