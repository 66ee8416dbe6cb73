// What kernels do with whole arrays: copies, sums, sorting, element by element.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <type_traits>

#include "array.hpp"

namespace chorale {

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

}  // namespace chorale
