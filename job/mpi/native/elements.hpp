// What MPI's types of elements and operations are called in tables, and in the engine.
#pragma once

#include <mpi.h>

#include <cstddef>

namespace chorale::job {

// name: in tables, null for a type that programs do not have; type: the engine's; only_sums: of
// complex numbers; only_wraps: unsigned ones, of which there are sums and products
struct Element {
    const char* name;
    int type;
    bool only_sums = false, only_wraps = false;
};

Element element_of(MPI_Datatype type);

// The engine's operation, -1 for one that programs do not have.
int operation_of(MPI_Op operation, const Element& element);

// The name of the elements that `type` consists of, which depends on its signature only, so that ranks with different
// layouts agree; "mixed" for more than one, "other" for what tables have no name for. Null for a type of no bytes.
const char* signature_of(MPI_Datatype type);

// Whether its elements lie side by side, as those of a vector do.
bool is_dense(MPI_Datatype type);

size_t size_of(MPI_Datatype type);

}  // namespace chorale::job
