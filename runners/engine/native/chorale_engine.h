/* The C interface of the engine: it executes programs on one rank, over connections to the other ranks.
 *
 * An engine belongs to one thread at a time. Functions return CHORALE_OK or another status; chorale_error says in
 * words what went wrong. After a failed chorale_execute or chorale_connect an engine is broken: its connections are
 * closed, so that the others notice, and only chorale_engine_free is left to do.
 */
#ifndef CHORALE_ENGINE_H
#define CHORALE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct chorale_engine chorale_engine;

enum {
    CHORALE_OK = 0,
    CHORALE_INVALID = 1,   /* a call or a program that makes no sense */
    CHORALE_TIMEOUT = 2,   /* the time limit passed */
    CHORALE_PEER_LOST = 3, /* a connection ended */
    CHORALE_GARBAGE = 4,   /* a peer sent what no rank of this run would send */
    CHORALE_SYSTEM = 5     /* the operating system or a transport refused something */
};

enum { CHORALE_FLOAT32, CHORALE_FLOAT64, CHORALE_FLOAT16, CHORALE_BFLOAT16, CHORALE_INT32, CHORALE_INT64,
       CHORALE_INT8, CHORALE_UINT8 };
enum { CHORALE_SUM, CHORALE_AVG, CHORALE_MIN, CHORALE_MAX, CHORALE_PROD };

/* What one instruction took. Times are of CLOCK_MONOTONIC, in nanoseconds: when the block came to the instruction and
 * its waits were met, when its first byte moved, when it was finished. */
typedef struct {
    int32_t block, step, part, piece;
    int64_t ready_ns, start_ns, end_ns;
} chorale_step_time;

typedef struct {
    int64_t program;    /* of chorale_program_load */
    const void* input;  /* of the collective; may be written where the program works in place and input is output */
    void* output;       /* at any address; other ranks than the root have no input of a broadcast and no output of a
                         * reduce, and what stands there then is not looked at, unless a reduce works in place */
    size_t elements;    /* of the whole vector: for allgather of the output, for reduce-scatter of the input */
    int32_t type, operation;
    size_t parts;       /* into which chunks are cut; blocks go through their steps once for each */
    double limit_s;          /* from the start on */
    int64_t not_before_ns;   /* of CLOCK_MONOTONIC: prepares itself, then waits for this to start; 0 to start at once */
    chorale_step_time* steps; /* room for `step_room` of them, or null */
    size_t step_room;
    /* filled in */
    size_t step_count;  /* steps that were done, also those that found no room */
    int64_t start_ns, end_ns, cpu_ns; /* CLOCK_MONOTONIC; processor time of this thread */
} chorale_call;

/* A transport of somebody else's: messages of known sizes, in order for each (peer, channel). `post_*` return a
 * request, `test` whether it is done (1), not yet (0) or failed (-1); a request that is done is forgotten. */
typedef struct {
    void* context;
    void* (*post_send)(void* context, const void* bytes, size_t size, int peer, int channel);
    void* (*post_receive)(void* context, void* bytes, size_t size, int peer, int channel);
    int (*test)(void* context, void* request);
} chorale_messages;

chorale_engine* chorale_engine_new(int rank, int ranks);
void chorale_engine_free(chorale_engine*);
const char* chorale_error(const chorale_engine*);

/* Where the unfinished blocks stand after CHORALE_TIMEOUT: a line "BLOCK STEP reason" for each. */
const char* chorale_blocked(const chorale_engine*);

/* Returns the number of the program, or -1. `words` are those of runners/engine/library.py. */
int64_t chorale_program_load(chorale_engine*, const int64_t* words, size_t count);
int chorale_program_unload(chorale_engine*, int64_t program);

/* Listens for the other ranks at `address`: "tcp:HOST" (any free port), "unix:NAME" or "shm:NAME" (abstract names).
 * `bound` gets the address to give to the others. May be called once for each kind. */
int chorale_listen(chorale_engine*, const char* address, char* bound, size_t room);

/* Listens by TCP at the network devices that links_for of devices.hpp chooses. */
int chorale_listen_devices(chorale_engine*, const char* chosen, const char* variables, const char* toward, char* bound,
                           size_t room);

/* Connects to all ranks that the loaded programs exchange messages with and that are not connected yet; all ranks call
 * it at the same time. `addresses`, by rank: what chorale_listen gave there, or "net:unix:NAME" of an emulated network
 * that passes connections on; between commas the links of a rank, over which connections are spread, and between bars
 * addresses of a link, of which any will do. `token`, 16 bytes, is the same on all ranks of a job and keeps strangers out. */
int chorale_connect(chorale_engine*, const char* const* addresses, const uint8_t* token, double limit_s);

/* Uses `messages` instead of connections of its own, from now on. */
int chorale_use_messages(chorale_engine*, const chorale_messages* messages);

/* Sets an option: "piece_bytes" (how much of a message is passed on at once), "buffer_bytes" (of sockets and shared
 * memory, before they are connected; 0 leaves it to the system), "checksums" (0 or 1), "listening" (0: no more, for an
 * engine that loads no other programs). */
int chorale_set(chorale_engine*, const char* option, int64_t value);

/* Is called before each instruction, for tests of faults. */
void chorale_on_step(chorale_engine*, void (*hook)(void* context, int block, int step), void* context);

int chorale_execute(chorale_engine*, chorale_call* call);

/* dst[i] = a[i] (operation) b[i]; for tests and for those who reduce by themselves. */
int chorale_reduce(int32_t type, int32_t operation, void* dst, const void* a, const void* b, size_t elements);

#ifdef __cplusplus
}
#endif
#endif
