// The functions that programs in Fortran call under Open MPI, whose own ones call PMPI_... and pass by ours. Those of MPICH
// and its kin call MPI_... as programs in C do, but for the first and the last call of `use mpi_f08`.
#include <mpi.h>

#if defined(OPEN_MPI)

#include <vector>

#pragma GCC visibility push(default)
extern "C" {

// Where they lie means MPI_IN_PLACE and MPI_BOTTOM; compilers spell names in one of four ways.
extern int mpi_fortran_in_place __attribute__((weak)), mpi_fortran_in_place_ __attribute__((weak)),
    mpi_fortran_in_place__ __attribute__((weak)), MPI_FORTRAN_IN_PLACE __attribute__((weak));
extern int mpi_fortran_bottom __attribute__((weak)), mpi_fortran_bottom_ __attribute__((weak)),
    mpi_fortran_bottom__ __attribute__((weak)), MPI_FORTRAN_BOTTOM __attribute__((weak));

static void* place(void* at) {
    if (at == nullptr) return at;
    if (at == &mpi_fortran_in_place || at == &mpi_fortran_in_place_ || at == &mpi_fortran_in_place__ ||
        at == &MPI_FORTRAN_IN_PLACE)
        return MPI_IN_PLACE;
    if (at == &mpi_fortran_bottom || at == &mpi_fortran_bottom_ || at == &mpi_fortran_bottom__ ||
        at == &MPI_FORTRAN_BOTTOM)
        return MPI_BOTTOM;
    return at;
}

static MPI_Datatype type_of(const MPI_Fint* type) { return MPI_Type_f2c(*type); }
static MPI_Op op_of(const MPI_Fint* op) { return MPI_Op_f2c(*op); }
static MPI_Comm comm_of(const MPI_Fint* comm) { return MPI_Comm_f2c(*comm); }

// A request of a call: its number stands at the caller's place once the call is over.
struct Request {
    MPI_Fint* number;
    MPI_Request request = MPI_REQUEST_NULL;
    explicit Request(MPI_Fint* at) : number(at) {}
    ~Request() { *number = PMPI_Request_c2f(request); }
    operator MPI_Request*() { return &request; }
};

// The types of all ranks; none where `in` is MPI_IN_PLACE.
struct Types : std::vector<MPI_Datatype> {
    Types(void* in, const MPI_Fint* numbers, const MPI_Fint* comm) {
        int ranks = 0;
        if (place(in) == MPI_IN_PLACE || PMPI_Comm_size(comm_of(comm), &ranks) != MPI_SUCCESS) return;
        for (int rank = 0; rank < ranks; rank++) push_back(type_of(numbers + rank));
    }
};

// Defines a subroutine under all its names; ompi_..._f is what mpi_f08 calls. `ierr` may be left out there.
#define FORTRAN(lower, UPPER, parameters, arguments, call)                                                             \
    void ompi_##lower##_f parameters {                                                                                 \
        const int status = call;                                                                                       \
        if (ierr != nullptr) *ierr = status;                                                                           \
    }                                                                                                                  \
    void mpi_##lower parameters { ompi_##lower##_f arguments; }                                                        \
    void mpi_##lower##_ parameters { ompi_##lower##_f arguments; }                                                     \
    void mpi_##lower##__ parameters { ompi_##lower##_f arguments; }                                                    \
    void MPI_##UPPER parameters { ompi_##lower##_f arguments; }

using F = MPI_Fint;

FORTRAN(init, INIT, (F * ierr), (ierr), MPI_Init(nullptr, nullptr))
FORTRAN(init_thread, INIT_THREAD, (F * required, F* provided, F* ierr), (required, provided, ierr),
        MPI_Init_thread(nullptr, nullptr, *required, provided))
FORTRAN(finalize, FINALIZE, (F * ierr), (ierr), MPI_Finalize())
FORTRAN(allreduce, ALLREDUCE, (void* in, void* out, F* n, F* type, F* op, F* comm, F* ierr),
        (in, out, n, type, op, comm, ierr),
        MPI_Allreduce(place(in), place(out), *n, type_of(type), op_of(op), comm_of(comm)))
FORTRAN(reduce, REDUCE, (void* in, void* out, F* n, F* type, F* op, F* root, F* comm, F* ierr),
        (in, out, n, type, op, root, comm, ierr),
        MPI_Reduce(place(in), place(out), *n, type_of(type), op_of(op), *root, comm_of(comm)))
FORTRAN(reduce_scatter_block, REDUCE_SCATTER_BLOCK, (void* in, void* out, F* n, F* type, F* op, F* comm, F* ierr),
        (in, out, n, type, op, comm, ierr),
        MPI_Reduce_scatter_block(place(in), place(out), *n, type_of(type), op_of(op), comm_of(comm)))
FORTRAN(reduce_scatter, REDUCE_SCATTER, (void* in, void* out, F* n, F* type, F* op, F* comm, F* ierr),
        (in, out, n, type, op, comm, ierr),
        MPI_Reduce_scatter(place(in), place(out), n, type_of(type), op_of(op), comm_of(comm)))
FORTRAN(bcast, BCAST, (void* at, F* n, F* type, F* root, F* comm, F* ierr), (at, n, type, root, comm, ierr),
        MPI_Bcast(place(at), *n, type_of(type), *root, comm_of(comm)))
FORTRAN(allgather, ALLGATHER, (void* in, F* in_n, F* in_type, void* out, F* n, F* type, F* comm, F* ierr),
        (in, in_n, in_type, out, n, type, comm, ierr),
        MPI_Allgather(place(in), *in_n, type_of(in_type), place(out), *n, type_of(type), comm_of(comm)))
