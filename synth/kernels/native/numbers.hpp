// Arithmetic as Python has it.
#pragma once

#include <cmath>

#include "array.hpp"

namespace chorale {

// As Python divides: rounded down; by zero there is no error and the result is 0.
CHORALE_INLINE Integer floor_div(Integer a, Integer b) {
    if (b == 0) return 0;
    const Integer quotient = a / b;
    return quotient - ((a % b != 0) & ((a < 0) != (b < 0)));
}
CHORALE_INLINE Word floor_div(Word a, Word b) { return b == 0 ? 0 : a / b; }
CHORALE_INLINE double floor_div(double a, double b) { return std::floor(a / b); }

CHORALE_INLINE Integer floor_mod(Integer a, Integer b) {
    if (b == 0) return 0;
    const Integer remainder = a % b;
    return remainder + (((remainder != 0) & ((remainder < 0) != (b < 0))) ? b : 0);
}
CHORALE_INLINE Word floor_mod(Word a, Word b) { return b == 0 ? 0 : a % b; }

CHORALE_INLINE Integer power(Integer base, Integer exponent) {
    Integer result = 1;
    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}
CHORALE_INLINE double power(double base, double exponent) { return std::pow(base, exponent); }

// The first where both are equal or one is no number, as Python's min and max.
template <class T>
CHORALE_INLINE T least_of(T first, T second) { return second < first ? second : first; }
template <class T>
CHORALE_INLINE T largest_of(T first, T second) { return second > first ? second : first; }

}  // namespace chorale
