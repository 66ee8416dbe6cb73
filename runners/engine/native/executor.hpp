// Executes a program on this thread. Each block executes its steps strictly in order, as far as it can at the moment.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "buffers.hpp"
#include "program.hpp"
#include "transport.hpp"

namespace chorale {

struct Settings {
    size_t piece_bytes = 4 * 1024;
    std::function<void(int, int)> on_step;  // may be empty
};

class Executor {
public:
    // A run can only finish once all ranks have called `start` with the same `tag`.
    Executor(const Program& program, chorale_call& call, Buffers& buffers, Transport& transport,
             const Settings& settings);
    ~Executor();

    void start(uint32_t tag);

    // Executes all steps. Failure (CHORALE_TIMEOUT) if they are not finished at `deadline_ns`.
    void run(int64_t deadline_ns);

    // Waits until all messages have left.
    void drain(int64_t deadline_ns);

    // Returns a line "BLOCK STEP reason" for each unfinished block.
    std::string blocked() const;

private:
    // The state of a block, which runs all its steps once for each part of the chunks. If there are several parts, a
    // step of several chunks sends a message (piece) for each chunk.
    struct State {
        const Block* block = nullptr;
        Outgoing* outgoing = nullptr;
        Incoming* incoming = nullptr;
        size_t part = 0, step = 0, piece = 0;
        bool has_begun = false, is_queued = false, had_turn = false;
        char *src = nullptr, *dst = nullptr;
        size_t length = 0;                // bytes of the piece
        size_t received = 0, stored = 0, sent = 0;
        std::vector<char> stage;          // received bytes that are not reduced yet
        size_t staged = 0;
        std::vector<char> passed_on;      // bytes that are sent without being stored
        std::vector<size_t> waiters;      // blocks that wait for this one
        int64_t ready_ns = 0, start_ns = 0;
    };

    void connect_blocks(uint32_t tag);
    std::vector<size_t> message_sizes(const Block& block) const;
    void enqueue(size_t block);
    void run_queue();
    void read_ahead();
    bool advance(size_t number);
    bool begin(State& state, size_t number);
    bool move(State& state, const Instruction& step);
    bool receive(State& state, const Instruction& step);
    bool receive_and_reduce(State& state, const Instruction& step);
    bool send(State& state, const char* bytes, size_t available);
    void add_staged(State& state, size_t elements);
    size_t available(State& state, const Instruction& step);
    bool is_complete(State& state, const Instruction& step) const;
    void finish(State& state, const Instruction& step);
    void wake_waiters(State& state);
    void wait_for(State& state, size_t number);
    bool is_met(const State& state, const Wait& wait) const;
    const Wait* unmet(const State& state, bool counts_passing) const;
    bool is_passing(const State& state, const Wait& wait) const;
    std::string reason(const State& state) const;
    bool is_done(const State& state) const { return state.part == parts_ || state.block->steps.empty(); }
    size_t pieces(const Instruction& step) const { return parts_ == 1 ? 1 : step.count; }
    size_t part_start(size_t part) const { return buffers_.chunk_elements() * part / parts_; }
    size_t piece_bytes_of(const Instruction& step, size_t part) const;
    void record(const State& state);

    const Program& program_;
    chorale_call& call_;
    Buffers& buffers_;
    Transport& transport_;
    const Settings& settings_;
    const size_t element_bytes_, parts_;
    std::vector<State> states_;
    std::vector<int> queue_, next_queue_;
    std::vector<size_t> had_turn_;  // blocks that had a turn since the last `read_ahead`
    size_t busy_ = 0;
};

}  // namespace chorale
