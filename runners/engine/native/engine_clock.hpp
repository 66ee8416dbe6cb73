// Reads clocks: CLOCK_MONOTONIC, which all processes of a machine share, and the processor time of this thread.
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

// Waits until CLOCK_MONOTONIC reaches `at_ns`.
inline void pause_until(int64_t at_ns) {
    const timespec at{static_cast<time_t>(at_ns / 1'000'000'000), static_cast<long>(at_ns % 1'000'000'000)};
    while (monotonic_ns() < at_ns) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
}

// Returns the time `seconds` after `from_ns`: INT64_MAX for very long times, `from_ns` for NaN and negative numbers.
inline int64_t deadline_after(double seconds, int64_t from_ns) {
    if (seconds > 1e9) return INT64_MAX;
    return from_ns + (seconds > 0 ? static_cast<int64_t>(seconds * 1e9) : 0);
}
inline int64_t deadline_after(double seconds) { return deadline_after(seconds, monotonic_ns()); }

}  // namespace chorale
