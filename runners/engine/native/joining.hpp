// Establishes connections between ranks, and checks that both ends belong to the job.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "sockets.hpp"
#include "links.hpp"

namespace chorale {

struct Joining {
    int rank;
    std::vector<std::string> addresses;  // indexed by rank
    std::vector<int> listeners;  // sockets of this rank
    std::string doors;           // addresses at which this rank listens over TCP
    Token token;
    size_t buffer_bytes;
    int64_t deadline_ns;
};

// Adds a pipe to `links` for each connection in `wanted`. Of two ranks, the higher one connects to the lower one. Other
// processes are disconnected. Failure (CHORALE_TIMEOUT) if a connection is not established in time; the message names
// the rank, and the addresses and devices of both sides.
void join(const Joining& joining, const std::set<Links::Key>& wanted, Links& links);

}  // namespace chorale
