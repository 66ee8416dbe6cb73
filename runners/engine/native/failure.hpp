// Exceptions of the engine.
#pragma once

#include <stdexcept>
#include <string>

#include "chorale_engine.h"

namespace chorale {

struct Failure : std::runtime_error {
    Failure(int status, const std::string& message) : std::runtime_error(message), status(status) {}
    int status;
};

inline Failure lost(int peer, const std::string& how) {
    return Failure(CHORALE_PEER_LOST, "rank " + std::to_string(peer) + " is gone: " + how);
}

inline Failure garbage(int peer, const std::string& what) {
    return Failure(CHORALE_GARBAGE, "rank " + std::to_string(peer) + " sent " + what);
}

}  // namespace chorale
