// The interface of transports, which carry messages of known sizes, in order, from one rank to another on a channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace chorale {

class Outgoing {
public:
    virtual ~Outgoing() = default;

    // Begins a run in which messages carry `tag` and up to `depth` of them may be on their way.
    virtual void start(uint32_t tag, size_t depth) = 0;

    // Begins the next message, of `size` bytes; the previous one must be done.
    virtual void begin(size_t size) = 0;

    // Takes some of the next `size` bytes of the message; returns how many.
    virtual size_t take(const char* bytes, size_t size) = 0;

    // Returns whether the complete message has been taken.
    virtual bool is_done() const = 0;

    // Returns whether the transport no longer needs the memory of the bytes that it has taken.
    virtual bool is_drained() { return true; }
};

class Incoming {
public:
    virtual ~Incoming() = default;

    // Begins a run in which messages carry `tag` and have these sizes. Up to `depth` of them are received early.
    virtual void start(uint32_t tag, const std::vector<size_t>& sizes, size_t depth) = 0;

    // Begins the next message; the previous one must be done.
    virtual void begin() = 0;

    // Writes up to `size` of the next bytes of the message to `bytes`; returns how many.
    virtual size_t give(char* bytes, size_t size) = 0;

    // Returns whether the complete message was given and its checksum is correct.
    virtual bool is_done() = 0;

    // Receives messages that were not begun yet, so that their senders can continue. Returns whether any bytes arrived.
    virtual bool read_ahead() = 0;
};

class Transport {
public:
    virtual ~Transport() = default;

    // Return the local ends of connections, which the transport owns. Failure if there is no such connection.
    virtual Outgoing& outgoing(int peer, int channel) = 0;
    virtual Incoming& incoming(int peer, int channel) = 0;

    // Set which block uses an end from now on; -1 for no block.
    virtual void set_sender(int peer, int channel, int block) = 0;
    virtual void set_receiver(int peer, int channel, int block) = 0;

    // Waits until blocks may be able to continue, but not longer than until `until_ns`. Adds these blocks to `blocks`.
    virtual void wait(int64_t until_ns, std::vector<int>& blocks) = 0;

    // Closes all connections, so that other ranks notice.
    virtual void close() = 0;
};

}  // namespace chorale
