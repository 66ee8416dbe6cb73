#include "element_types.hpp"

#include <type_traits>

#include "chorale_engine.h"
#include "elements.hpp"

namespace chorale {
namespace {

static_assert(CHORALE_UINT8 == 7 && CHORALE_BFLOAT16 == 3 && CHORALE_MIN == 2 && CHORALE_PROD == 4,
              "elements.hpp has the numbers of chorale_engine.h");

// Like `with_type`, but also for types that only CPUs support.
template <class Work>
auto with_any_type(int type, Work work) {
    switch (type) {
        case CHORALE_INT16: return work(int16_t{});
        case CHORALE_UINT16: return work(uint16_t{});
        case CHORALE_UINT32: return work(uint32_t{});
        case CHORALE_UINT64: return work(uint64_t{});
        case CHORALE_FLOAT128: return work(0.0L);
        default: return with_type(type, work);
    }
}

// Reads and writes elements at unaligned addresses.
template <class T>
struct __attribute__((packed, may_alias)) Anywhere {
    T value;
};

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
void divide_type(void* data, size_t elements, int64_t divisor) {
    using Wide = decltype(widen(T{}));
    auto* values = static_cast<Anywhere<T>*>(data);
    for (size_t i = 0; i < elements; i++) {
        T value = values[i].value;
        if constexpr (IsFloat<Wide>::value)
            narrow(widen(value) / static_cast<Wide>(divisor), value);
        else
            value = static_cast<T>(value / static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(divisor));
        values[i].value = value;
    }
}

}  // namespace

size_t element_size(int type) {
    if (type < CHORALE_FLOAT32 || type > CHORALE_FLOAT128) return 0;
    return with_any_type(type, [](auto element) { return sizeof element; });
}

bool is_operation(int operation) { return operation >= CHORALE_SUM && operation <= CHORALE_PROD; }

void reduce(int type, int operation, void* dst, const void* a, const void* b, size_t elements) {
    with_any_type(type, [&](auto element) {
        with_operation(operation, [&](auto does) { combine<decltype(element)>(dst, a, b, elements, does); });
    });
}

void divide(int type, void* data, size_t elements, int64_t divisor) {
    with_any_type(type, [&](auto element) { divide_type<decltype(element)>(data, elements, divisor); });
}

}  // namespace chorale
