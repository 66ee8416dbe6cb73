// Fortran's entry points for Open MPI, whose own ones call PMPI_... and would bypass the functions in collectives.cpp.
// Those of MPICH and its derivatives call MPI_..., except for initialization and finalization with `use mpi_f08`.
#include <mpi.h>

#if defined(OPEN_MPI)

#include <type_traits>
#include <utility>
#include <vector>

#include "entries.hpp"

#pragma GCC visibility push(default)
extern "C" {

// The addresses of these variables mean MPI_IN_PLACE and MPI_BOTTOM; compilers mangle names in one of four ways.
extern int mpi_fortran_in_place __attribute__((weak)), mpi_fortran_in_place_ __attribute__((weak)),
    mpi_fortran_in_place__ __attribute__((weak)), MPI_FORTRAN_IN_PLACE __attribute__((weak));
extern int mpi_fortran_bottom __attribute__((weak)), mpi_fortran_bottom_ __attribute__((weak)),
    mpi_fortran_bottom__ __attribute__((weak)), MPI_FORTRAN_BOTTOM __attribute__((weak));
}
#pragma GCC visibility pop

namespace {

void* place(void* at) {
    if (at == nullptr) return at;
    for (const int* mark : {&mpi_fortran_in_place, &mpi_fortran_in_place_, &mpi_fortran_in_place__, &MPI_FORTRAN_IN_PLACE})
        if (at == mark) return MPI_IN_PLACE;
    for (const int* mark : {&mpi_fortran_bottom, &mpi_fortran_bottom_, &mpi_fortran_bottom__, &MPI_FORTRAN_BOTTOM})
        if (at == mark) return MPI_BOTTOM;
    return at;
}

// Converts the pointer that Fortran passes to an argument of type `C` of a C function. The second parameter is the
// length of an array of types; 0 if MPI does not read the array.
template <typename C>
struct Argument {
    C value;
    Argument(void* at, int) {
        MPI_Fint* const number = static_cast<MPI_Fint*>(at);
        if constexpr (std::is_same_v<C, void*> || std::is_same_v<C, const void*>) value = place(at);
        else if constexpr (std::is_same_v<C, MPI_Datatype>) value = MPI_Type_f2c(*number);
        else if constexpr (std::is_same_v<C, MPI_Op>) value = MPI_Op_f2c(*number);
        else if constexpr (std::is_same_v<C, MPI_Comm>) value = MPI_Comm_f2c(*number);
        else if constexpr (std::is_same_v<C, MPI_Info>) value = MPI_Info_f2c(*number);
        else if constexpr (std::is_pointer_v<C>) value = number;
        else value = *number;
    }
    operator C() const { return value; }
};

// A request, which is converted to Fortran's number and stored for the caller after the call.
template <>
struct Argument<MPI_Request*> {
    MPI_Fint* number;
    MPI_Request request = MPI_REQUEST_NULL;
    Argument(void* at, int) : number(static_cast<MPI_Fint*>(at)) {}
    ~Argument() { *number = PMPI_Request_c2f(request); }
    operator MPI_Request*() { return &request; }
};

template <>
struct Argument<const MPI_Datatype*> {
    std::vector<MPI_Datatype> types;
    Argument(void* at, int count) {
        for (int i = 0; i < count; i++) types.push_back(MPI_Type_f2c(static_cast<MPI_Fint*>(at)[i]));
    }
    operator const MPI_Datatype*() const { return types.data(); }
};

// Calls `function` with converted arguments, which Fortran passes by address.
template <typename... C, size_t... I>
int called(int (*function)(C...), void* const* at, std::index_sequence<I...>) {
    int ranks = 0;
    if constexpr ((std::is_same_v<C, const MPI_Datatype*> || ...))
        (void(std::is_same_v<C, MPI_Comm> && PMPI_Comm_size(MPI_Comm_f2c(*static_cast<MPI_Fint*>(at[I])), &ranks)), ...);
    const bool is_in_place = place(at[0]) == MPI_IN_PLACE;  // then MPI ignores the types of the input
    return function(Argument<C>(at[I], is_in_place && I < 4 ? 0 : ranks)...);
}

template <typename... C, typename... Pointers>
int called(int (*function)(C...), Pointers... pointers) {
    static_assert(sizeof...(C) == sizeof...(Pointers));
    void* const at[] = {pointers...};
    return called(function, at, std::index_sequence_for<C...>());
}

}  // namespace

