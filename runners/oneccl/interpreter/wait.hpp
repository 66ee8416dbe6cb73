// How long to sleep when there is nothing to do: briefly at first, then longer, because ranks share cores.
#pragma once

#include <algorithm>
#include <cstdint>

#include "clock.hpp"

namespace chorale {

class Idle {
public:
    void sleep() {
        sleep_ns(next_ns_);
        next_ns_ = std::min(2 * next_ns_, longest_ns);
    }
    void reset() { next_ns_ = shortest_ns; }

private:
    static constexpr int64_t shortest_ns = 10'000, longest_ns = 200'000;
    int64_t next_ns_ = shortest_ns;
};

}  // namespace chorale
