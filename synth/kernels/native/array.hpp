// Arrays of kernels: views with shared ownership, and the few functions of NumPy that kernels use.
//
// The last axis of an Array is contiguous. An array that the caller of a kernel owns has no storage of its own here. A
// kernel runs in one thread, so that counting the owners of a storage needs no atomic operations.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <type_traits>
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

// Calls function(element) for every element, in the order of C.
template <class View, class Function>
CHORALE_INLINE void each(const View& view, Function function) {
    if constexpr (View::AXES == 1) {
        const Integer count = view.shape[0], step = view.stride[0];
        for (Integer i = 0; i < count; ++i) function(view.data[i * step]);
    } else {
        for (Integer i = 0; i < view.shape[0]; ++i) each(view.row(i), function);
    }
}

// Calls function(first, second) for every pair of elements at equal indices.
template <class First, class Second, class Function>
CHORALE_INLINE void each_pair(const First& first, const Second& second, Function function) {
    static_assert(First::AXES == Second::AXES);
    if (first.shape != second.shape) throw std::invalid_argument("arrays have different shapes");
    if constexpr (First::AXES == 1) {
        const Integer count = first.shape[0];
        for (Integer i = 0; i < count; ++i) function(first.data[i * first.stride[0]], second.data[i * second.stride[0]]);
    } else {
        for (Integer i = 0; i < first.shape[0]; ++i) each_pair(first.row(i), second.row(i), function);
    }
}

template <class T, class... Extents>
Array<T, sizeof...(Extents)> full(T value, Extents... extents) {
    auto result = empty<T>(extents...);
    std::fill_n(result.data, result.size(), value);
    return result;
}

template <class View>
auto copy(const View& view) {
    auto result = empty_of_shape<typename View::Element>(view.shape);
    each_pair(result, view, [](auto& to, auto from) { to = from; });
    return result;
}

template <class View, class T>
CHORALE_INLINE void fill(const View& view, T value) {
    each(view, [value](auto& element) { element = static_cast<typename View::Element>(value); });
}

// Ranges that overlap are copied as if through a copy.
template <class To, class From>
CHORALE_INLINE void assign(const To& to, const From& from) {
    using T = typename To::Element;
    if constexpr (To::AXES == 1 && std::is_same_v<T, typename From::Element>) {
        if (to.shape != from.shape) throw std::invalid_argument("arrays have different shapes");
        if (to.stride[0] == 1 && from.stride[0] == 1) {
            if (to.shape[0] > 0) std::memmove(to.data, from.data, static_cast<std::size_t>(to.shape[0]) * sizeof(T));
            return;
        }
        const auto copied = copy(from);
        each_pair(to, copied, [](T& element, T value) { element = value; });
    } else {
        const auto copied = copy(from);
        each_pair(to, copied, [](T& element, auto value) { element = static_cast<T>(value); });
    }
}

template <class Result, class First, class Second, class Function>
auto combined(const First& first, const Second& second, Function function) {
    auto result = empty_of_shape<Result>(first.shape);
    Result* to = result.data;
    each_pair(first, second, [&to, function](auto a, auto b) { *to++ = function(a, b); });
    return result;
}

template <class Result, class View, class Function>
auto mapped(const View& view, Function function) {
    auto result = empty_of_shape<Result>(view.shape);
    each_pair(result, view, [function](Result& to, auto from) { to = function(from); });
    return result;
}

template <class View, class Value, class Function>
void update(const View& view, Value value, Function function) {
    using T = typename View::Element;
    each(view, [value, function](T& element) { element = static_cast<T>(function(element, value)); });
}

template <class View, class Other, class Function>
void update_each(const View& view, const Other& other, Function function) {
    using T = typename View::Element;
    const auto copied = copy(other);
    each_pair(view, copied, [function](T& element, auto value) { element = static_cast<T>(function(element, value)); });
}

template <class Result, class View>
Result sum(const View& view) {
    Result total{};
    each(view, [&total](auto element) { total += static_cast<Result>(element); });
    return total;
}

template <class View>
auto least(const View& view) {
    if (view.size() == 0) throw std::invalid_argument("zero-size array has no minimum");
    auto result = view.data[0];
    each(view, [&result](auto element) { result = element < result ? element : result; });
    return result;
}

template <class View>
auto largest(const View& view) {
    if (view.size() == 0) throw std::invalid_argument("zero-size array has no maximum");
    auto result = view.data[0];
    each(view, [&result](auto element) { result = element > result ? element : result; });
    return result;
}

template <class View>
bool any(const View& view) {
    bool result = false;
    each(view, [&result](auto element) { result = result || element != 0; });
    return result;
}

template <class T>
Array<Integer, 1> differences(const Array<T, 1>& array) {
    auto result = empty<Integer>(std::max<Integer>(array.shape[0] - 1, 0));
    for (Integer i = 0; i < result.shape[0]; ++i) result.data[i] = static_cast<Integer>(array.data[i + 1]) - array.data[i];
    return result;
}

template <class T>
Array<T, 1> running_sum(const Array<T, 1>& array) {
    auto result = empty<T>(array.shape[0]);
    T total{};
    for (Integer i = 0; i < array.shape[0]; ++i) result.data[i] = total = static_cast<T>(total + array.data[i]);
    return result;
}

inline Array<Integer, 1> arange(Integer count) {
    auto result = empty<Integer>(std::max<Integer>(count, 0));
    std::iota(result.data, result.data + result.shape[0], Integer{0});
    return result;
}

template <class T>
Array<T, 1> sorted(const Array<T, 1>& array) {
    auto result = copy(array);
    std::sort(result.data, result.data + result.shape[0]);
    return result;
}

template <class T>
void sort(const Array<T, 1>& array) {
    std::sort(array.data, array.data + array.shape[0]);
}

// Equal elements stay in their order.
template <class T>
Array<Integer, 1> sorting_order(const Array<T, 1>& array) {
    auto result = arange(array.shape[0]);
    std::stable_sort(result.data, result.data + result.shape[0], [&](Integer a, Integer b) { return array.data[a] < array.data[b]; });
    return result;
}

template <class T>
Array<Integer, 1> first_positions(const Array<T, 1>& array, const Array<Integer, 1>& values) {
    auto result = empty<Integer>(values.shape[0]);
    for (Integer i = 0; i < values.shape[0]; ++i)
        result.data[i] = std::lower_bound(array.data, array.data + array.shape[0], values.data[i]) - array.data;
    return result;
}

// Along the first axis.
template <class T, int N>
Array<T, N> joined(const Array<T, N>& first, const Array<T, N>& second) {
    auto shape = first.shape;
    shape[0] += second.shape[0];
    auto result = empty_of_shape<T>(shape);
    each_pair(result.slice(0, 0, first.shape[0]), first, [](T& to, T from) { to = from; });
    each_pair(result.slice(0, first.shape[0], END), second, [](T& to, T from) { to = from; });
    return result;
}

template <class T>
Array<T, 1> listed(std::initializer_list<T> values) {
    auto result = empty<T>(static_cast<Integer>(values.size()));
    std::copy(values.begin(), values.end(), result.data);
    return result;
}

template <class T>
Array<T, 1> chosen(const Array<T, 1>& array, const Array<bool, 1>& is_chosen) {
    auto result = empty<T>(sum<Integer>(is_chosen));
    Integer count = 0;
    for (Integer i = 0; i < array.shape[0]; ++i)
        if (is_chosen(i)) result.data[count++] = array.data[i];
    return result;
}

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
