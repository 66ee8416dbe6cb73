// Arrays of kernels: views with shared ownership.
//
// The last axis of an Array is contiguous. An array that the caller of a kernel owns has no storage of its own here. A
// kernel runs in one thread, so that counting the owners of a storage needs no atomic operations.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

// GCC takes the release of a second owner for one of freed memory.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#pragma GCC diagnostic ignored "-Wuse-after-free"
#endif

#define CHORALE_INLINE inline __attribute__((always_inline))

namespace chorale {

using Integer = std::int64_t;
using Word = std::uint64_t;

struct Storage {
    Integer owners;
    alignas(16) unsigned char bytes[1];
};

inline Storage* allocate(std::size_t bytes) {
    auto* storage = static_cast<Storage*>(std::malloc(offsetof(Storage, bytes) + bytes + 1));
    if (storage == nullptr) throw std::bad_alloc();
    storage->owners = 0;
    return storage;
}

class Owner {
public:
    Owner() = default;
    explicit Owner(Storage* storage) : storage_(storage) { retain(); }
    Owner(const Owner& other) : storage_(other.storage_) { retain(); }
    Owner(Owner&& other) noexcept : storage_(other.storage_) { other.storage_ = nullptr; }
    Owner& operator=(Owner other) noexcept {
        std::swap(storage_, other.storage_);
        return *this;
    }
    ~Owner() { release(storage_); }

    static void release(Storage* storage) {
        if (storage != nullptr && --storage->owners == 0) std::free(storage);
    }
    Storage* get() const { return storage_; }

private:
    void retain() {
        if (storage_ != nullptr) ++storage_->owners;
    }
    Storage* storage_ = nullptr;
};

[[noreturn]] inline void out_of_bounds(Integer index, Integer size) {
    throw std::out_of_range("index " + std::to_string(index) + " in an axis of " + std::to_string(size));
}

// As Python has it, indices below 0 count from the end. Others are checked only where that is asked for.
CHORALE_INLINE Integer at(Integer index, Integer size) {
    const Integer position = index < 0 ? index + size : index;
#ifdef CHORALE_CHECK_BOUNDS
    if (position < 0 || position >= size) out_of_bounds(index, size);
#endif
    return position;
}

// First and last index of a slice, as Python cuts them to the axis.
struct Range {
    Integer first, last;
};

CHORALE_INLINE Range range_of(Integer first, Integer last, Integer size) {
    if (first < 0) first = std::max<Integer>(first + size, 0);
    if (last < 0) last = std::max<Integer>(last + size, 0);
    first = std::min(first, size);
    return {first, std::max(first, std::min(last, size))};
}

constexpr Integer END = std::numeric_limits<Integer>::max();

template <class T, int N>
struct Array {
    using Element = T;
    static constexpr int AXES = N;
    T* data = nullptr;
    std::array<Integer, N> shape{};
    std::array<Integer, N> stride{};
    Owner owner;

    Integer size() const {
        Integer product = 1;
        for (Integer extent : shape) product *= extent;
        return product;
    }
    CHORALE_INLINE T& operator()(Integer i) const {
        static_assert(N == 1);
        return data[at(i, shape[0])];
    }
    CHORALE_INLINE T& operator()(Integer i, Integer j) const {
        static_assert(N == 2);
        return data[at(i, shape[0]) * stride[0] + at(j, shape[1])];
    }
    CHORALE_INLINE T& operator()(Integer i, Integer j, Integer k) const {
        static_assert(N == 3);
        return data[at(i, shape[0]) * stride[0] + at(j, shape[1]) * stride[1] + at(k, shape[2])];
    }
    CHORALE_INLINE Array<T, N - 1> row(Integer i) const {
        static_assert(N > 1);
        Array<T, N - 1> result;
        result.data = data + at(i, shape[0]) * stride[0];
        for (int axis = 1; axis < N; ++axis) {
            result.shape[axis - 1] = shape[axis];
            result.stride[axis - 1] = stride[axis];
        }
        result.owner = owner;
        return result;
    }
    CHORALE_INLINE Array slice(int axis, Integer first, Integer last) const {
        const Range range = range_of(first, last, shape[axis]);
        Array result = *this;
        result.data = data + range.first * stride[axis];
        result.shape[axis] = range.last - range.first;
        return result;
    }
};

// One axis with any distance between its elements: a column, or an axis backwards.
template <class T>
struct Strided {
    using Element = T;
    static constexpr int AXES = 1;
    T* data = nullptr;
    std::array<Integer, 1> shape{};
    std::array<Integer, 1> stride{};
    Owner owner;

    Integer size() const { return shape[0]; }
    CHORALE_INLINE T& operator()(Integer i) const {
        return data[at(i, shape[0]) * stride[0]];
    }
};

template <class T>
Strided<T> column(const Array<T, 2>& table, Integer first, Integer last, Integer index) {
    const Range range = range_of(first, last, table.shape[0]);
    return {table.data + range.first * table.stride[0] + at(index, table.shape[1]), {range.last - range.first}, {table.stride[0]}, table.owner};
}

template <class T>
Strided<T> reversed(const Array<T, 1>& array) {
    return {array.data + (array.shape[0] - 1), {array.shape[0]}, {-1}, array.owner};
}

template <class T, class... Extents>
Array<T, sizeof...(Extents)> empty(Extents... extents) {
    constexpr int N = sizeof...(Extents);
    Array<T, N> result;
    result.shape = {static_cast<Integer>(extents)...};
    Integer stride = 1;
    for (int axis = N; axis-- > 0;) {
        if (result.shape[axis] < 0) throw std::invalid_argument("negative dimensions are not allowed");
        result.stride[axis] = stride;
        stride *= result.shape[axis];
    }
    result.owner = Owner(allocate(static_cast<std::size_t>(stride) * sizeof(T)));
    result.data = reinterpret_cast<T*>(result.owner.get()->bytes);
    return result;
}

template <class T, std::size_t N>
Array<T, N> empty_of_shape(const std::array<Integer, N>& shape) {
    return std::apply([](auto... extents) { return empty<T>(extents...); }, shape);
}

}  // namespace chorale
