// Ranks find one another: who connects to whom, and that both are who they say.
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
    std::vector<std::string> addresses;  // of all ranks
    std::vector<int> listeners;  // sockets of this rank
    std::string doors;           // their addresses that name a device
    Token token;
    size_t buffer_bytes;
    bool has_checksums;
    int64_t deadline_ns;
};

// Adds pipes to `links` for all of `wanted`. Of two ranks the higher one connects. Strangers are turned away; Failure
// (CHORALE_TIMEOUT) names a rank that was not there in time, with the addresses and devices of both.
void join(const Joining& joining, const std::set<Links::Key>& wanted, Links& links);

}  // namespace chorale
