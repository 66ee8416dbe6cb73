// What the executor knows of the way to other ranks: connections, of which each carries messages of known sizes from one
// rank to another on one channel, in order.
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

class Transport {
public:
    virtual ~Transport() = default;

    // The ends of connections at this rank; they belong to the transport. Failure where there is none.
    virtual Outgoing& outgoing(int peer, int channel) = 0;
    virtual Incoming& incoming(int peer, int channel) = 0;

    // Whoever uses these ends from now on is the block of this number; -1 for nobody.
    virtual void set_sender(int peer, int channel, int block) = 0;
    virtual void set_receiver(int peer, int channel, int block) = 0;

    // Waits until a block may be able to go on or `until_ns` has come; adds such blocks to `blocks`.
    virtual void wait(int64_t until_ns, std::vector<int>& blocks) = 0;

    // Ends all connections, so that the others notice.
    virtual void close() = 0;
};

}  // namespace chorale
