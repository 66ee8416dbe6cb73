// Collectives from C++, with MPI's C++ bindings where a header still has them; results are checked.
#include <mpi.h>

#include <complex>
#include <cstdio>
#include <vector>

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
