// The clock of all measurements.
#pragma once

#include <cstdint>
#include <ctime>

namespace chorale {

// Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
inline int64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

inline void sleep_ns(int64_t nanoseconds) {
    if (nanoseconds <= 0) return;
    const timespec time{static_cast<time_t>(nanoseconds / 1'000'000'000), static_cast<long>(nanoseconds % 1'000'000'000)};
    nanosleep(&time, nullptr);
}

}  // namespace chorale
