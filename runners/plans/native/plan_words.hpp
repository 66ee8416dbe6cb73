// A plan of one rank, decoded and checked: whatever the words say, nothing outside of the memory is ever touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace chorale::plans {

struct WrongPlan : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Consecutive pieces of the memory of a rank, or of the packets in its scratch.
struct Stretch {
    size_t rank, first, count;
};

enum class Kind { nop, barrier, signal, port_signal, wait, acquire, release, move, port_move, pipeline };

// A counter of signals at a rank.
struct Counter {
    size_t rank, slot;
};

// What a block does at once, or one way of data of it.
struct Action {
    Kind kind = Kind::nop;
    int64_t step = 0;                  // number of the operation in the plan
    std::vector<size_t> numbers;       // of semaphores and own counters; of a barrier: number and blocks
    std::vector<Counter> counters;     // to count up; of a port move those of its signal, none without
    std::vector<Stretch> reads, takes, writes, packets;
    bool waits = false, flushes = false;  // port moves: for packets before; for the end of reading after
    size_t unit_bytes = 0, length = 0, pieces = 0;  // pipelines: bytes of a part, actions in it, pieces of the whole
};

struct PlanOfRank {
    size_t rank, ranks;
    size_t slots, data_pieces, packet_pieces;  // the most of any rank
    bool halves;                               // whether calls use halves of the packets by turns
    std::vector<int64_t> semaphores;           // their first values
    std::vector<std::vector<Action>> blocks;
    size_t barriers = 0;
};

// Throws WrongPlan.
PlanOfRank decode_plan(const int64_t* words, size_t count, size_t rank, size_t ranks);

}  // namespace chorale::plans
