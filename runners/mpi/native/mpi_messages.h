/* Messages over MPI, without its header: functions and handles are found at run time, so that one binary serves every
 * MPI. Handles are ints or pointers there; both fit a register, and a place in memory, of 64 bits. */
#ifndef CHORALE_MPI_MESSAGES_H
#define CHORALE_MPI_MESSAGES_H

#include "chorale_engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    void *isend, *irecv, *testsome; /* the functions MPI_Isend, MPI_Irecv, MPI_Testsome */
    int64_t communicator;           /* handles; nobody else uses the communicator. Channels are its tags */
    int64_t byte_type;
    size_t handle_bytes; /* of a request: 4 or 8 */
    size_t status_bytes;
    size_t most_bytes; /* of one message of MPI; longer ones are cut. At most INT_MAX */
} chorale_mpi;

/* The table for chorale_use_messages, or null. It belongs to the thread of the engine and must outlive it. */
chorale_messages* chorale_mpi_messages_new(const chorale_mpi*);
void chorale_mpi_messages_free(chorale_messages*);

#ifdef __cplusplus
}
#endif
#endif
