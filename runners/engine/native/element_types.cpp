#include "element_types.hpp"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "chorale_engine.h"

namespace chorale {
namespace {

// Floats of 16 bits are computed as float32 and rounded to the nearest, ties to even.
struct Half {
    uint16_t bits;
};
struct Brain {
    uint16_t bits;
};

// An element at any address: callers may have views that begin anywhere.
template <class T>
struct __attribute__((packed, may_alias)) Anywhere {
    T value;
};

inline float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t as_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float widen(Brain value) { return as_float(uint32_t{value.bits} << 16); }

inline float widen(Half value) {
    const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16, rest = value.bits & 0x7fffu;
    if (rest >= 0x7c00u) return as_float(sign | 0x7f800000u | (rest << 13));  // infinite, or no number
    if (rest >= 0x0400u) return as_float(sign | ((rest << 13) + 0x38000000u));
    const float small = static_cast<float>(rest) * as_float(0x33800000u);  // below the normal numbers: units of 2^-24
    return as_float(sign | as_bits(small));
}

inline void narrow(float value, Brain& out) {
    const uint32_t bits = as_bits(value);
    const bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
    out.bits = static_cast<uint16_t>(is_number ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : (bits >> 16) | 0x40u);
}

inline void narrow(float value, Half& out) {
    const uint32_t bits = as_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        out.bits = static_cast<uint16_t>(sign | 0x7e00u);
    } else if (rest >= 0x477ff000u) {  // rounds to 65536 or more
        out.bits = static_cast<uint16_t>(sign | 0x7c00u);
    } else if (rest >= 0x38800000u) {
        out.bits = static_cast<uint16_t>(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13));
    } else {  // adding 0.5 puts the units of 2^-24 into the last bits, rounded
        out.bits = static_cast<uint16_t>(sign | (as_bits(as_float(rest) + 0.5f) - 0x3f000000u));
    }
}

template <class T>
T widen(T value) {
    return value;
}
template <class T>
void narrow(T value, T& out) {
    out = value;
}

// Integers wrap around: sums and products are computed without sign, at least as wide as int.
template <class T>
T plus(T a, T b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    return a + b;
}
template <class T>
T times(T a, T b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    return a * b;
}
// No number is passed on, from either side.
template <class T>
T least(T a, T b) {
    return (b < a || b != b) ? b : a;
}
template <class T>
T greatest(T a, T b) {
    return (b > a || b != b) ? b : a;
}

template <class T, class Combine>
void combine(void* dst, const void* a, const void* b, size_t elements, Combine operation) {
    auto* out = static_cast<Anywhere<T>*>(dst);
    const auto *left = static_cast<const Anywhere<T>*>(a), *right = static_cast<const Anywhere<T>*>(b);
    for (size_t i = 0; i < elements; i++) {
        T result;
        narrow(operation(widen(left[i].value), widen(right[i].value)), result);
        out[i].value = result;
    }
}

template <class T>
void reduce_type(int operation, void* dst, const void* a, const void* b, size_t elements) {
    using Wide = decltype(widen(T{}));
    switch (operation) {
        case CHORALE_MIN: return combine<T>(dst, a, b, elements, least<Wide>);
        case CHORALE_MAX: return combine<T>(dst, a, b, elements, greatest<Wide>);
        case CHORALE_PROD: return combine<T>(dst, a, b, elements, times<Wide>);
        default: return combine<T>(dst, a, b, elements, plus<Wide>);
    }
}

template <class T>
void divide_type(void* data, size_t elements, int64_t divisor) {
    using Wide = decltype(widen(T{}));
    auto* values = static_cast<Anywhere<T>*>(data);
    for (size_t i = 0; i < elements; i++) {
        T value = values[i].value;
        if constexpr (std::is_integral_v<Wide>)
            value = static_cast<T>(static_cast<int64_t>(value) / divisor);
        else
            narrow(widen(value) / static_cast<Wide>(divisor), value);
        values[i].value = value;
    }
}

// Calls `work` with a null pointer to the type of number `type`.
template <class Work>
void with_type(int type, Work work) {
    switch (type) {
        case CHORALE_FLOAT32: return work(static_cast<float*>(nullptr));
        case CHORALE_FLOAT64: return work(static_cast<double*>(nullptr));
        case CHORALE_FLOAT16: return work(static_cast<Half*>(nullptr));
        case CHORALE_BFLOAT16: return work(static_cast<Brain*>(nullptr));
        case CHORALE_INT32: return work(static_cast<int32_t*>(nullptr));
        case CHORALE_INT64: return work(static_cast<int64_t*>(nullptr));
        case CHORALE_INT8: return work(static_cast<int8_t*>(nullptr));
        default: return work(static_cast<uint8_t*>(nullptr));
    }
}

}  // namespace

size_t element_size(int type) {
    size_t size = 0;
    if (type >= CHORALE_FLOAT32 && type <= CHORALE_UINT8)
        with_type(type, [&](auto* pointer) { size = sizeof *pointer; });
    return size;
}

bool is_operation(int operation) { return operation >= CHORALE_SUM && operation <= CHORALE_PROD; }

void reduce(int type, int operation, void* dst, const void* a, const void* b, size_t elements) {
    with_type(type, [&](auto* pointer) {
        reduce_type<std::remove_pointer_t<decltype(pointer)>>(operation, dst, a, b, elements);
    });
}

void divide(int type, void* data, size_t elements, int64_t divisor) {
    with_type(type,
              [&](auto* pointer) { divide_type<std::remove_pointer_t<decltype(pointer)>>(data, elements, divisor); });
}

double load_element(int type, const void* address) {
    double result = 0;
    with_type(type, [&](auto* pointer) {
        using T = std::remove_pointer_t<decltype(pointer)>;
        result = static_cast<double>(widen(static_cast<const Anywhere<T>*>(address)->value));
    });
    return result;
}

void store_element(int type, void* address, double value) {
    with_type(type, [&](auto* pointer) {
        using T = std::remove_pointer_t<decltype(pointer)>;
        T element;
        narrow(static_cast<decltype(widen(T{}))>(value), element);
        static_cast<Anywhere<T>*>(address)->value = element;
    });
}

}  // namespace chorale
