// Calls that programs do not serve: MPI's own, counted with the reason, and refused where CHORALE_STRICT is set.
#pragma once

#include <mpi.h>

#include "elements.hpp"
#include "job.hpp"

namespace chorale::job {

// A call of `count` elements of `type`, which `library` makes.
template <typename Count, typename Library>
int counted(const char* collective, MPI_Comm comm, int root, Count count, MPI_Datatype type, const char* reason,
            Library library) {
    if (group_of(comm) == nullptr || count <= 0 || type == MPI_DATATYPE_NULL) return library();
    const Call call{collective, comm, root, size_t(count) * size_of(type), nullptr, -1, -1, reason};
    if (!job()->has_table()) reason = NO_TABLE;
    return may_fall_back(call, reason) ? library() : refuse(call, reason);
}

// As many elements as `counts` say for all ranks that a rank of `comm` hears from: of the other group if it has two.
template <typename Count>
size_t received(const Count* counts, MPI_Comm comm) {
    const Group* group = group_of(comm);
    if (group == nullptr || counts == nullptr) return 0;
    int ranks = group->ranks();
    if (group->is_inter()) PMPI_Comm_remote_size(comm, &ranks);
    size_t sum = 0;
    for (int rank = 0; rank < ranks; rank++) sum += counts[rank] > 0 ? size_t(counts[rank]) : 0;
    return sum;
}

}  // namespace chorale::job
