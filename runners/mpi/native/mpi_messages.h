/* Messages over MPI, without MPI's header file. Functions and handles are passed at run time, so that one binary works
 * with every MPI. Handles are ints or pointers; both fit into 64 bits. */
#ifndef CHORALE_MPI_MESSAGES_H
#define CHORALE_MPI_MESSAGES_H

#include "chorale_engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    void *isend, *irecv, *testsome; /* the functions MPI_Isend, MPI_Irecv, MPI_Testsome */
    int64_t communicator;           /* handle of a communicator without other users; channels become tags */
    int64_t byte_type;
    size_t handle_bytes; /* size of a request: 4 or 8 */
    size_t status_bytes;
    size_t most_bytes; /* largest MPI message, at most INT_MAX; longer messages are cut */
} chorale_mpi;

/* Returns the struct for chorale_use_messages, or null. Only the engine's thread may use it. It must outlive the
 * engine. */
chorale_messages* chorale_mpi_messages_new(const chorale_mpi*);
void chorale_mpi_messages_free(chorale_messages*);

#ifdef __cplusplus
}
#endif
#endif
