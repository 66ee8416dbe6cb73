/* The C interface of the engine: it executes programs on one rank, over connections to the other ranks.
 *
 * Only one thread at a time may use an engine. Functions return CHORALE_OK or another status; chorale_error returns the
 * error message. If chorale_execute or chorale_connect fails with a status other than CHORALE_INVALID, the engine is
 * broken: its connections are closed, so that other ranks notice, and it can only be freed by chorale_engine_free.
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
    CHORALE_INVALID = 1,   /* a call or a program is not valid */
    CHORALE_TIMEOUT = 2,   /* the time limit passed */
    CHORALE_PEER_LOST = 3, /* a connection ended */
    CHORALE_GARBAGE = 4,   /* a peer sent data that do not belong to this run */
    CHORALE_SYSTEM = 5     /* the operating system or a transport reported an error */
};

enum { CHORALE_FLOAT32, CHORALE_FLOAT64, CHORALE_FLOAT16, CHORALE_BFLOAT16, CHORALE_INT32, CHORALE_INT64,
       CHORALE_INT8, CHORALE_UINT8, CHORALE_INT16, CHORALE_UINT16, CHORALE_UINT32, CHORALE_UINT64,
       CHORALE_FLOAT128 /* long double */ };
enum { CHORALE_SUM, CHORALE_AVG, CHORALE_MIN, CHORALE_MAX, CHORALE_PROD };

/* Times of one instruction in nanoseconds of CLOCK_MONOTONIC: when the block had reached the instruction and everything
 * that the instruction waits for had happened, when its first byte moved, and when it was finished. */
typedef struct {
    int32_t block, step, part, piece;
    int64_t ready_ns, start_ns, end_ns;
} chorale_step_time;

typedef struct {
    int64_t program;    /* number from chorale_program_load */
    const void* input;  /* may be overwritten if the program works in place and input equals output */
    void* output;       /* at any address. At ranks other than the root, the input of a broadcast and the output of a
                         * reduce are ignored, unless the reduce works in place */
    size_t elements;    /* of the complete vector: the output of an allgather, the input of a reduce-scatter */
    int32_t type, operation;
    size_t parts;       /* number of parts into which chunks are cut; blocks run all steps once per part */
    double limit_s;          /* time limit after the start */
    int64_t not_before_ns;   /* time of CLOCK_MONOTONIC at which to start, after all preparations; 0: immediately */
    chorale_step_time* steps; /* room for `step_room` entries, or null */
    size_t step_room;
    /* set by chorale_execute */
    size_t step_count;  /* finished steps, including those that did not fit into `steps` */
    int64_t start_ns, end_ns; /* CLOCK_MONOTONIC */
} chorale_call;

/* A transport that the caller provides. It carries messages of known sizes, in order for each (peer, channel). `post_*`
 * return a request; `test` returns 1 if it is done, 0 if not, -1 if it failed. A request that is done is not used
 * again. */
typedef struct {
    void* context;
    void* (*post_send)(void* context, const void* bytes, size_t size, int peer, int channel);
    void* (*post_receive)(void* context, void* bytes, size_t size, int peer, int channel);
    int (*test)(void* context, void* request);
} chorale_messages;

chorale_engine* chorale_engine_new(int rank, int ranks);
void chorale_engine_free(chorale_engine*);
const char* chorale_error(const chorale_engine*);

/* After CHORALE_TIMEOUT, returns a line "BLOCK STEP reason" for each unfinished block. */
const char* chorale_blocked(const chorale_engine*);

/* Loads a program; returns its number, or -1 if this fails. For `words`, see runners/engine/library.py. */
int64_t chorale_program_load(chorale_engine*, const int64_t* words, size_t count);
int chorale_program_unload(chorale_engine*, int64_t program);

/* Listens for other ranks at `address`: "tcp:HOST" (any free port), "unix:NAME" or "shm:NAME" (abstract names). Writes
 * to `bound` the address that other ranks must use. May be called once for each kind of address. */
int chorale_listen(chorale_engine*, const char* address, char* bound, size_t room);

/* Listens over TCP on the network devices that links_for in devices.hpp chooses. */
int chorale_listen_devices(chorale_engine*, const char* chosen, const char* variables, const char* toward, char* bound,
                           size_t room);

/* Connects to all ranks with which the loaded programs exchange messages, except those that are already connected. All
 * ranks call this at the same time. `addresses`, indexed by rank: the result of chorale_listen on that rank, or
 * "net:unix:NAME" for an emulated network that forwards connections. Commas separate links of a rank, over which
 * connections are distributed; bars separate alternative addresses of a link. `token`: 16 bytes, equal on all ranks of
 * a job, which keep other processes from connecting. */
int chorale_connect(chorale_engine*, const char* const* addresses, const uint8_t* token, double limit_s);

/* Makes the engine use `messages` instead of its own connections from now on. */
int chorale_use_messages(chorale_engine*, const chorale_messages* messages);

/* Sets an option: "piece_bytes" (size of the pieces in which a message is forwarded), "buffer_bytes" (size of the
 * buffers of sockets and shared memory, to be set before connecting; 0: the system's default), or "listening" (0: stop
 * listening, because no other programs will be loaded). */
int chorale_set(chorale_engine*, const char* option, int64_t value);

/* Sets a function that is called before each instruction. Tests use it to inject faults. */
void chorale_on_step(chorale_engine*, void (*hook)(void* context, int block, int step), void* context);

int chorale_execute(chorale_engine*, chorale_call* call);

/* dst[i] = a[i] (operation) b[i]; for tests, and for callers that reduce without a program. */
int chorale_reduce(int32_t type, int32_t operation, void* dst, const void* a, const void* b, size_t elements);

#ifdef __cplusplus
}
#endif
#endif
