// Executes calls of a plan on one rank: all its blocks in turns, in one thread, each as far as it gets.
#pragma once

#include <string>

#include "plan_memory.hpp"
#include "plan_words.hpp"
#include "ports.hpp"

namespace chorale::plans {

struct Unfinished : std::runtime_error {
    Unfinished(const std::string& message, std::string blocked)
        : std::runtime_error(message), blocked(std::move(blocked)) {}
    std::string blocked;
};

class PlanExecutor {
public:
    PlanExecutor(const PlanOfRank& plan, PlanMemory memory, int type, Ports& ports);

    // One call, which ends when all blocks have, and the ports have done what they were given. Throws Unfinished.
    void call(int64_t deadline_ns);

private:
    struct BlockState {
        size_t at = 0, part = 0, parts = 1, pipeline = 0;
        size_t progress = 0;  // within an action: what of it is done, or bytes of packets that have arrived
        bool entered = false;
        uint64_t ticket = 0;
    };

    bool advance(size_t block);
    bool perform(const Action& action, BlockState& state);
    void step(const std::vector<Action>& actions, BlockState& state);
    bool meet(const Action& action, BlockState& state);
    bool wait(const Action& action, BlockState& state);
    bool acquire(const Action& action, BlockState& state);
    bool move(const Action& action, BlockState& state);
    bool move_by_port(const Action& action, BlockState& state);
    void copy(const Action& action, size_t from, size_t bytes);
    void write(const Action& action, size_t at, const char* data, size_t bytes);
    bool has_packets(const Action& action, BlockState& state, size_t from, size_t bytes);
    std::pair<size_t, size_t> range(const Action& action, const BlockState& state) const;
    std::string blocked() const;

    const PlanOfRank& plan_;
    PlanMemory memory_;
    int type_;
    uint64_t call_ = 0, pushed_ = 0;
    Ports& ports_;
    std::vector<uint64_t> heard_;  // signals that were waited for, of each counter
    std::vector<int64_t> semaphores_;
    struct Barrier {
        size_t arrived = 0, rounds = 0;
    };
    std::vector<Barrier> barriers_;
    std::vector<BlockState> states_;
    std::vector<char> sum_, summand_;
};

}  // namespace chorale::plans
