#include "rendezvous.hpp"

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "engine_clock.hpp"

namespace chorale {
namespace {

constexpr int pings = 5;
constexpr int64_t lead_ns = 8'000'000, lead_per_rank_ns = 200'000;  // so that all have heard of the start before it

// A number that processes have in common if they read the same clock: that of one machine, and there of one time
// namespace.
uint64_t clock_number() {
    std::string machine;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> machine;
    std::error_code unknown;
    return std::hash<std::string>{}(machine + std::filesystem::read_symlink("/proc/self/ns/time", unknown).string());
}

}  // namespace

Meeting::Meeting(const Task& task, Network& network) : task_(task), network_(network), clocks_(task.ranks) {
    uint64_t& own = clocks_[task.rank];
    own = clock_number();
    for (int rank = 1; rank < task.ranks && task.rank == 0; rank++) {
        network_.hear(&clocks_[rank], sizeof own, rank, "the first word");
        network_.tell(&own, sizeof own, rank, "the first word");
    }
    if (task.rank > 0) {
        network_.tell(&own, sizeof own, 0, "the first word");
        network_.hear(&clocks_[0], sizeof own, 0, "the first word");
        is_elsewhere_ = clocks_[0] != own;
    }
}

int64_t Meeting::meet() {
    int64_t start_ns = 0;
    if (task_.rank > 0) {
        network_.tell(&start_ns, sizeof start_ns, 0, "word of being ready");
        if (is_elsewhere_) align_clock();
        network_.hear(&start_ns, sizeof start_ns, 0, "the time of the start");
        return start_ns - offset_ns_;
    }
    for (int rank = 1; rank < task_.ranks; rank++) {
        network_.hear(&start_ns, sizeof start_ns, rank, "word of being ready");
        if (clocks_[rank] != clocks_[0]) answer_pings(rank);
    }
    start_ns = monotonic_ns() + lead_ns + lead_per_rank_ns * task_.ranks;
    for (int rank = 1; rank < task_.ranks; rank++)
        network_.tell(&start_ns, sizeof start_ns, rank, "the time of the start");
    return start_ns;
}

void Meeting::answer_pings(int rank) {
    for (int ping = 0; ping < pings; ping++) {
        int64_t time_ns = 0;
        network_.hear(&time_ns, sizeof time_ns, rank, "a look at the clock");
        time_ns = monotonic_ns();
        network_.tell(&time_ns, sizeof time_ns, rank, "a look at the clock");
    }
}

// Takes the clock of rank 0 to have been read in the middle of the fastest of several exchanges.
void Meeting::align_clock() {
    int64_t fastest_ns = std::numeric_limits<int64_t>::max();
    for (int ping = 0; ping < pings; ping++) {
        int64_t theirs_ns = 0;
        const int64_t before_ns = monotonic_ns();
        network_.tell(&before_ns, sizeof before_ns, 0, "a look at the clock");
        network_.hear(&theirs_ns, sizeof theirs_ns, 0, "a look at the clock");
        const int64_t after_ns = monotonic_ns();
        if (after_ns - before_ns >= fastest_ns) continue;
        fastest_ns = after_ns - before_ns;
        offset_ns_ = theirs_ns - (before_ns + after_ns) / 2;
    }
}

}  // namespace chorale
