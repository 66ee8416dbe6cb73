// The two ends of a connection: messages of known sizes from one rank to another on one channel, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace chorale {

class Outgoing {
public:
    virtual ~Outgoing() = default;

    // A run begins: messages carry `tag`, and up to `depth` of them may be on their way.
    virtual void start(uint32_t tag, size_t depth) = 0;

    // The next message has `size` bytes; the one before has been taken as a whole.
    virtual void begin(size_t size) = 0;

    // Takes some of the `size` bytes of the message that come next; returns how many.
    virtual size_t take(const char* bytes, size_t size) = 0;

    // Whether the message has been taken as a whole.
    virtual bool is_done() const = 0;

    // Whether all that was taken has left for good.
    virtual bool is_drained() { return true; }
};

class Incoming {
public:
    virtual ~Incoming() = default;

    // A run begins: messages carry `tag` and have these sizes, and up to `depth` of them are taken in early.
    virtual void start(uint32_t tag, const std::vector<size_t>& sizes, size_t depth) = 0;

    // The next message is wanted; the one before is done.
    virtual void begin() = 0;

    // Gives some of the `size` bytes of the message that come next; returns how many.
    virtual size_t give(char* bytes, size_t size) = 0;

    // Whether the message was given as a whole and is as it was sent.
    virtual bool is_done() = 0;

    // Takes in what nobody has asked for yet, so that its sender can go on; returns whether there was any.
    virtual bool read_ahead() = 0;
};

}  // namespace chorale
