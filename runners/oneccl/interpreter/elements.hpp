// The element types of the runner's data: integers that are exact in each of them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "chorale_engine.h"

namespace chorale {

// The upper half of a float32; the lower is zero in all data.
struct BFloat16 {
    uint16_t bits;

    BFloat16() = default;

    explicit BFloat16(int64_t value) {
        const float single = static_cast<float>(value);
        uint32_t wide;
        std::memcpy(&wide, &single, sizeof wide);
        bits = static_cast<uint16_t>(wide >> 16);
    }

    explicit operator double() const {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float single;
        std::memcpy(&single, &wide, sizeof single);
        return single;
    }
};

// A half-precision number, of which only integers up to 2048 are made.
struct Float16 {
    uint16_t bits;

    Float16() = default;

    explicit Float16(int64_t value) {
        const uint16_t sign = value < 0 ? 0x8000 : 0;
        const auto size = static_cast<uint32_t>(value < 0 ? -value : value);
        int exponent = 0;
        while ((size >> exponent) > 1) exponent++;
        const uint32_t fraction = exponent <= 10 ? size << (10 - exponent) : size >> (exponent - 10);
        bits = static_cast<uint16_t>(sign | (size == 0 ? 0 : (exponent + 15) << 10 | (fraction & 0x3FF)));
    }

    explicit operator double() const {
        const int exponent = bits >> 10 & 0x1F;
        const double fraction = bits & 0x3FF;
        const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
        return bits & 0x8000 ? -size : size;
    }
};

// Calls `work` with a value of the C++ type that `type` stands for.
template <class Work>
auto with_type(int type, Work work) {
    switch (type) {
        case CHORALE_FLOAT32: return work(float{});
        case CHORALE_FLOAT64: return work(double{});
        case CHORALE_FLOAT16: return work(Float16{});
        case CHORALE_INT32: return work(int32_t{});
        case CHORALE_INT64: return work(int64_t{});
        case CHORALE_BFLOAT16: return work(BFloat16{});
        default: throw std::runtime_error("there are no data of this element type");
    }
}

}  // namespace chorale
