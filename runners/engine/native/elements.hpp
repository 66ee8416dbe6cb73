// Arithmetic of elements, with bitwise identical results on CPUs and GPUs. Freestanding: includes no headers.
#pragma once

#if defined(__CUDACC__) || defined(__HIP__)
#define CHORALE_CODE __host__ __device__ __forceinline__
#define CHORALE_COPY memcpy
#else
#define CHORALE_CODE inline
#define CHORALE_COPY __builtin_memcpy
#endif

namespace chorale {

// 16-bit floats. Operations compute in float32 and round to the nearest value, with ties to even.
struct Half {
    unsigned short bits;
};
struct Brain {
    unsigned short bits;
};

template <class To, class From>
CHORALE_CODE To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "both are of one size");
    To to;
    CHORALE_COPY(&to, &from, sizeof to);
    return to;
}

CHORALE_CODE float as_float(unsigned bits) { return same_bits<float>(bits); }
CHORALE_CODE unsigned as_bits(float value) { return same_bits<unsigned>(value); }

CHORALE_CODE float widen(Brain value) { return as_float(unsigned{value.bits} << 16); }

CHORALE_CODE float widen(Half value) {
    const unsigned sign = (value.bits & 0x8000u) << 16, rest = value.bits & 0x7fffu;
    if (rest >= 0x7c00u) return as_float(sign | 0x7f800000u | (rest << 13));  // infinity or NaN
    if (rest >= 0x0400u) return as_float(sign | ((rest << 13) + 0x38000000u));
    const float small = static_cast<float>(rest) * as_float(0x33800000u);  // subnormal: units of 2^-24
    return as_float(sign | as_bits(small));
}

CHORALE_CODE void narrow(float value, Brain& out) {
    const unsigned bits = as_bits(value);
    const bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
    const unsigned rounded = is_number ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : (bits >> 16) | 0x40u;
    out.bits = static_cast<unsigned short>(rounded);
}

CHORALE_CODE void narrow(float value, Half& out) {
    const unsigned bits = as_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    unsigned found;
    if (rest > 0x7f800000u) {
        found = 0x7e00u;
    } else if (rest >= 0x477ff000u) {  // rounds to 65536 or more
        found = 0x7c00u;
    } else if (rest >= 0x38800000u) {
        found = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    } else {  // subnormal: adding 0.5 rounds to units of 2^-24, which are then the last bits
        found = as_bits(as_float(rest) + 0.5f) - 0x3f000000u;
    }
    out.bits = static_cast<unsigned short>(sign | found);
}

template <class T>
CHORALE_CODE T widen(T value) {
    return value;
}
template <class T>
CHORALE_CODE void narrow(T value, T& out) {
    out = value;
}

template <class T>
struct IsFloat {
    static constexpr bool value = static_cast<T>(0.5) != 0;
};

// Applies an operation to two elements. Integers wrap around: sums and products are computed unsigned, with at least
// the width of int. Minimum and maximum propagate NaN from either operand.
struct Plus {
    template <class T>
    CHORALE_CODE T operator()(T a, T b) const {
        if constexpr (IsFloat<T>::value) return a + b;
        else return static_cast<T>(static_cast<unsigned long long>(a) + static_cast<unsigned long long>(b));
    }
};
struct Times {
    template <class T>
    CHORALE_CODE T operator()(T a, T b) const {
        if constexpr (IsFloat<T>::value) return a * b;
        else return static_cast<T>(static_cast<unsigned long long>(a) * static_cast<unsigned long long>(b));
    }
};
struct Least {
    template <class T>
    CHORALE_CODE T operator()(T a, T b) const {
        return (b < a || b != b) ? b : a;
    }
};
struct Greatest {
    template <class T>
    CHORALE_CODE T operator()(T a, T b) const {
        return (b > a || b != b) ? b : a;
    }
};

// Calls `work` with a value of the element type `type`, a number from chorale_engine.h.
template <class Work>
CHORALE_CODE auto with_type(int type, Work work) {
    switch (type) {
        case 0: return work(float{});
        case 1: return work(double{});
        case 2: return work(Half{});
        case 3: return work(Brain{});
        case 4: return work(int{});
        case 5: return work(static_cast<long long>(0));
        case 6: return work(static_cast<signed char>(0));
        default: return work(static_cast<unsigned char>(0));
    }
}

// Calls `work` with the function for the operation, a number from chorale_engine.h. AVG adds, like SUM.
template <class Work>
CHORALE_CODE auto with_operation(int operation, Work work) {
    switch (operation) {
        case 2: return work(Least{});
        case 3: return work(Greatest{});
        case 4: return work(Times{});
        default: return work(Plus{});
    }
}

}  // namespace chorale