#define POINTERS_0
#define POINTERS_2 void *a, void *b,
#define POINTERS_5 POINTERS_2 void *c, void *d, void *e,
#define POINTERS_6 POINTERS_5 void *f,
#define POINTERS_7 POINTERS_6 void *g,
#define POINTERS_8 POINTERS_7 void *h,
#define POINTERS_9 POINTERS_8 void *i,
#define NAMES_5 a, b, c, d, e
#define NAMES_6 NAMES_5, f
#define NAMES_7 NAMES_6, g
#define NAMES_8 NAMES_7, h
#define NAMES_9 NAMES_8, i

// Defines a subroutine under all its names. mpi_f08 calls ompi_..._f, where `ierr` is optional.
#define SUBROUTINE(lower, UPPER, pointers, call)                                                                       \
    void ompi_##lower##_f(LIST pointers MPI_Fint * ierr) {                                                             \
        const int status = call;                                                                                       \
        if (ierr != nullptr) *ierr = status;                                                                           \
    }                                                                                                                  \
    void mpi_##lower(LIST pointers MPI_Fint*) __attribute__((alias("ompi_" #lower "_f")));                             \
    void mpi_##lower##_(LIST pointers MPI_Fint*) __attribute__((alias("ompi_" #lower "_f")));                          \
    void mpi_##lower##__(LIST pointers MPI_Fint*) __attribute__((alias("ompi_" #lower "_f")));                         \
    void MPI_##UPPER(LIST pointers MPI_Fint*) __attribute__((alias("ompi_" #lower "_f")));

#define FORTRAN(form, lower, Name, UPPER, count, ...)                                                                  \
    SUBROUTINE(lower, UPPER, (POINTERS_##count), called(MPI_##Name, NAMES_##count))                                    \
    SUBROUTINE(i##lower, I##UPPER, (POINTERS_##count void* request, ), called(MPI_I##lower, NAMES_##count, request))   \
    PERSISTENT(lower, Name, UPPER, count)

#if OMPI_MAJOR_VERSION >= 5
#define PERSISTENT(lower, Name, UPPER, count)                                                                          \
    SUBROUTINE(lower##_init, UPPER##_INIT, (POINTERS_##count void* info, void* request, ),                             \
               called(MPI_##Name##_init, NAMES_##count, info, request))
#else
#define PERSISTENT(...)
#endif

#pragma GCC visibility push(default)
extern "C" {
SUBROUTINE(init, INIT, (), MPI_Init(nullptr, nullptr))
SUBROUTINE(init_thread, INIT_THREAD, (POINTERS_2),
           MPI_Init_thread(nullptr, nullptr, *static_cast<int*>(a), static_cast<int*>(b)))
SUBROUTINE(finalize, FINALIZE, (), MPI_Finalize())
COLLECTIVES(FORTRAN, int, int, int, )
}
#pragma GCC visibility pop

#else

// Fortran's integers are ints here, because the standard ABI has no type for them. `ierr` is optional.
static void give(int* ierr, int status) {
    if (ierr != nullptr) *ierr = status;
}

#pragma GCC visibility push(default)
extern "C" {
void mpi_init_f08_(int* ierr) { give(ierr, MPI_Init(nullptr, nullptr)); }
void mpi_init_thread_f08_(const int* required, int* provided, int* ierr) {
    give(ierr, MPI_Init_thread(nullptr, nullptr, *required, provided));
}
void mpi_finalize_f08_(int* ierr) { give(ierr, MPI_Finalize()); }
}
#pragma GCC visibility pop

#endif
