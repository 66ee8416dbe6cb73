// What the stand-in for NCCL shares between its files: the log, shared memory, and what a communicator knows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <pthread.h>
#include <semaphore.h>

namespace stand_in {

constexpr int SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4;
constexpr int LEVEL_WARN = 2, LEVEL_INFO = 3;
constexpr unsigned long INIT = 1, COLL = 2, TUNING = 64, ENV = 128, ALL = ~0ul;
constexpr int MOST_RANKS = 16;
constexpr size_t SLOT_BYTES = 1 << 18, BOX_BYTES = 1 << 17;

enum Collective { BROADCAST, REDUCE, ALLGATHER, REDUCE_SCATTER, ALLREDUCE };
constexpr int ALGORITHMS = 7, PROTOCOLS = 3;

struct Version {
    int major, minor, patch;
    int code() const { return major * 10000 + minor * 100 + patch; }
    bool is_from(int other_minor) const { return minor >= other_minor; }
};

Version version();  // that of STAND_IN_VERSION, by default 2.32.3
void log(int level, unsigned long flags, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));
const char* variable(const char* name);
long number(const char* name, long otherwise);  // of a variable, which the log tells

struct Box {
    sem_t full, empty;
    size_t bytes;
    char data[BOX_BYTES];
};

struct Shared {
    std::atomic<int> is_ready;
    pthread_barrier_t barrier;
    Box boxes[MOST_RANKS][MOST_RANKS];  // from, to
    char slots[MOST_RANKS][SLOT_BYTES];
};

struct Window {
    const char* base;
    size_t bytes;
    bool is_symmetric;
};

struct Plugin {
    int interface = 0;
    const void* table = nullptr;
    void* context = nullptr;
};

// A program of MSCCL as its file says, and what the stand-in plays with it.
struct Program {
    std::string collective, protocol, fault;
    size_t chunks = 0, min_bytes = 0, max_bytes = 0;
    bool in_place = false;
};

struct Communicator {
    Shared* shared;
    int rank, ranks, channels;
    Plugin plugin;
    std::vector<Window> windows;
    uint64_t calls = 0;
    Program program;  // chunks is 0 without one
};

// The first fields of ncclCollConfig_t.
struct CallConfig {
    size_t size;
    unsigned magic, version;
    void* extensions;
    int min_ctas, max_ctas, nvls_ctas, cluster;
    const char* selection;
    int is_forced, policy;
};

struct Decision {
    int algorithm, protocol, channels;
    double own_us;   // what the library reckons
    double true_us;  // what a call takes
};

void load_plugin(Communicator& communicator);
void unload_plugin(Communicator& communicator);
// What runs for a call of so many bytes of the whole vector; an answer of NCCL other than SUCCESS where nothing can.
// config: of the call, or none.
int decide(Communicator& communicator, Collective collective, size_t vector_bytes, size_t logged_bytes, const CallConfig* config,
           Decision& decision);

// Takes the program that the variables of a runtime name; STAND_IN_RUNTIME is msccl, executor or rccl.
void load_program(Communicator& communicator);
// Microseconds of a call that the program serves, -1 if the library's own algorithm does.
double program_us(Communicator& communicator, Collective collective, size_t vector_bytes, size_t elements, bool in_place);

size_t type_bytes(int type);
bool add_up(void* target, const void* source, size_t count, int type, int operation);

}  // namespace stand_in
