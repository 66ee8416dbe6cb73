// Scrambles 64-bit numbers, identically on every machine: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
#pragma once

#include "arrays.hpp"

namespace chorale {

constexpr Word STEP = 0x9E3779B97F4A7C15;
constexpr Word FIRST_FACTOR = 0xBF58476D1CE4E5B9;
constexpr Word SECOND_FACTOR = 0x94D049BB133111EB;

inline Word mix(Word value) {
    value = (value ^ (value >> 30)) * FIRST_FACTOR;
    value = (value ^ (value >> 27)) * SECOND_FACTOR;
    return value ^ (value >> 31);
}

}  // namespace chorale
