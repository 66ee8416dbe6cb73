// Conversions between Python and kernels: arrays are passed without copies, and NamedTuples become structs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include "arrays.hpp"

namespace nanobind::detail {

// Accepts only arrays of exactly this type, without conversion, so that callers see what a kernel writes.
template <class View, class T, int N>
struct view_caster {
    using Tensor = ndarray<T, ndim<N>, device::cpu>;
    using Named = make_caster<ndarray<numpy, T, ndim<N>>>;
    NB_TYPE_CASTER(View, Named::Name)

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
        make_caster<Tensor> caster;
        if (!caster.from_python(source, flags & ~cast_flags::convert, cleanup)) return false;
        const Tensor& tensor = caster.value;
        if (tensor.size() > 0 && tensor.shape(N - 1) > 1 && tensor.stride(N - 1) != 1) return false;
        std::array<chorale::Int, N> shape, stride;
        for (int axis = 0; axis < N; ++axis) {
            shape[axis] = static_cast<chorale::Int>(tensor.shape(axis));
            stride[axis] = tensor.stride(axis);
        }
        value = View(chorale::Span<T, N>(tensor.data(), shape, stride));
        return true;
    }
};

template <class T, int N>
struct type_caster<chorale::Span<T, N>> : view_caster<chorale::Span<T, N>, T, N> {};

template <class T, int N>
struct type_caster<chorale::Array<T, N>> : view_caster<chorale::Array<T, N>, T, N> {
    static handle from_cpp(const chorale::Array<T, N>& array, rv_policy, cleanup_list* cleanup) noexcept {
        using Element = std::remove_const_t<T>;
        std::array<std::size_t, N> shape;
        for (int axis = 0; axis < N; ++axis) shape[axis] = static_cast<std::size_t>(array.shape[axis]);
        auto* owner = new std::shared_ptr<void>(array.owner);
        capsule keeper(owner, [](void* kept) noexcept { delete static_cast<std::shared_ptr<void>*>(kept); });
        ndarray<numpy, Element> result(const_cast<Element*>(array.data()), N, shape.data(), keeper);
        return make_caster<ndarray<numpy, Element>>::from_cpp(result, rv_policy::reference, cleanup);
    }
};

// Converts a tuple to a struct whose `fields()` returns its members, and such a struct to a tuple.
template <class Record>
struct type_caster<Record, enable_if_t<(std::tuple_size_v<decltype(std::declval<Record&>().fields())> > 0)>> {
    NB_TYPE_CASTER(Record, const_name("tuple"))

    bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
        return std::apply(
            [&](auto&... fields) {
                if (!PyTuple_Check(source.ptr()) || PyTuple_Size(source.ptr()) != sizeof...(fields)) return false;
                Py_ssize_t index = 0;
                return (load(fields, PyTuple_GetItem(source.ptr(), index++), flags, cleanup) && ...);
            },
            value.fields());
    }
    static handle from_cpp(Record record, rv_policy policy, cleanup_list* cleanup) noexcept {
        return std::apply(
            [&](auto&... fields) {
                const std::tuple<std::decay_t<decltype(fields)>...> values(fields...);
                return make_caster<decltype(values)>::from_cpp(values, policy, cleanup);
            },
            record.fields());
    }

private:
    template <class Field>
    static bool load(Field& field, handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
        make_caster<Field> caster;
        if (!caster.from_python(source, flags, cleanup)) return false;
        field = caster.operator cast_t<Field>();
        return true;
    }
};

}  // namespace nanobind::detail

namespace chorale {

// Releases the GIL while a kernel runs.
template <class Function>
void define(nanobind::module_& module, const char* name, Function* function) {
    module.def(name, function, nanobind::call_guard<nanobind::gil_scoped_release>());
}

}  // namespace chorale
