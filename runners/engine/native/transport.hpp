// What the executor knows of the way to other ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "connection.hpp"

namespace chorale {

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
