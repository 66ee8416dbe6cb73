// Executes the thread blocks of one rank: each strictly in order, all of them in turns.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "connection.hpp"
#include "memory.hpp"
#include "network.hpp"
#include "task.hpp"

namespace chorale {

// Where an unfinished block stands and what it waits for.
struct Stuck {
    size_t block;
    size_t step;
    std::string reason;
};

class Interpreter {
public:
    // Posts the first receives. All ranks must have one before any of them calls run().
    Interpreter(const Task& task, const Run& run, const Memory& memory, Network& network);

    // Goes through all steps; `end_ns` is when the last was done. LimitPassed when the limit passes before.
    int64_t execute();

    // Waits until everything sent has left.
    void drain();

    std::vector<Stuck> stuck() const;

private:
    // A block goes through its steps once for each part of the chunks, and of a step through one piece after another.
    struct State {
        const Block* block;
        std::unique_ptr<Outgoing> outgoing;
        std::unique_ptr<Incoming> incoming;
        size_t part = 0, step = 0, piece = 0;

        bool is_done(size_t parts) const { return part == parts || block->instructions.empty(); }
    };

    // A stretch of memory that an instruction works on at once.
    struct Piece {
        char *src, *dst;
        size_t elements;
    };

    bool is_done() const;
    bool take_turns();
    bool advance(State& state);
    void perform(State& state, const Instruction& step, const Piece& piece);
    Piece piece_of(const Instruction& step, const State& state) const;
    size_t pieces(const Instruction& step) const { return run_.parts == 1 ? 1 : step.count; }
    size_t part_start(size_t part) const { return memory_.chunk_elements() * part / run_.parts; }
    std::vector<size_t> message_sizes(const Block& block) const;
    const Wait* unmet_wait(const State& state) const;
    std::string reason(const State& state) const;
    void misbehave() const;

    const Task& task_;
    const Run& run_;
    const Memory& memory_;
    Network& network_;
    size_t element_bytes_;
    bool is_faulty_;
    std::vector<State> states_;
};

}  // namespace chorale
