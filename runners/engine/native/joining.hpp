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
    std::vector<std::string> addresses;  // by rank
    std::vector<int> listeners;  // sockets of this rank
    std::string doors;           // addresses on which this rank listens by TCP
    Token token;
    size_t buffer_bytes;
    int64_t deadline_ns;
};

// Adds pipes to `links` for all of `wanted`. Of two ranks, the higher one connects. Other processes are disconnected.
// Failure (CHORALE_TIMEOUT) names a rank that could not be connected in time, with addresses and devices of both sides.
void join(const Joining& joining, const std::set<Links::Key>& wanted, Links& links);

}  // namespace chorale
