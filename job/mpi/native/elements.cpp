#include "elements.hpp"

#include <cstring>
#include <vector>

#include "chorale_engine.h"

namespace chorale::job {

namespace {

constexpr const char *MIXED = "mixed", *OTHER = "other";

Element integer(size_t bytes) {
    return bytes == 4 ? Element{"int32", CHORALE_INT32} : Element{"int64", CHORALE_INT64};
}

const char* both(const char* a, const char* b) {
    if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
    return std::strcmp(a, b) == 0 ? a : MIXED;
}

struct Contents {
    std::vector<int> integers;
    std::vector<MPI_Datatype> types;
    int combiner;
};

// Its types must be given back by `release`.
Contents contents_of(MPI_Datatype type) {
    int integers = 0, addresses = 0, types = 0, combiner = 0;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    Contents contents{std::vector<int>(integers), std::vector<MPI_Datatype>(types), combiner};
    std::vector<MPI_Aint> places(addresses);
    if (combiner != MPI_COMBINER_NAMED)
        PMPI_Type_get_contents(type, integers, addresses, types, contents.integers.data(), places.data(),
                               contents.types.data());
    return contents;
}

int combiner_of(MPI_Datatype type) {
    int integers, addresses, types, combiner = MPI_COMBINER_NAMED;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    return combiner;
}

void release(MPI_Datatype type) {
    if (combiner_of(type) != MPI_COMBINER_NAMED) PMPI_Type_free(&type);
}

const char* derived_signature(MPI_Datatype type) {
    const Contents contents = contents_of(type);
    const char* name = nullptr;
    for (size_t i = 0; i < contents.types.size(); i++) {
        const bool has_blocks = contents.combiner != MPI_COMBINER_STRUCT || contents.integers.at(i + 1) > 0;
        if (has_blocks) name = both(name, signature_of(contents.types[i]));
        release(contents.types[i]);
    }
    return name;
}

}  // namespace

Element element_of(MPI_Datatype type) {
    if (type == MPI_FLOAT) return {"float32", CHORALE_FLOAT32};
    if (type == MPI_DOUBLE) return {"float64", CHORALE_FLOAT64};
    if (type == MPI_INT || type == MPI_INT32_T) return {"int32", CHORALE_INT32};
    if (type == MPI_INT64_T || type == MPI_LONG_LONG) return {"int64", CHORALE_INT64};
    if (type == MPI_LONG) return integer(sizeof(long));
    if (type == MPI_INT8_T || type == MPI_SIGNED_CHAR) return {"int8", CHORALE_INT8};
    if (type == MPI_UINT8_T || type == MPI_UNSIGNED_CHAR) return {"uint8", CHORALE_UINT8};
    return {nullptr, -1};
}

int operation_of(MPI_Op operation) {
    if (operation == MPI_SUM) return CHORALE_SUM;
    if (operation == MPI_MIN) return CHORALE_MIN;
    if (operation == MPI_MAX) return CHORALE_MAX;
    return operation == MPI_PROD ? CHORALE_PROD : -1;
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

}  // namespace chorale::job