FORTRAN(alltoall, ALLTOALL, (void* in, F* in_n, F* in_type, void* out, F* n, F* type, F* comm, F* ierr),
        (in, in_n, in_type, out, n, type, comm, ierr),
        MPI_Alltoall(place(in), *in_n, type_of(in_type), place(out), *n, type_of(type), comm_of(comm)))
FORTRAN(allgatherv, ALLGATHERV,
        (void* in, F* in_n, F* in_type, void* out, F* n, F* at, F* type, F* comm, F* ierr),
        (in, in_n, in_type, out, n, at, type, comm, ierr),
        MPI_Allgatherv(place(in), *in_n, type_of(in_type), place(out), n, at, type_of(type), comm_of(comm)))
FORTRAN(alltoallv, ALLTOALLV,
        (void* in, F* in_n, F* in_at, F* in_type, void* out, F* n, F* at, F* type, F* comm, F* ierr),
        (in, in_n, in_at, in_type, out, n, at, type, comm, ierr),
        MPI_Alltoallv(place(in), in_n, in_at, type_of(in_type), place(out), n, at, type_of(type), comm_of(comm)))
FORTRAN(alltoallw, ALLTOALLW,
        (void* in, F* in_n, F* in_at, F* in_types, void* out, F* n, F* at, F* types, F* comm, F* ierr),
        (in, in_n, in_at, in_types, out, n, at, types, comm, ierr),
        MPI_Alltoallw(place(in), in_n, in_at, Types(in, in_types, comm).data(), place(out), n, at,
                      Types(nullptr, types, comm).data(), comm_of(comm)))
FORTRAN(iallreduce, IALLREDUCE, (void* in, void* out, F* n, F* type, F* op, F* comm, F* request, F* ierr),
        (in, out, n, type, op, comm, request, ierr),
        MPI_Iallreduce(place(in), place(out), *n, type_of(type), op_of(op), comm_of(comm), Request(request)))
FORTRAN(ireduce, IREDUCE, (void* in, void* out, F* n, F* type, F* op, F* root, F* comm, F* request, F* ierr),
        (in, out, n, type, op, root, comm, request, ierr),
        MPI_Ireduce(place(in), place(out), *n, type_of(type), op_of(op), *root, comm_of(comm), Request(request)))
FORTRAN(ibcast, IBCAST, (void* at, F* n, F* type, F* root, F* comm, F* request, F* ierr),
        (at, n, type, root, comm, request, ierr),
        MPI_Ibcast(place(at), *n, type_of(type), *root, comm_of(comm), Request(request)))
FORTRAN(ireduce_scatter_block, IREDUCE_SCATTER_BLOCK,
        (void* in, void* out, F* n, F* type, F* op, F* comm, F* request, F* ierr),
        (in, out, n, type, op, comm, request, ierr),
        MPI_Ireduce_scatter_block(place(in), place(out), *n, type_of(type), op_of(op), comm_of(comm),
                                  Request(request)))
FORTRAN(ireduce_scatter, IREDUCE_SCATTER, (void* in, void* out, F* n, F* type, F* op, F* comm, F* request, F* ierr),
        (in, out, n, type, op, comm, request, ierr),
        MPI_Ireduce_scatter(place(in), place(out), n, type_of(type), op_of(op), comm_of(comm), Request(request)))
FORTRAN(iallgather, IALLGATHER,
        (void* in, F* in_n, F* in_type, void* out, F* n, F* type, F* comm, F* request, F* ierr),
        (in, in_n, in_type, out, n, type, comm, request, ierr),
        MPI_Iallgather(place(in), *in_n, type_of(in_type), place(out), *n, type_of(type), comm_of(comm),
                       Request(request)))
FORTRAN(iallgatherv, IALLGATHERV,
        (void* in, F* in_n, F* in_type, void* out, F* n, F* at, F* type, F* comm, F* request, F* ierr),
        (in, in_n, in_type, out, n, at, type, comm, request, ierr),
        MPI_Iallgatherv(place(in), *in_n, type_of(in_type), place(out), n, at, type_of(type), comm_of(comm),
                        Request(request)))
FORTRAN(ialltoall, IALLTOALL, (void* in, F* in_n, F* in_type, void* out, F* n, F* type, F* comm, F* request, F* ierr),
        (in, in_n, in_type, out, n, type, comm, request, ierr),
        MPI_Ialltoall(place(in), *in_n, type_of(in_type), place(out), *n, type_of(type), comm_of(comm),
                      Request(request)))
FORTRAN(ialltoallv, IALLTOALLV,
        (void* in, F* in_n, F* in_at, F* in_type, void* out, F* n, F* at, F* type, F* comm, F* request, F* ierr),
        (in, in_n, in_at, in_type, out, n, at, type, comm, request, ierr),
        MPI_Ialltoallv(place(in), in_n, in_at, type_of(in_type), place(out), n, at, type_of(type), comm_of(comm),
                       Request(request)))
}
#pragma GCC visibility pop

#else

// An argument that may be left out.
static void give(MPI_Fint* ierr, int status) {
    if (ierr != nullptr) *ierr = status;
}

#pragma GCC visibility push(default)
extern "C" {
void mpi_init_f08_(MPI_Fint* ierr) { give(ierr, MPI_Init(nullptr, nullptr)); }
void mpi_init_thread_f08_(const MPI_Fint* required, MPI_Fint* provided, MPI_Fint* ierr) {
    give(ierr, MPI_Init_thread(nullptr, nullptr, *required, provided));
}
void mpi_finalize_f08_(MPI_Fint* ierr) { give(ierr, MPI_Finalize()); }
}
#pragma GCC visibility pop

#endif
