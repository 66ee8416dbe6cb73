/* Calls collectives at sizes from 4 bytes on and checks all results; each allreduce REPEATS times.
 * Usage: mpi_program MOST_BYTES REPEATS [STALLING_RANK] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks, wrong;

static void expect(int holds, const char* what, int count) {
    if (holds) return;
    wrong = 1;
    fprintf(stderr, "rank %d: %s of %d elements is wrong\n", rank, what, count);
}

static float value(int of, int i) { return (float)((of + 1) * (i % 7 + 1)); }

static float sum(int i) { return (float)(ranks * (ranks + 1) / 2 * (i % 7 + 1)); }

static void allreduce(float* in, float* out, int n, int repeats) {
    for (int i = 0; i < n; i++) in[i] = value(rank, i);
    for (int k = 0; k < repeats; k++) MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(out[i] == sum(i), "allreduce", n);
    MPI_Allreduce(MPI_IN_PLACE, in, n, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(in[i] == value(ranks - 1, i), "allreduce in place", n);
}

static void gathers(float* in, float* out, int n) {
    int total = n * ranks;
    for (int i = 0; i < n; i++) in[i] = value(rank, i);
    memset(out, 0, sizeof *out * total);
    MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    for (int i = 0; i < total; i++) expect(out[i] == value(i / n, i % n), "allgather", n);
    memset(out, 0, sizeof *out * total);
    memcpy(out + rank * n, in, sizeof *in * n);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    for (int i = 0; i < total; i++) expect(out[i] == value(i / n, i % n), "allgather in place", n);
    for (int i = 0; i < total; i++) in[i] = value(rank, i);
    MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    for (int i = 0; i < total; i++) expect(out[i] == value(i / n, rank * n + i % n), "alltoall", n);
    for (int i = 0; i < total; i++) out[i] = value(rank, i);
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    for (int i = 0; i < total; i++) expect(out[i] == value(i / n, rank * n + i % n), "alltoall in place", n);
}

/* Rank 0 takes every second element, the others have them side by side: the signatures are the same. */
static void layouts(float* in, float* out, int n) {
    MPI_Datatype every_second;
    MPI_Type_vector(n, 1, 2, MPI_FLOAT, &every_second);
    MPI_Type_commit(&every_second);
    int step = rank == 0 ? 2 : 1;
    for (int i = 0; i < n; i++) in[i * step] = value(rank, i);
    MPI_Allgather(in, rank == 0 ? 1 : n, rank == 0 ? every_second : MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    for (int i = 0; i < n * ranks; i++) expect(out[i] == value(i / n, i % n), "allgather of a layout", n);
    for (int i = 0; i < n; i++) in[i * step] = value(rank, i);
    MPI_Bcast(in, rank == 0 ? 1 : n, rank == 0 ? every_second : MPI_FLOAT, 1, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(in[i * step] == value(1, i), "bcast of a layout", n);
    MPI_Type_free(&every_second);
}

static void scatters(float* in, float* out, int n) {
    int* counts = malloc(sizeof *counts * ranks);
    for (int r = 0; r < ranks; r++) counts[r] = n;
    for (int i = 0; i < n * ranks; i++) in[i] = value(rank, i);
    MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(out[i] == sum(rank * n + i), "reduce_scatter_block", n);
    MPI_Reduce_scatter(MPI_IN_PLACE, in, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(in[i] == sum(rank * n + i), "reduce_scatter in place", n);
    free(counts);
}

static void rooted(float* in, float* out, int n) {
    for (int i = 0; i < n; i++) in[i] = value(rank, i), out[i] = -1;
    MPI_Reduce(in, out, n, MPI_FLOAT, MPI_SUM, 1, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(out[i] == (rank == 1 ? sum(i) : -1), "reduce", n);
    MPI_Reduce(rank == 1 ? MPI_IN_PLACE : in, rank == 1 ? in : NULL, n, MPI_FLOAT, MPI_SUM, 1, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(in[i] == (rank == 1 ? sum(i) : value(rank, i)), "reduce in place", n);
    for (int i = 0; i < n; i++) in[i] = value(rank, i);
    MPI_Bcast(in, n, MPI_FLOAT, 1, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(in[i] == value(1, i), "bcast", n);
}

/* The forms with counts of type MPI_Count. */
static void large_counts(float* in, float* out, int n) {
#if MPI_VERSION >= 4
    MPI_Count* counts = malloc(sizeof *counts * ranks);
    for (int r = 0; r < ranks; r++) counts[r] = n;
    for (int i = 0; i < n * ranks; i++) in[i] = value(rank, i);
    MPI_Allreduce_c(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(out[i] == sum(i), "allreduce_c", n);
    MPI_Reduce_scatter_block_c(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(out[i] == sum(rank * n + i), "reduce_scatter_block_c", n);
    MPI_Reduce_scatter_c(in, out, counts, MPI_FLOAT, MPI_MIN, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(out[i] == value(0, rank * n + i), "reduce_scatter_c", n);
    MPI_Allgather_c(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    for (int i = 0; i < n * ranks; i++) expect(out[i] == value(i / n, i % n), "allgather_c", n);
    MPI_Alltoall_c(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    for (int i = 0; i < n * ranks; i++) expect(out[i] == value(i / n, rank * n + i % n), "alltoall_c", n);
    MPI_Alltoall_c(MPI_IN_PLACE, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    for (int i = 0; i < n * ranks; i++) expect(out[i] == value(rank, i), "alltoall_c in place", n);
    MPI_Reduce_c(in, out, n, MPI_FLOAT, MPI_MAX, 1, MPI_COMM_WORLD);
    for (int i = 0; i < n && rank == 1; i++) expect(out[i] == value(ranks - 1, i), "reduce_c", n);
    MPI_Bcast_c(in, n, MPI_FLOAT, 1, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) expect(in[i] == value(1, i), "bcast_c", n);
    free(counts);
#else
    (void)in, (void)out, (void)n;
#endif
}

int main(int argc, char** argv) {
    int most = atoi(argv[1]), repeats = atoi(argv[2]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float* in = malloc((size_t)most * ranks + 64);
    float* out = malloc((size_t)most * ranks + 64);
    for (int bytes = 4; bytes <= most; bytes *= 4) {
        int n = bytes / (int)sizeof(float);
        allreduce(in, out, n, repeats);
        if (argc > 3 && rank == atoi(argv[3])) sleep(600);
        gathers(in, out, n);
        layouts(in, out, n);
        scatters(in, out, n);
        rooted(in, out, n);
        large_counts(in, out, n);
    }
    PMPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0 && !wrong) printf("all right\n");
    MPI_Finalize();
    return wrong;
}
