// Collectives from C++, with MPI's C++ bindings where a header still has them; results are checked.
#include <mpi.h>

#include <algorithm>
#include <complex>
#include <cstdio>
#include <initializer_list>
#include <type_traits>
#include <vector>

template <class T>
static T combined(MPI_Op operation, T a, T b) {
    if constexpr (std::is_arithmetic_v<T>) {
        if (operation == MPI_PROD) return T(1u * a * b);
        if (operation == MPI_MIN || operation == MPI_LAND) return std::min(a, b);
        if (operation == MPI_MAX || operation == MPI_LOR) return std::max(a, b);
    }
    return T(a + b);
}

// Whether allreduces of `type` are right, also of the largest unsigned numbers: MPICH 4.0 compares these as signed ones,
// and their sums saturate in Open MPI 4.1.
template <class T>
static bool is_right_for(MPI_Datatype type, std::initializer_list<MPI_Op> operations = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX}) {
    int ranks = 0, rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const auto value = [&](int i, int of) { return type == MPI_C_BOOL ? T(i % 5 > of) : T(T(i % 5) - T(of)); };
    bool is_right = true;
    for (const MPI_Op operation : operations) {
        std::vector<T> in(100), out(100), expected(100);
        for (int i = 0; i < 100; i++) {
            in[i] = value(i, rank), expected[i] = value(i, 0);
            for (int of = 1; of < ranks; of++) expected[i] = combined(operation, expected[i], value(i, of));
        }
        MPI_Allreduce(in.data(), out.data(), 100, type, operation, MPI_COMM_WORLD);
        if (out == expected) continue;
        is_right = false;
        std::fprintf(stderr, "rank %d: an element of %zu bytes is wrong\n", rank, sizeof(T));
    }
    return is_right;
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const auto total = float(ranks * (ranks + 1) / 2);
    std::vector<float> in(1024, float(rank + 1)), out(1024);
    MPI_Allreduce(in.data(), out.data(), 1024, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    bool is_right = out.front() == total && out.back() == total;
    std::vector<std::complex<float>> both(512, {float(rank + 1), 1});
    MPI_Allreduce(MPI_IN_PLACE, both.data(), 512, MPI_C_FLOAT_COMPLEX, MPI_SUM, MPI_COMM_WORLD);
    is_right = is_right && both[511] == std::complex<float>(total, float(ranks));
    MPI_Bcast(in.data(), 1024, MPI_FLOAT, 1, MPI_COMM_WORLD);
    is_right = is_right && in[7] == 2;
    is_right = is_right_for<signed char>(MPI_SIGNED_CHAR) && is_right;
    is_right = is_right_for<short>(MPI_SHORT) && is_right;
    is_right = is_right_for<unsigned short>(MPI_UNSIGNED_SHORT) && is_right;
    is_right = is_right_for<unsigned>(MPI_UNSIGNED) && is_right;
    is_right = is_right_for<unsigned long long>(MPI_UNSIGNED_LONG_LONG) && is_right;
    is_right = is_right_for<long double>(MPI_LONG_DOUBLE) && is_right;
    is_right = is_right_for<std::complex<long double>>(MPI_C_LONG_DOUBLE_COMPLEX, {MPI_SUM}) && is_right;
    is_right = is_right_for<unsigned char>(MPI_C_BOOL, {MPI_LOR, MPI_LAND}) && is_right;
#ifdef PENDING
    MPI_Request request;
    MPI_Iallreduce(in.data(), out.data(), 1024, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
#if MPI_VERSION >= 4 || (defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
    MPI_Allreduce_init(in.data(), out.data(), 1024, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
#endif
    is_right = is_right && out[3] == 2;
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Allreduce(in.data(), out.data(), 1024, MPI_FLOAT, MPI_SUM, half);
    is_right = is_right && out[9] == 4;
    MPI_Comm_free(&half);
#endif
    if (!is_right) std::fprintf(stderr, "rank %d: a result is wrong\n", rank);
    MPI_Finalize();
    return is_right ? 0 : 1;
}
