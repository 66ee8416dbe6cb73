/* Calls collectives whose shards differ in size, each also by MPI itself, and compares all bytes.
 * Usage: mpi_uneven LARGEST_COUNT REPEATS */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks, wrong, repeats;

/* Elements that rank `from` has for rank `to`: none for some, and sizes that no pattern of ours divides. */
static int share(int pattern, int n, int from, int to) {
    if (pattern == 0) return n;
    if (pattern == 1) return n - (from * 3 + to) % 5 * (n / 8);
    if (pattern == 2) return (from + to) % 3 ? n : 0;
    return from == 1 && to == 2 ? n : 0; /* too much padding: MPI's own */
}

#define BOTH(name, ours, theirs)                                                                   \
    do {                                                                                           \
        for (int k = 0; k < repeats; k++) {                                                        \
            memcpy(out, start, bytes);                                                             \
            ours;                                                                                  \
            memcpy(expected, start, bytes);                                                        \
            theirs;                                                                                \
        }                                                                                          \
        if (memcmp(out, expected, bytes)) {                                                        \
            wrong = 1;                                                                             \
            fprintf(stderr, "rank %d: %s of pattern %d is wrong\n", rank, name, pattern);          \
        }                                                                                          \
    } while (0)

static void gather(int pattern, int n, MPI_Datatype type, int width, float* in, float* out, float* expected, float* start) {
    int counts[64], places[64], end = 3; /* with gaps, in which nothing must change */
    for (int r = 0; r < ranks; r++) {
        counts[r] = share(pattern, n, r, 1);
        places[r] = end;
        end += counts[r] + (pattern ? 2 : 0);
    }
    size_t bytes = (size_t)(end + 4) * width * sizeof *out;
    BOTH("allgatherv", MPI_Allgatherv(in, counts[rank], type, out, counts, places, type, MPI_COMM_WORLD),
         PMPI_Allgatherv(in, counts[rank], type, expected, counts, places, type, MPI_COMM_WORLD));
    BOTH("allgatherv-in-place",
         MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, counts, places, type, MPI_COMM_WORLD),
         PMPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, expected, counts, places, type, MPI_COMM_WORLD));
}

static void exchange(int pattern, int n, MPI_Datatype type, int width, float* in, float* out, float* expected, float* start) {
    int sent[64], from[64], counts[64], places[64], end = 0, sum = 0;
    for (int r = 0; r < ranks; r++) {
        sent[r] = share(pattern, n, rank, r);
        from[r] = sum;
        sum += sent[r];
        counts[r] = share(pattern, n, r, rank);
        places[r] = end;
        end += counts[r] + 1;
    }
    size_t bytes = (size_t)(end + 4) * width * sizeof *out;
    BOTH("alltoallv", MPI_Alltoallv(in, sent, from, type, out, counts, places, type, MPI_COMM_WORLD),
         PMPI_Alltoallv(in, sent, from, type, expected, counts, places, type, MPI_COMM_WORLD));
    end = 0;
    for (int r = 0; r < ranks; r++) {
        counts[r] = share(pattern, n, r < rank ? r : rank, r < rank ? rank : r);
        places[r] = end;
        end += counts[r] + 1;
    }
    BOTH("alltoallv-in-place",
         MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, out, counts, places, type, MPI_COMM_WORLD),
         PMPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, expected, counts, places, type, MPI_COMM_WORLD));
}

static void reduce(int pattern, int n, float* in, float* out, float* expected, float* start) {
    int counts[64], sum = 0;
    for (int r = 0; r < ranks; r++) sum += counts[r] = share(pattern, n, r, 1);
    size_t bytes = (size_t)(counts[rank] + 4) * sizeof *out;
    BOTH("reduce_scatter", MPI_Reduce_scatter(in, out, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
         PMPI_Reduce_scatter(in, expected, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    bytes = (size_t)counts[rank] * sizeof *out; /* what lies behind is MPI's to overwrite */
    memcpy(out, start, sizeof *out * sum);
    memcpy(expected, start, sizeof *out * sum);
    MPI_Reduce_scatter(MPI_IN_PLACE, out, counts, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    PMPI_Reduce_scatter(MPI_IN_PLACE, expected, counts, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    if (memcmp(out, expected, bytes)) wrong = 1, fprintf(stderr, "reduce_scatter in place is wrong\n");
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int n = atoi(argv[1]);
    repeats = atoi(argv[2]);
    size_t most = (size_t)(n + 8) * 3 * (ranks + 1) + 64;
    float *in = malloc(sizeof(float) * most), *out = malloc(sizeof(float) * most);
    float *expected = malloc(sizeof(float) * most), *start = malloc(sizeof(float) * most);
    for (size_t i = 0; i < most; i++) in[i] = (float)((rank + 1) * (i % 13)), start[i] = (float)(rank + i % 7);
    MPI_Datatype wide; /* two floats of three: shards with holes */
    MPI_Type_vector(2, 1, 2, MPI_FLOAT, &wide);
    MPI_Type_commit(&wide);
    for (int pattern = 0; pattern < 4; pattern++) {
        gather(pattern, n, MPI_FLOAT, 1, in, out, expected, start);
        gather(pattern, n, wide, 3, in, out, expected, start);
        exchange(pattern, n, MPI_FLOAT, 1, in, out, expected, start);
        exchange(pattern, n, wide, 3, in, out, expected, start);
        reduce(pattern, n, in, out, expected, start);
    }
    MPI_Type_free(&wide);
    PMPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return wrong;
}
