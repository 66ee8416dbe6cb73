// A stand-in for NCCL without a GPU: its C interface on memory of the host, ranks as processes that meet in shared memory.
// Calls are complete when they return; they take as long as the stand-in's own truth about algorithms says. The functions
// of CUDA's runtime that ranks need are here too.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "types.hpp"

using namespace stand_in;

namespace stand_in {

size_t type_bytes(int type) {
    constexpr size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? sizes[type] : 0;
}

namespace {

float of_bfloat(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t to_bfloat(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename T>
T combined(T one, T other, int operation) {
    return operation == 1 ? T(one * other) : operation == 2 ? std::max(one, other) : operation == 3 ? std::min(one, other) : T(one + other);
}

template <typename T>
void each(void* target, const void* source, size_t count, int operation) {
    T* to = static_cast<T*>(target);
    const T* from = static_cast<const T*>(source);
    for (size_t at = 0; at < count; at++) to[at] = combined(to[at], from[at], operation);
}

}  // namespace

bool add_up(void* target, const void* source, size_t count, int type, int operation) {
    switch (type) {
        case 0: each<int8_t>(target, source, count, operation); return true;
        case 1: each<uint8_t>(target, source, count, operation); return true;
        case 2: each<int32_t>(target, source, count, operation); return true;
        case 3: each<uint32_t>(target, source, count, operation); return true;
        case 4: each<int64_t>(target, source, count, operation); return true;
        case 5: each<uint64_t>(target, source, count, operation); return true;
        case 6: each<_Float16>(target, source, count, operation); return true;
        case 7: each<float>(target, source, count, operation); return true;
        case 8: each<double>(target, source, count, operation); return true;
        case 9: {
            uint16_t* to = static_cast<uint16_t*>(target);
            const uint16_t* from = static_cast<const uint16_t*>(source);
            for (size_t at = 0; at < count; at++)
                to[at] = to_bfloat(combined(of_bfloat(to[at]), of_bfloat(from[at]), operation));
            return true;
        }
        default: return false;
    }
}

}  // namespace stand_in

namespace {

using Clock = std::chrono::steady_clock;

struct Transfer {
    Communicator* communicator;
    bool is_send;
    char* data;
    size_t bytes;
    int peer;
};

thread_local int depth = 0;
thread_local std::vector<Transfer> transfers;

using Graph = std::vector<std::function<void()>>;
thread_local Graph* capturing = nullptr;  // of the stream, as there is only one

void meet(Communicator& all) { pthread_barrier_wait(&all.shared->barrier); }

// Moves a part of the first open transfer with its peer in its direction; whether anything moved.
bool move(Transfer& transfer) {
    Communicator& own = *transfer.communicator;
    Box& box = transfer.is_send ? own.shared->boxes[own.rank][transfer.peer] : own.shared->boxes[transfer.peer][own.rank];
    if (sem_trywait(transfer.is_send ? &box.empty : &box.full) != 0) return false;
    const size_t part = transfer.is_send ? std::min(transfer.bytes, BOX_BYTES) : box.bytes;
    if (transfer.is_send) {
        std::memcpy(box.data, transfer.data, part);
        box.bytes = part;
    } else {
        std::memcpy(transfer.data, box.data, std::min(part, transfer.bytes));
    }
    transfer.data += part;
    transfer.bytes -= std::min(part, transfer.bytes);
    sem_post(transfer.is_send ? &box.full : &box.empty);
    return true;
}

void move_all() {
    if (capturing != nullptr) {
        capturing->push_back([later = std::exchange(transfers, {})] { transfers = later, move_all(); });
        return;
    }
    static const std::chrono::microseconds least(number("STAND_IN_GROUP_US", 0));
    const auto start = Clock::now();
    std::vector<Transfer> open;
    std::swap(open, transfers);
    int idle = 0;
    while (!open.empty()) {
        bool moved = false;
        for (size_t at = 0; at < open.size(); at++) {
            const auto before = std::find_if(open.begin(), open.begin() + long(at), [&](const Transfer& other) {
                return other.communicator == open[at].communicator && other.peer == open[at].peer && other.is_send == open[at].is_send;
            });
            if (before == open.begin() + long(at)) moved |= move(open[at]);
        }
        open.erase(std::remove_if(open.begin(), open.end(), [](const Transfer& each) { return each.bytes == 0; }), open.end());
        idle = moved ? 0 : idle + 1;
        if (idle > 1000) usleep(100);
        else if (idle > 0) std::this_thread::yield();
    }
    std::this_thread::sleep_until(start + least);
}

int enqueue(Communicator* communicator, bool is_send, void* data, size_t count, int type, int peer) {
    if (communicator == nullptr || peer < 0 || peer >= communicator->ranks) return INVALID_ARGUMENT;
    if (count > 0) transfers.push_back({communicator, is_send, static_cast<char*>(data), count * type_bytes(type), peer});
    if (depth == 0) move_all();
    return SUCCESS;
}

bool is_symmetric(const Communicator& own, const void* data, size_t bytes) {
    const char* first = static_cast<const char*>(data);
    return std::any_of(own.windows.begin(), own.windows.end(), [&](const Window& window) {
        return window.is_symmetric && window.base <= first && first + bytes <= window.base + window.bytes;
    });
}

void exchange(Communicator& own, Collective collective, const char* source, char* target, size_t count, int type, int operation, int root) {
    const size_t size = type_bytes(type), parts = collective == REDUCE_SCATTER ? size_t(own.ranks) : 1;
    const size_t piece = SLOT_BYTES / 64 * 64 / parts / size;
    char(*slots)[SLOT_BYTES] = own.shared->slots;
    for (size_t first = 0; first < count; first += piece) {
        const size_t length = std::min(piece, count - first);
        for (size_t part = 0; part < parts; part++)
            std::memcpy(slots[own.rank] + part * piece * size, source + (part * count + first) * size, length * size);
        meet(own);
        char* result = target == nullptr ? nullptr : target + first * size;
        if (collective == ALLGATHER) {
            for (int rank = 0; rank < own.ranks; rank++)
                std::memcpy(target + (size_t(rank) * count + first) * size, slots[rank], length * size);
        } else if (collective == BROADCAST) {
            std::memcpy(result, slots[root], length * size);
        } else if (collective != REDUCE || own.rank == root) {
            const size_t start = collective == REDUCE_SCATTER ? size_t(own.rank) * piece * size : 0;
            std::memcpy(result, slots[0] + start, length * size);
            for (int rank = 1; rank < own.ranks; rank++) add_up(result, slots[rank] + start, length, type, operation);
        }
        meet(own);
    }
}

int run(Collective collective, const void* source, void* target, size_t count, int type, int operation, int root, Communicator* own,
        const CallConfig* config = nullptr) {
    if (config != nullptr && (!version().is_from(31) || config->magic != 0xcafebeef)) return INVALID_ARGUMENT;
    if (capturing != nullptr) {
        const bool has_one = config != nullptr;
        capturing->push_back([=, copy = has_one ? *config : CallConfig{}] {
            run(collective, source, target, count, type, operation, root, own, has_one ? &copy : nullptr);
        });
        return SUCCESS;
    }
    const auto start = Clock::now();
    if (own == nullptr || type_bytes(type) == 0) return INVALID_ARGUMENT;
    const bool shards = collective == ALLGATHER || collective == REDUCE_SCATTER;
    const size_t part_bytes = count * type_bytes(type), vector_bytes = part_bytes * (shards ? size_t(own->ranks) : 1);
    const char* const names[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
    log(LEVEL_INFO, COLL, __FILE__, __LINE__, "%s: opCount %lx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d] stream (nil)",
        names[collective], static_cast<unsigned long>(own->calls++), source, target, count, type, operation, root, static_cast<void*>(own), own->ranks);
    double true_us = 0;
    if ((shards || collective == ALLREDUCE) && is_symmetric(*own, source, part_bytes) && is_symmetric(*own, target, part_bytes)) {
        const char* const kernels[] = {"", "", "AllGather_LL", "ReduceScatter_LD", "AllReduce_AGxLL_R"};
        true_us = 120 + double(vector_bytes) / 800;
        if (own->rank == 0)
            log(LEVEL_INFO, TUNING, __FILE__, __LINE__, "%s [Symmetric]: %zu Bytes -> Kernel %s nchannels %d nthreads 512 nWorks 1",
                names[collective], part_bytes, kernels[collective], own->channels);
    } else {
        const char* const from = static_cast<const char*>(source);
        const char* const to = static_cast<const char*>(target);
        const size_t own_part = size_t(own->rank) * part_bytes;
        const bool in_place = collective == ALLGATHER ? from == to + own_part : collective == REDUCE_SCATTER ? to == from + own_part : from == to;
        true_us = program_us(*own, collective, vector_bytes, vector_bytes / type_bytes(type), in_place);
        Decision decision{};
        if (true_us < 0) {
            if (const int fault = decide(*own, collective, vector_bytes, part_bytes, config, decision)) return fault;
            true_us = decision.true_us;
        }
    }
    exchange(*own, collective, static_cast<const char*>(source), static_cast<char*>(target), count, type, operation, root);
    if (own->program.fault == "wrong" && target != nullptr) *static_cast<char*>(target) ^= 1;
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(true_us)));
    return SUCCESS;
}

struct Config {  // the first fields of ncclConfig_t; versions append others
    size_t size;
    unsigned magic, version;
    int blocking, cluster, min_ctas, max_ctas;
};

struct UniqueId {
    char text[128];
};

}  // namespace

extern "C" {

int ncclGetVersion(int* answer) {
    *answer = version().code();
    return SUCCESS;
}

const char* ncclGetErrorString(int answer) { return answer == SUCCESS ? "no error" : "internal error - please report this issue to the NCCL developers"; }
const char* ncclGetLastError(void*) { return ""; }

int ncclGetUniqueId(UniqueId* id) {
    std::random_device source;
    std::memset(id, 0, sizeof *id);
    snprintf(id->text, sizeof id->text, "/chorale-stand-in-%08x%08x", source(), source());
    return SUCCESS;
}

int ncclCommInitRankConfig(Communicator** to, int ranks, UniqueId id, int rank, const Config* config) {
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    if (rank == 0) log(LEVEL_INFO, INIT, __FILE__, __LINE__, "NCCL version %d.%d.%d+cuda13.4", version().major, version().minor, version().patch);
    const int file = shm_open(id.text, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return SYSTEM_ERROR;
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return SYSTEM_ERROR;
    Shared* shared = static_cast<Shared*>(memory);
    if (rank == 0) {
        pthread_barrierattr_t kind;
        pthread_barrierattr_init(&kind);
        pthread_barrierattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&shared->barrier, &kind, unsigned(ranks));
        for (int from = 0; from < ranks; from++)
            for (int at = 0; at < ranks; at++) sem_init(&shared->boxes[from][at].full, 1, 0), sem_init(&shared->boxes[from][at].empty, 1, 1);
        shared->is_ready = 1;
    }
    while (!shared->is_ready) usleep(200);
    auto made = std::make_unique<Communicator>();
    made->shared = shared, made->rank = rank, made->ranks = ranks;
    meet(*made);
    if (rank == 0) shm_unlink(id.text);
    constexpr int UNDEFINED = -2147483648, USUAL = 4, MOST = 32;
    const long least = config != nullptr && config->min_ctas != UNDEFINED ? config->min_ctas : number("NCCL_MIN_CTAS", 1);
    const long most = config != nullptr && config->max_ctas != UNDEFINED ? config->max_ctas : number("NCCL_MAX_CTAS", MOST);
    if (most > 64) log(LEVEL_INFO, ENV, __FILE__, __LINE__, "Config maxCTAs=%ld is ignored because value out of bound min/max=[1, 64]", most);
    made->channels = int(std::clamp<long>(USUAL, std::min<long>(least, MOST), std::clamp<long>(most, 1, MOST)));
    for (const char* name : {"NCCL_ALGO", "NCCL_PROTO"}) variable(name);
    number("NCCL_BUFFSIZE", 0), number("NCCL_NTHREADS", 0);
    load_plugin(*made);
    load_program(*made);
    *to = made.release();
    log(LEVEL_INFO, INIT, __FILE__, __LINE__, "ncclCommInitRank comm %p rank %d nranks %d - Init COMPLETE", static_cast<void*>(*to), rank, ranks);
    return SUCCESS;
}

int ncclCommInitRank(Communicator** to, int ranks, UniqueId id, int rank) { return ncclCommInitRankConfig(to, ranks, id, rank, nullptr); }

int ncclCommDestroy(Communicator* own) {
    unload_plugin(*own);
    munmap(own->shared, sizeof(Shared));
    delete own;
    return SUCCESS;
}

int ncclCommAbort(Communicator* own) { return ncclCommDestroy(own); }
int ncclCommGetAsyncError(Communicator*, int* answer) { return *answer = SUCCESS; }

int ncclMemAlloc(void** data, size_t bytes) { return (*data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)) == nullptr ? SYSTEM_ERROR : SUCCESS; }
int ncclMemFree(void* data) { return free(data), SUCCESS; }

int ncclCommWindowRegister(Communicator* own, void* data, size_t bytes, void** window, int flags) {
    own->windows.push_back({static_cast<char*>(data), bytes, version().is_from(27) && (flags & 1) != 0});
    *window = data;
    return SUCCESS;
}

int ncclCommWindowDeregister(Communicator* own, void* window) {
    own->windows.erase(std::remove_if(own->windows.begin(), own->windows.end(), [&](const Window& each) { return each.base == window; }), own->windows.end());
    return SUCCESS;
}

int ncclGroupStart() { return depth++, SUCCESS; }
int ncclGroupEnd() {
    if (--depth == 0) move_all();
    return SUCCESS;
}

int ncclSend(const void* data, size_t count, int type, int peer, Communicator* own, void*) { return enqueue(own, true, const_cast<void*>(data), count, type, peer); }
int ncclRecv(void* data, size_t count, int type, int peer, Communicator* own, void*) { return enqueue(own, false, data, count, type, peer); }

int ncclAllReduce(const void* source, void* target, size_t count, int type, int operation, Communicator* own, void*) { return run(ALLREDUCE, source, target, count, type, operation, 0, own); }
int ncclAllGather(const void* source, void* target, size_t count, int type, Communicator* own, void*) { return run(ALLGATHER, source, target, count, type, 0, 0, own); }
int ncclReduceScatter(const void* source, void* target, size_t count, int type, int operation, Communicator* own, void*) { return run(REDUCE_SCATTER, source, target, count, type, operation, 0, own); }
int ncclBroadcast(const void* source, void* target, size_t count, int type, int root, Communicator* own, void*) { return run(BROADCAST, source, target, count, type, 0, root, own); }
int ncclReduce(const void* source, void* target, size_t count, int type, int operation, int root, Communicator* own, void*) { return run(REDUCE, source, target, count, type, operation, root, own); }

// The configuration of a call follows the arguments that it always has.
#define WITH_CONFIG(NAME, PARAMETERS, ...) \
    int nccl##NAME##Config PARAMETERS { return run(__VA_ARGS__); }
WITH_CONFIG(AllReduce, (const void* source, void* target, size_t count, int type, int operation, Communicator* own, void*, const CallConfig* config), ALLREDUCE, source, target, count, type, operation, 0, own, config)
WITH_CONFIG(AllGather, (const void* source, void* target, size_t count, int type, Communicator* own, void*, const CallConfig* config), ALLGATHER, source, target, count, type, 0, 0, own, config)
WITH_CONFIG(ReduceScatter, (const void* source, void* target, size_t count, int type, int operation, Communicator* own, void*, const CallConfig* config), REDUCE_SCATTER, source, target, count, type, operation, 0, own, config)
WITH_CONFIG(Broadcast, (const void* source, void* target, size_t count, int type, int root, Communicator* own, void*, const CallConfig* config), BROADCAST, source, target, count, type, 0, root, own, config)
WITH_CONFIG(Reduce, (const void* source, void* target, size_t count, int type, int operation, int root, Communicator* own, void*, const CallConfig* config), REDUCE, source, target, count, type, operation, root, own, config)

// CUDA's runtime, as far as ranks need it: one device, whose memory is the host's and whose streams are always idle.
int cudaSetDevice(int) { return 0; }
int cudaGetDeviceCount(int* count) { return *count = 1, 0; }
int cudaMalloc(void** data, size_t bytes) { return (*data = malloc(bytes)) == nullptr ? 2 : 0; }
int cudaFree(void* data) { return free(data), 0; }
int cudaMemcpy(void* target, const void* source, size_t bytes, int) { return std::memmove(target, source, bytes), 0; }
int cudaMemcpyAsync(void* target, const void* source, size_t bytes, int, void*) {
    if (capturing != nullptr) capturing->push_back([=] { std::memmove(target, source, bytes); });
    else std::memmove(target, source, bytes);
    return 0;
}
int cudaStreamBeginCapture(void*, int) { return capturing = new Graph, 0; }
int cudaStreamEndCapture(void*, Graph** graph) { return *graph = std::exchange(capturing, nullptr), 0; }
int cudaGraphInstantiateWithFlags(Graph** to, const Graph* graph, unsigned long long) { return *to = new Graph(*graph), 0; }
int cudaGraphUpload(Graph*, void*) { return 0; }
int cudaGraphLaunch(const Graph* graph, void*) {
    for (const auto& step : *graph) step();
    return 0;
}
int cudaGraphDestroy(Graph* graph) { return delete graph, 0; }
int cudaGraphExecDestroy(Graph* graph) { return delete graph, 0; }
int cudaMemset(void* data, int value, size_t bytes) { return std::memset(data, value, bytes), 0; }
int cudaStreamCreate(void** stream) { return *stream = nullptr, 0; }
int cudaStreamQuery(void*) { return 0; }
int cudaStreamSynchronize(void*) { return 0; }
int cudaEventCreate(void** event) { return *event = new Clock::time_point, 0; }
int cudaEventRecord(void* event, void*) { return *static_cast<Clock::time_point*>(event) = Clock::now(), 0; }
int cudaEventSynchronize(void*) { return 0; }
int cudaEventElapsedTime(float* milliseconds, void* start, void* end) {
    *milliseconds = std::chrono::duration<float, std::milli>(*static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(start)).count();
    return 0;
}
}
