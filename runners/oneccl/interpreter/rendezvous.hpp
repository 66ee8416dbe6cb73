// Where all ranks wait for one another and agree when to start. Rank 0 leads.
#pragma once

#include <cstdint>

#include "network.hpp"
#include "task.hpp"

namespace chorale {

class Meeting {
public:
    // Lets the ranks find out which of them share a clock.
    Meeting(const Task& task, Network& network);

    // Returns when all ranks have called it, with a time soon after, the same for all, on the own clock.
    int64_t meet();

    // A time of the own clock on the clock of rank 0.
    int64_t common(int64_t time_ns) const { return time_ns + offset_ns_; }

private:
    void answer_pings(int rank);
    void align_clock();

    const Task& task_;
    Network& network_;
    std::vector<uint64_t> clocks_;  // of all ranks at rank 0, else of rank 0 and the own one
    int64_t offset_ns_ = 0;  // clock of rank 0 minus own clock
    bool is_elsewhere_ = false;  // with another clock than rank 0
};

}  // namespace chorale
