// The element types of the runner's data: integers that are exact in each of them.
#pragma once

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

// Calls `work` with a value of the C++ type that `type` stands for.
template <class Work>
auto with_type(int type, Work work) {
    switch (type) {
        case CHORALE_FLOAT32: return work(float{});
        case CHORALE_FLOAT64: return work(double{});
        case CHORALE_INT32: return work(int32_t{});
        case CHORALE_BFLOAT16: return work(BFloat16{});
        default: throw std::runtime_error("there are no data of this element type");
    }
}

}  // namespace chorale
