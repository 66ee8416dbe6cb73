// The two ends of a connection: queues of as many messages as the program's protocol lets a sender be ahead.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "network.hpp"
#include "task.hpp"

namespace chorale {

// Memory for one message and what was posted for it.
struct Slot {
    std::vector<char> bytes;
    std::optional<Posted> posted;

    bool is_free() const { return !posted || posted->is_done(); }
};

class Outgoing {
public:
    Outgoing(Network& network, const Block& block, size_t depth)
        : network_(network), peer_(block.send), channel_(block.channel), slots_(depth) {}

    bool has_room() const { return slots_[next_].is_free(); }

    // Where to write the next message of `size` bytes, which post() then sends.
    char* message(size_t size);
    void post();

    // Gives oneCCL turns; returns whether something was finished.
    bool progress();
    bool is_drained() const;

private:
    Network& network_;
    int peer_;
    size_t channel_;
    std::vector<Slot> slots_;
    size_t next_ = 0;
};

// Receives are posted ahead of time, so that a message is on its way before the block gets to it.
class Incoming {
public:
    // `sizes`: bytes of every message of the run, in order.
    Incoming(Network& network, const Block& block, size_t depth, std::vector<size_t> sizes);

    bool has_message() const { return taken_ < posted_ && slots_[taken_ % slots_.size()].posted->is_done(); }
    const char* message() const { return slots_[taken_ % slots_.size()].bytes.data(); }

    // Lets go of the message.
    void pop();

    // Gives oneCCL turns; returns whether something has arrived.
    bool progress();

private:
    void post_ahead();

    Network& network_;
    int peer_;
    size_t channel_;
    std::vector<size_t> sizes_;
    std::vector<Slot> slots_;
    size_t posted_ = 0, taken_ = 0;
};

}  // namespace chorale
