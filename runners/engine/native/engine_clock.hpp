// The clocks: CLOCK_MONOTONIC, which all processes of a machine share, and the processor time of this thread.
#pragma once

#include <time.h>

#include <cstdint>

namespace chorale {

inline int64_t clock_ns(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

inline int64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

inline void pause_ns(int64_t ns) {
    const timespec duration{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    if (ns > 0) nanosleep(&duration, nullptr);
}

// `seconds` from now, far away where that is too far to count; now for what is no number of seconds.
inline int64_t deadline_after(double seconds) {
    if (seconds > 1e9) return INT64_MAX;
    return monotonic_ns() + (seconds > 0 ? static_cast<int64_t>(seconds * 1e9) : 0);
}

}  // namespace chorale
