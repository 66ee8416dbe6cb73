/* An ordinary MPI program that times a collective called as MPI_..., which the preloaded library intercepts, and as
 * PMPI_..., in turns, and compares all bytes of the two results.
 * Usage: collective_times COLLECTIVE REPEATS UNEVEN SIZE_BYTES...
 *
 * SIZE_BYTES is the size of the complete vector of floats; the root is rank 0. If UNEVEN is 1, shards have between half
 * and all of the elements of an equal shard. For each size, rank 0 prints a line: the word `times`, SIZE_BYTES, whether
 * the results are equal, and the seconds of the slowest rank, in each repeat for MPI_... and then for PMPI_.... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UP 2
#define BOTH(name, ...) (is_own ? PMPI_##name(__VA_ARGS__, MPI_COMM_WORLD) : MPI_##name(__VA_ARGS__, MPI_COMM_WORLD))
#define F MPI_FLOAT

static int rank, ranks, uneven;
static int *sent, *sent_at, *come, *come_at, *of_all, *of_all_at;

static int elements(int from, int to, int shard) { return uneven ? shard - (from * 3 + to) % 5 * (shard / 8) : shard; }

static void set_counts(int shard) {
    for (int r = 0; r < ranks; r++) {
        sent[r] = elements(rank, r, shard), come[r] = elements(r, rank, shard), of_all[r] = elements(r, 1, shard);
        sent_at[r] = r ? sent_at[r - 1] + sent[r - 1] : 0;
        come_at[r] = r ? come_at[r - 1] + come[r - 1] : 0;
        of_all_at[r] = r ? of_all_at[r - 1] + of_all[r - 1] : 0;
    }
}

static void call(const char* name, int is_own, float* in, float* out, int count) {
    const int shard = count / ranks;
    if (!strcmp(name, "allreduce")) BOTH(Allreduce, in, out, count, F, MPI_SUM);
    if (!strcmp(name, "reduce")) BOTH(Reduce, in, out, count, F, MPI_SUM, 0);
    if (!strcmp(name, "broadcast")) BOTH(Bcast, out, count, F, 0);
    if (!strcmp(name, "allgather"))
        uneven ? BOTH(Allgatherv, in, of_all[rank], F, out, of_all, of_all_at, F) : BOTH(Allgather, in, shard, F, out, shard, F);
    if (!strcmp(name, "reduce_scatter"))
        uneven ? BOTH(Reduce_scatter, in, out, of_all, F, MPI_SUM) : BOTH(Reduce_scatter_block, in, out, shard, F, MPI_SUM);
    if (!strcmp(name, "alltoall"))
        uneven ? BOTH(Alltoallv, in, sent, sent_at, F, out, come, come_at, F) : BOTH(Alltoall, in, shard, F, out, shard, F);
}

static int measure(const char* name, int size_bytes, int repeats) {
    const int count = size_bytes / (int)sizeof(float);
    float *in = malloc(size_bytes), *out[2] = {malloc(size_bytes), malloc(size_bytes)};
    double *seconds = calloc(2 * repeats, sizeof *seconds), *slowest = calloc(2 * repeats, sizeof *slowest);
    int are_equal = 1;
    set_counts(count / ranks);
    /* Small integers, so that sums do not depend on the order of additions. */
    for (int i = 0; i < count; i++) in[i] = (float)((rank + 1) * (i % 7 + 1));
    for (int k = -WARM_UP; k < repeats; k++) {
        for (int turn = 0; turn < 2; turn++) {
            const int is_own = (turn + k) & 1;
            for (int i = 0; i < count; i++) out[is_own][i] = (float)(rank - i % 5);
            MPI_Barrier(MPI_COMM_WORLD);
            const double start = MPI_Wtime();
            call(name, is_own, in, out[is_own], count);
            if (k >= 0) seconds[is_own * repeats + k] = MPI_Wtime() - start;
        }
        are_equal &= !memcmp(out[0], out[1], size_bytes);
    }
    PMPI_Reduce(seconds, slowest, 2 * repeats, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    PMPI_Allreduce(MPI_IN_PLACE, &are_equal, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("times %d %d", size_bytes, are_equal);
        for (int k = 0; k < 2 * repeats; k++) printf(" %.9f", slowest[k]);
        printf("\n");
        fflush(stdout);
    }
    free(in), free(out[0]), free(out[1]), free(seconds), free(slowest);
    return !are_equal;
}

int main(int argc, char** argv) {
    int wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uneven = atoi(argv[3]);
    int* counts = malloc(6 * ranks * sizeof *counts);
    sent = counts, sent_at = sent + ranks, come = sent_at + ranks, come_at = come + ranks, of_all = come_at + ranks,
    of_all_at = of_all + ranks;
    for (int i = 4; i < argc; i++) wrong |= measure(argv[1], atoi(argv[i]), atoi(argv[2]));
    free(counts);
    MPI_Finalize();
    return wrong;
}
