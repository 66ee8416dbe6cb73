/* An ordinary MPI program that times one collective at each size, as the OSU benchmarks do, and checks every result.
 * Usage: collective_times COLLECTIVE REPEATS SIZE_BYTES...
 *
 * SIZE_BYTES is the size of the complete vector of floats; the root is rank 0. For each size, rank 0 prints
 * `times SIZE_BYTES` and the seconds of each repeat on the slowest rank. Exit code 1 after a wrong result. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UP 2

static int rank, ranks;

/* Small integers, so that sums do not depend on the order of additions. */
static float value(int of, int i) { return (float)((of + 1) * (i % 7 + 1)); }

static float sum(int i) { return (float)(ranks * (ranks + 1) / 2 * (i % 7 + 1)); }

static void call(const char* name, float* in, float* out, int count) {
    int shard = count / ranks;
    if (!strcmp(name, "allreduce")) MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (!strcmp(name, "reduce")) MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!strcmp(name, "broadcast")) MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    if (!strcmp(name, "allgather")) MPI_Allgather(in, shard, MPI_FLOAT, out, shard, MPI_FLOAT, MPI_COMM_WORLD);
    if (!strcmp(name, "reduce_scatter"))
        MPI_Reduce_scatter_block(in, out, shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (!strcmp(name, "alltoall")) MPI_Alltoall(in, shard, MPI_FLOAT, out, shard, MPI_FLOAT, MPI_COMM_WORLD);
}

static float wanted(const char* name, int i, int count) {
    int shard = count / ranks;
    if (!strcmp(name, "broadcast")) return value(0, i);
    if (!strcmp(name, "allgather")) return value(i / shard, i % shard);
    if (!strcmp(name, "reduce_scatter")) return sum(rank * shard + i);
    if (!strcmp(name, "alltoall")) return value(i / shard, rank * shard + i % shard);
    return sum(i);
}

static int wrong_results(const char* name, const float* out, int count) {
    int results = !strcmp(name, "reduce_scatter") ? count / ranks : !strcmp(name, "reduce") && rank != 0 ? 0 : count;
    for (int i = 0; i < results; i++)
        if (out[i] != wanted(name, i, count)) return 1;
    return 0;
}

static int measure(const char* name, int size_bytes, int repeats) {
    int count = size_bytes / (int)sizeof(float), wrong = 0;
    float *in = malloc(size_bytes), *out = malloc(size_bytes);
    double *own = calloc(repeats, sizeof *own), *slowest = calloc(repeats, sizeof *slowest);
    for (int i = 0; i < count; i++) in[i] = value(rank, i);
    for (int k = -WARM_UP; k < repeats; k++) {
        for (int i = 0; i < count; i++) out[i] = rank == 0 ? value(0, i) : -1;
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        call(name, in, out, count);
        if (k >= 0) own[k] = MPI_Wtime() - start;
        wrong |= wrong_results(name, out, count);
    }
    PMPI_Reduce(own, slowest, repeats, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    PMPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("times %d", size_bytes);
        for (int k = 0; k < repeats; k++) printf(" %.9f", slowest[k]);
        printf("\n");
        if (wrong) printf("wrong %d\n", size_bytes);
        fflush(stdout);
    }
    free(in), free(out), free(own), free(slowest);
    return wrong;
}

int main(int argc, char** argv) {
    int wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 3; i < argc; i++) wrong |= measure(argv[1], atoi(argv[i]), atoi(argv[2]));
    MPI_Finalize();
    return wrong;
}
