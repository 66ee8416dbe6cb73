// How Python calls a kernel: arguments and results as slots of 64 bits, errors as a number and a text.
#pragma once

#include <cmath>
#include <cstring>
#include <exception>

#include "array.hpp"
#include "numbers.hpp"
#include "operations.hpp"

#define CHORALE_EXPORT extern "C" __attribute__((visibility("default")))

namespace chorale {

using Slots = const Integer*;
using Results = Integer*;

inline void take(Slots& in, Integer& value) { value = *in++; }
inline void take(Slots& in, Word& value) { value = static_cast<Word>(*in++); }
inline void take(Slots& in, bool& value) { value = *in++ != 0; }
inline void take(Slots& in, double& value) { std::memcpy(&value, in++, sizeof(double)); }

template <class T, int N>
void take(Slots& in, Array<T, N>& array) {
    array.data = reinterpret_cast<T*>(*in++);
    for (Integer& extent : array.shape) extent = *in++;
    for (Integer& stride : array.stride) stride = *in++;
}

inline void give(Results& out, Integer value) { *out++ = value; }
inline void give(Results& out, Word value) { *out++ = static_cast<Integer>(value); }
inline void give(Results& out, bool value) { *out++ = value; }
inline void give(Results& out, double value) { std::memcpy(out++, &value, sizeof(double)); }

// The caller becomes one more owner. What belongs to it already, and what has gaps, is copied.
template <class T, int N>
void give(Results& out, const Array<T, N>& array) {
    Integer stride = 1;
    bool is_dense = array.owner.get() != nullptr;
    for (int axis = N; axis-- > 0; stride *= array.shape[axis]) is_dense = is_dense && array.stride[axis] == stride;
    if (!is_dense) {
        give(out, copy(array));
        return;
    }
    ++array.owner.get()->owners;
    *out++ = reinterpret_cast<Integer>(array.owner.get());
    *out++ = reinterpret_cast<Integer>(array.data);
    for (Integer extent : array.shape) *out++ = extent;
}

template <class... Types>
void give(Results& out, const std::tuple<Types...>& values) {
    std::apply([&out](const auto&... value) { (give(out, value), ...); }, values);
}

enum Outcome : int { FINE = 0, REFUSED = 1, NO_MEMORY = 2, OUT_OF_BOUNDS = 3 };

// Why the last call of this thread was refused.
inline char* message() {
    static thread_local char text[256];
    return text;
}

inline void note(const std::exception& error) { std::strncpy(message(), error.what(), 255); }

template <class Function>
int guarded(Function function) noexcept {
    try {
        function();
        return FINE;
    } catch (const std::bad_alloc& error) {
        note(error);
        return NO_MEMORY;
    } catch (const std::out_of_range& error) {
        note(error);
        return OUT_OF_BOUNDS;
    } catch (const std::exception& error) {
        note(error);
        return REFUSED;
    }
}

}  // namespace chorale
