// The element types of a vector, and what is done to stretches of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace chorale {

// The upper half of a float32.
struct BFloat16 {
    uint16_t bits;

    BFloat16() = default;

    explicit BFloat16(double value) {
        const float single = static_cast<float>(value);
        uint32_t wide;
        std::memcpy(&wide, &single, sizeof wide);
        bits = static_cast<uint16_t>((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);  // to the nearest, ties to even
    }

    explicit operator double() const {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float single;
        std::memcpy(&single, &wide, sizeof single);
        return single;
    }
};

inline BFloat16 operator+(BFloat16 a, BFloat16 b) {
    return BFloat16(static_cast<double>(a) + static_cast<double>(b));
}

enum class ElementType { float32, float64, int32, bfloat16 };

inline ElementType element_type_named(const std::string& name) {
    if (name == "float32") return ElementType::float32;
    if (name == "float64") return ElementType::float64;
    if (name == "int32") return ElementType::int32;
    if (name == "bfloat16") return ElementType::bfloat16;
    throw std::runtime_error("unknown element type " + name);
}

// Calls `work` with a value of the C++ type that `type` stands for.
template <class Work>
auto with_type(ElementType type, Work work) {
    switch (type) {
        case ElementType::float32: return work(float{});
        case ElementType::float64: return work(double{});
        case ElementType::int32: return work(int32_t{});
        default: return work(BFloat16{});
    }
}

inline size_t element_bytes(ElementType type) {
    return with_type(type, [](auto zero) { return sizeof zero; });
}

// Writes a + b to `sum`, which may be one of them.
inline void add(ElementType type, void* sum, const void* a, const void* b, size_t elements) {
    with_type(type, [&](auto zero) {
        using Element = decltype(zero);
        const auto* left = static_cast<const Element*>(a);
        const auto* right = static_cast<const Element*>(b);
        auto* out = static_cast<Element*>(sum);
        for (size_t i = 0; i < elements; i++) out[i] = left[i] + right[i];
    });
}

}  // namespace chorale
