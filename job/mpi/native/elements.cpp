// Maps MPI's element types and operations to those of tables and of the engine, and copies elements.
#include <algorithm>
#include <climits>
#include <cstring>
#include <initializer_list>
#include <stdexcept>

#include "job.hpp"

namespace chorale::job {

namespace {

constexpr const char *MIXED = "mixed", *OTHER = "other";

using T = MPI_Datatype;

// A complex number is treated as two floats, so that only sums are supported.
Element floating(T type, bool is_complex) {
    const size_t part = size_of(type) / (is_complex ? 2 : 1);
    if (type == MPI_LONG_DOUBLE || type == MPI_C_LONG_DOUBLE_COMPLEX)
        return part == sizeof(long double) ? Element{is_complex ? "complex256" : "float128", CHORALE_FLOAT128, is_complex}
                                           : Element{nullptr, -1};
    if (part == 4) return {is_complex ? "complex64" : "float32", CHORALE_FLOAT32, is_complex};
    return part == 8 ? Element{is_complex ? "complex128" : "float64", CHORALE_FLOAT64, is_complex} : Element{nullptr, -1};
}

Element integer(T type, bool has_sign) {
    switch (size_of(type)) {
        case 1: return has_sign ? Element{"int8", CHORALE_INT8} : Element{"uint8", CHORALE_UINT8};
        case 2: return has_sign ? Element{"int16", CHORALE_INT16} : Element{"uint16", CHORALE_UINT16};
        case 4: return has_sign ? Element{"int32", CHORALE_INT32} : Element{"uint32", CHORALE_UINT32};
        case 8: return has_sign ? Element{"int64", CHORALE_INT64} : Element{"uint64", CHORALE_UINT64};
        default: return {nullptr, -1};
    }
}

// In some MPIs, types of Fortran are MPI_DATATYPE_NULL, so a switch statement is not possible.
bool is_one_of(T type, std::initializer_list<T> types) {
    return std::find(types.begin(), types.end(), type) != types.end();
}

const char* both(const char* a, const char* b) {
    if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
    return std::strcmp(a, b) == 0 ? a : MIXED;
}

int combiner_of(MPI_Datatype type) {
    int integers, addresses, types, combiner = MPI_COMBINER_NAMED;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    return combiner;
}

const char* derived_signature(MPI_Datatype type) {
    int integers = 0, addresses = 0, types = 0, combiner = 0;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    std::vector<int> numbers(integers);
    std::vector<MPI_Aint> places(addresses);
    std::vector<MPI_Datatype> parts(types);
    PMPI_Type_get_contents(type, integers, addresses, types, numbers.data(), places.data(), parts.data());
    const char* name = nullptr;
    for (size_t i = 0; i < parts.size(); i++) {
        if (combiner != MPI_COMBINER_STRUCT || numbers.at(i + 1) > 0) name = both(name, signature_of(parts[i]));
        if (combiner_of(parts[i]) != MPI_COMBINER_NAMED) PMPI_Type_free(&parts[i]);
    }
    return name;
}

}  // namespace

Element element_of(MPI_Datatype type) {
    if (is_one_of(type, {MPI_FLOAT, MPI_DOUBLE, MPI_LONG_DOUBLE, MPI_REAL, MPI_DOUBLE_PRECISION, MPI_REAL4, MPI_REAL8}))
        return floating(type, false);
    if (is_one_of(type, {MPI_INT, MPI_LONG, MPI_SHORT, MPI_LONG_LONG, MPI_SIGNED_CHAR, MPI_INT8_T, MPI_INT16_T, MPI_INT32_T,
                         MPI_INT64_T, MPI_INTEGER, MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4, MPI_INTEGER8, MPI_AINT,
                         MPI_OFFSET, MPI_COUNT}))
        return integer(type, true);
    if (is_one_of(type, {MPI_UNSIGNED, MPI_UNSIGNED_LONG, MPI_UNSIGNED_SHORT, MPI_UNSIGNED_LONG_LONG, MPI_UNSIGNED_CHAR,
                         MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T}))
        return integer(type, false);
    if (is_one_of(type, {MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX, MPI_COMPLEX, MPI_DOUBLE_COMPLEX,
                         MPI_COMPLEX8, MPI_COMPLEX16, MPI_CXX_FLOAT_COMPLEX, MPI_CXX_DOUBLE_COMPLEX}))
        return floating(type, true);
    if (is_one_of(type, {MPI_C_BOOL, MPI_CXX_BOOL}) && size_of(type) == 1) return {"bool", CHORALE_UINT8};
    return {nullptr, -1};
}

int operation_of(MPI_Op operation, const Element& element) {
    const bool is_bool = element.name != nullptr && std::strcmp(element.name, "bool") == 0;
    if (is_bool) return operation == MPI_LOR ? CHORALE_MAX : operation == MPI_LAND ? CHORALE_MIN : -1;
    if (operation == MPI_SUM) return CHORALE_SUM;
    if (element.only_sums) return -1;
    if (operation == MPI_PROD) return CHORALE_PROD;
    if (operation == MPI_MIN) return CHORALE_MIN;
    return operation == MPI_MAX ? CHORALE_MAX : -1;
}

const char* signature_of(MPI_Datatype type) {
    if (const char* name = element_of(type).name) return name;
    if (type == MPI_CHAR) return "int8";
    if (type == MPI_BYTE) return "uint8";
    if (size_of(type) == 0) return nullptr;
    return combiner_of(type) == MPI_COMBINER_NAMED ? OTHER : derived_signature(type);
}

bool is_dense(MPI_Datatype type) {
    if (element_of(type).name != nullptr || type == MPI_CHAR || type == MPI_BYTE) return true;
    MPI_Aint lower = 0, extent = 0;
    PMPI_Type_get_extent(type, &lower, &extent);
    return combiner_of(type) == MPI_COMBINER_NAMED && lower == 0 && size_t(extent) == size_of(type);
}

size_t size_of(MPI_Datatype type) {
    MPI_Count size = 0;
    PMPI_Type_size_x(type, &size);
    return size > 0 ? size_t(size) : 0;
}

void copy(Direction direction, const Side& side, char* bytes, MPI_Comm comm) {
    const size_t element_bytes = size_of(side.type), size_bytes = side.count * element_bytes;
    if (size_bytes == 0) return;
    if (is_dense(side.type)) {
        std::memcpy(direction == PACK ? bytes : side.at, direction == PACK ? side.at : bytes, size_bytes);
        return;
    }
    if (element_bytes > INT_MAX) throw std::runtime_error("one element of a derived type has more than 2 GiB");
    MPI_Aint lower = 0, extent = 0;
    PMPI_Type_get_extent(side.type, &lower, &extent);
    const size_t most = INT_MAX / element_bytes;  // MPI_Pack and MPI_Unpack count with int
    for (size_t from = 0; from < side.count; from += most) {
        const int count = int(std::min(most, side.count - from)), size = int(count * element_bytes);
        char *const at = static_cast<char*>(side.at) + MPI_Aint(from) * extent, *const packed = bytes + from * element_bytes;
        int position = 0;
        if (direction == PACK) PMPI_Pack(at, count, side.type, packed, size, &position, comm);
        else PMPI_Unpack(packed, size, &position, at, count, side.type, comm);
    }
}

}  // namespace chorale::job
