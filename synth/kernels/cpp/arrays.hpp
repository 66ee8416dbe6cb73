// Arrays for kernels. A `Span` refers to memory that it does not own; an `Array` shares ownership of its memory, as in
// NumPy.
//
// The last axis is contiguous. Indices are checked only if the extension is built with -DCHORALE_CHECK_BOUNDS.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace chorale {

using Int = std::int64_t;
using Word = std::uint64_t;
using Rank = std::int32_t;
using Hops = std::uint16_t;

template <class T, int N = 1>
class Span {
public:
    using Element = std::remove_const_t<T>;

    Span() = default;
    Span(T* data, const std::array<Int, N>& shape, const std::array<Int, N>& stride)
        : shape(shape), data_(data), stride_(stride) {}
    template <class Other, class = std::enable_if_t<std::is_same_v<const Other, T>>>
    Span(const Span<Other, N>& other) : shape(other.shape), data_(other.data()), stride_(other.stride()) {}

    T& operator[](Int i) const {
        static_assert(N == 1);
        check(i, 0);
        return data_[i];
    }
    T& operator()(Int i, Int j) const {
        static_assert(N == 2);
        check(i, 0);
        check(j, 1);
        return data_[i * stride_[0] + j];
    }
    Span<T, N - 1> row(Int i) const {
        static_assert(N > 1);
        check(i, 0);
        std::array<Int, N - 1> shape_of_row, stride_of_row;
        std::copy(shape.begin() + 1, shape.end(), shape_of_row.begin());
        std::copy(stride_.begin() + 1, stride_.end(), stride_of_row.begin());
        return {data_ + i * stride_[0], shape_of_row, stride_of_row};
    }
    // Entries `first` to `last - 1` of the first axis.
    Span part(Int first, Int last) const {
        if (first < last) {
            check(first, 0);
            check(last - 1, 0);
        }
        Span result = *this;
        result.data_ = data_ + first * stride_[0];
        result.shape[0] = last - first;
        return result;
    }
    Span first(Int count) const { return part(0, count); }
    Span from(Int first) const { return part(first, shape[0]); }

    Int size() const { return std::accumulate(shape.begin(), shape.end(), Int{1}, std::multiplies<Int>()); }
    T* data() const { return data_; }
    const std::array<Int, N>& stride() const { return stride_; }
    T* begin() const {
        static_assert(N == 1);
        return data_;
    }
    T* end() const { return begin() + shape[0]; }
    T& back() const { return (*this)[shape[0] - 1]; }

    std::array<Int, N> shape{};

protected:
    void check([[maybe_unused]] Int i, [[maybe_unused]] int axis) const {
#ifdef CHORALE_CHECK_BOUNDS
        if (i < 0 || i >= shape[axis])
            throw std::out_of_range("index " + std::to_string(i) + " in an axis of " + std::to_string(shape[axis]));
#endif
    }
    T* data_ = nullptr;
    std::array<Int, N> stride_{};
};

// Copies of an Array share its memory. An Array without an owner refers to an array of the caller.
template <class T, int N = 1>
class Array : public Span<T, N> {
public:
    Array() = default;
    Array(const Span<T, N>& span, std::shared_ptr<void> owner = {}) : Span<T, N>(span), owner(std::move(owner)) {}
    template <class Other, class = std::enable_if_t<std::is_same_v<const Other, T>>>
    Array(const Array<Other, N>& other) : Span<T, N>(other), owner(other.owner) {}
    Array(std::vector<T>&& values) {
        auto kept = std::make_shared<std::vector<T>>(std::move(values));
        static_cast<Span<T, N>&>(*this) = {kept->data(), {static_cast<Int>(kept->size())}, {1}};
        owner = std::move(kept);
    }
    // Returns the first `count` entries of the first axis, in the same memory.
    Array prefix(Int count) const { return {this->first(count), owner}; }

    std::shared_ptr<void> owner;
};

template <class T, class... Extents>
Array<T, sizeof...(Extents)> allocated(bool cleared, Extents... extents) {
    constexpr int N = sizeof...(Extents);
    const std::array<Int, N> shape = {static_cast<Int>(extents)...};
    std::array<Int, N> stride;
    Int size = 1;
    for (int axis = N; axis-- > 0; size *= shape[axis]) {
        if (shape[axis] < 0) throw std::invalid_argument("negative dimensions are not allowed");
        stride[axis] = size;
    }
    const auto bytes = static_cast<std::size_t>(size) * sizeof(T) + 1;
    void* memory = cleared ? std::calloc(bytes, 1) : std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return {{static_cast<T*>(memory), shape, stride}, std::shared_ptr<void>(memory, std::free)};
}

template <class T, class... Extents>
auto empty(Extents... extents) {
    return allocated<T>(false, extents...);
}

template <class T, class... Extents>
auto zeros(Extents... extents) {
    return allocated<T>(true, extents...);
}

template <class T, class... Extents>
auto full(T value, Extents... extents) {
    auto result = empty<T>(extents...);
    std::fill_n(result.data(), result.size(), value);
    return result;
}

template <class T, int N>
void fill(const Span<T, N>& span, std::common_type_t<T> value) {
    if constexpr (N == 1) {
        std::fill(span.begin(), span.end(), value);
    } else {
        for (Int i = 0; i < span.shape[0]; ++i) fill(span.row(i), value);
    }
}
template <class T, int N>
void fill(const Array<T, N>& array, std::common_type_t<T> value) {
    fill(static_cast<const Span<T, N>&>(array), value);
}

// Copies between rows of equal length, which must be identical or not overlap.
template <class To, class From>
void assign(const To& to, const From& from) {
    std::copy(from.begin(), from.end(), to.begin());
}

template <class Values>
auto copy(const Values& values) {
    auto result = empty<typename Values::Element>(values.size());
    assign(result, values);
    return result;
}

template <class Values>
auto sum(const Values& values) {
    using Sum = std::conditional_t<std::is_floating_point_v<typename Values::Element>, double, Int>;
    return std::accumulate(values.begin(), values.end(), Sum{});
}

template <class Values>
auto smallest(const Values& values) {
    return *std::min_element(values.begin(), values.end());
}

template <class Values>
auto largest(const Values& values) {
    return *std::max_element(values.begin(), values.end());
}

template <class Values>
bool any(const Values& values) {
    return std::any_of(values.begin(), values.end(), [](auto value) { return value != 0; });
}

// Replaces entries by cumulative sums: counts by row become ends of rows.
template <class Values>
void add_up(const Values& values) {
    std::partial_sum(values.begin(), values.end(), values.begin());
}

inline Array<Int> numbered(Int count) {
    auto result = empty<Int>(count);
    std::iota(result.begin(), result.end(), Int{0});
    return result;
}

// Returns the indices that sort the values (stable).
template <class Values>
Array<Int> sorting_order(const Values& values) {
    auto result = numbered(values.size());
    std::stable_sort(result.begin(), result.end(), [&](Int a, Int b) { return values[a] < values[b]; });
    return result;
}

// Calls function(bit) for each set bit, lowest first.
template <class Function>
void each_bit(Word word, Function function) {
    for (; word != 0; word &= word - 1) function(static_cast<Int>(__builtin_ctzll(word)));
}

// Division rounded down, as in Python; the divisor must be positive.
inline Int floor_div(Int a, Int b) { return a / b - (a % b < 0); }

}  // namespace chorale
