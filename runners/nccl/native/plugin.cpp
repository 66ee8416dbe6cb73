// A tuner plug-in for NCCL 2.20 and later (tuner interfaces 2 to 7). It applies the table in the file that
// NCCL_TUNER_CONFIG_FILE names. Interface 1 (NCCL 2.19) is not supported: it does not pass the communicator of a call,
// so ranks could decide differently. Calls without a matching row are left to NCCL. When a communicator ends, a line of
// JSON is appended to the file that CHORALE_TUNER_REPORT names: for each row, the number of calls that it decided, and
// their costs according to NCCL's model. NCCL's header file is not needed, because published interfaces do not change.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "table.hpp"

using namespace chorale::nccl;

namespace {

constexpr int SUCCESS = 0, SYSTEM_ERROR = 2;
constexpr int WARN = 2, INFO = 3;
constexpr unsigned long TUNING = 64, ALL = ~0ul;
constexpr float IGNORED = -1.0f, BEST = 0.0f;
constexpr off_t MAX_FILE_BYTES = 1 << 24;
constexpr const char* NAME = "Chorale";
constexpr const char* FILE_VARIABLE = "NCCL_TUNER_CONFIG_FILE";
constexpr const char* REPORT_VARIABLE = "CHORALE_TUNER_REPORT";

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

// What a row has decided. refused: number of matching calls for which NCCL does not support the row's choice; cost_us,
// own_cost_us: total cost, according to NCCL's model, of the row's choice and of NCCL's own choice; own_algorithm,
// own_protocol: NCCL's own choice for the last call
struct Count {
    uint64_t calls, bytes, refused, chunks;
    double cost_us, own_cost_us;
    int own_algorithm, own_protocol;
};

struct Tuner {
    std::vector<Row> rows;
    std::vector<Count> counts;
    int nodes, ranks, interface;
    Logger log;
    uint64_t others = 0;  // number of calls without a matching row
};

void read(Tuner& tuner) {
    const char* path = std::getenv(FILE_VARIABLE);
    struct stat status{};
    std::ifstream file;  // only regular files are opened, because opening a pipe would block
    if (path != nullptr && stat(path, &status) == 0 && S_ISREG(status.st_mode) && status.st_size <= MAX_FILE_BYTES)
        file.open(path);
    if (!file.is_open()) {
        const char* which = path == nullptr ? "(unset)" : path;
        tuner.log(WARN, ALL, __FILE__, __LINE__, "Chorale: no table to be read: %s is %s", FILE_VARIABLE, which);
        return;
    }
    std::string line;
    for (int number = 1; std::getline(file, line); number++) {
        const auto refuse = [&](const std::string& why) {
            tuner.log(WARN, ALL, __FILE__, __LINE__, "Chorale: %s:%d is left out: %s", path, number, why.c_str());
        };
        if (const auto row = row_of(line, refuse)) tuner.rows.push_back(*row);
    }
    tuner.counts.resize(tuner.rows.size());
    tuner.log(INFO, TUNING, __FILE__, __LINE__, "Chorale: %zu rows of %s for %d ranks on %d nodes", tuner.rows.size(), path,
              tuner.ranks, tuner.nodes);
}

int begin(void** context, size_t ranks, size_t nodes, Logger log, int interface) noexcept {
    try {
        auto tuner = std::make_unique<Tuner>(Tuner{{}, {}, int(nodes), int(ranks), interface, log});
        read(*tuner);
        *context = tuner.release();
        return SUCCESS;
    } catch (const std::bad_alloc&) {
        return SYSTEM_ERROR;
    }
}

template <int INTERFACE>
int begin_old(size_t ranks, size_t nodes, Logger log, void** context) {
    return begin(context, ranks, nodes, log, INTERFACE);
}

template <int INTERFACE>
int begin_new(void** context, uint64_t, size_t ranks, size_t nodes, Logger log, void*, void*) {
    return begin(context, ranks, nodes, log, INTERFACE);
}

// `table` really is an array [algorithms][protocols] of costs, although the interface declares an array of pointers.
int choose(void* context, int collective, size_t size_bytes, int operations, float** table, int algorithms, int protocols,
           int registered, int* channels) {
    Tuner& tuner = *static_cast<Tuner*>(context);
    float* const costs = reinterpret_cast<float*>(table);
    int cheapest = -1;
    for (int at = 0; at < algorithms * protocols; at++)
        if (costs[at] >= 0 && (cheapest < 0 || costs[at] < costs[cheapest])) cheapest = at;
    const Call call{collective, size_bytes, tuner.nodes, tuner.ranks, operations, registered};
    for (size_t number = 0; number < tuner.rows.size(); number++) {
        const Row& row = tuner.rows[number];
        Count& count = tuner.counts[number];
        if (!matches(row, call)) continue;
        const int at = row.algorithm * protocols + row.protocol;
        if (row.algorithm >= algorithms || row.protocol >= protocols || costs[at] == IGNORED) {
            count.refused++;
            continue;
        }
        count.calls++;
        count.bytes += size_bytes;
        count.cost_us += costs[at];
        count.own_cost_us += costs[cheapest];
        count.own_algorithm = cheapest / protocols;
        count.own_protocol = cheapest % protocols;
        tuner.log(INFO, TUNING, __FILE__, __LINE__,
                  "Chorale: %s of %zu bytes by %s/%s, channels %d; NCCL reckons %.1f us, and %.1f us by its own %s/%s",
                  collective_name(collective), size_bytes, algorithm_name(row.algorithm), protocol_name(row.protocol),
                  row.channels, double(costs[at]), double(costs[cheapest]), algorithm_name(count.own_algorithm),
                  protocol_name(count.own_protocol));
        costs[at] = BEST;
        if (row.channels > 0) *channels = row.channels;
        return SUCCESS;
    }
    tuner.others++;
    return SUCCESS;
}

int choose_v3(void* context, int collective, size_t size_bytes, int operations, float** costs, int algorithms,
              int protocols, int* channels) {
    return choose(context, collective, size_bytes, operations, costs, algorithms, protocols, 0, channels);
}

// Interface 2 has no costs. NCCL passes which features the network has, and uses the choice without checking it.
int choose_v2(void* context, int collective, size_t size_bytes, int with_network, int with_switches, int operations,
              int* algorithm, int* protocol, int* channels) {
    constexpr int RING = 1, CHAIN = 3, KNOWN = 6, PROTOCOLS = 3, USUAL = 1;
    float costs[KNOWN][PROTOCOLS];
    for (int at = 0; at < KNOWN; at++) {
        const bool is_there = at <= RING || (at <= CHAIN ? with_network : with_switches);
        for (int other = 0; other < PROTOCOLS; other++) costs[at][other] = is_there ? float(USUAL) : IGNORED;
    }
    choose(context, collective, size_bytes, operations, reinterpret_cast<float**>(costs), KNOWN, PROTOCOLS, 0, channels);
    for (int at = 0; at < KNOWN; at++)
        for (int other = 0; other < PROTOCOLS; other++)
            if (costs[at][other] == BEST) *algorithm = at, *protocol = other;
    return SUCCESS;
}

int chunk(void* context, int collective, size_t size_bytes, int algorithm, int protocol, int, size_t* chunk_bytes) {
    Tuner& tuner = *static_cast<Tuner*>(context);
    const Call call{collective, size_bytes, tuner.nodes, tuner.ranks, ANY, ANY};
    for (size_t number = 0; number < tuner.rows.size(); number++) {
        const Row& row = tuner.rows[number];
        if (!matches(row, call) || row.algorithm != algorithm || row.protocol != protocol) continue;
        if (row.chunk_bytes > 0) {
            tuner.log(INFO, TUNING, __FILE__, __LINE__, "Chorale: %s of %zu bytes in chunks of %zu, not of %zu",
                      collective_name(collective), size_bytes, row.chunk_bytes, *chunk_bytes);
            *chunk_bytes = row.chunk_bytes;
            tuner.counts[number].chunks++;
        }
        return SUCCESS;
    }
    return SUCCESS;
}

void report(const Tuner& tuner) {
    const char* path = std::getenv(REPORT_VARIABLE);
    if (path == nullptr || *path == '\0') return;
    std::ostringstream text;
    text << "{\"format\": \"chorale-tuner/1\", \"pid\": " << getpid() << ", \"interface\": " << tuner.interface
         << ", \"ranks\": " << tuner.ranks << ", \"nodes\": " << tuner.nodes << ", \"other_calls\": " << tuner.others
         << ", \"rows\": [";
    for (size_t number = 0; number < tuner.rows.size(); number++) {
        const Row& row = tuner.rows[number];
        const Count& count = tuner.counts[number];
        text << (number == 0 ? "" : ", ") << "{\"collective\": \"" << collective_name(row.collective)
             << "\", \"min_bytes\": " << row.min_bytes << ", \"max_bytes\": " << row.max_bytes
             << ", \"algorithm\": \"" << algorithm_name(row.algorithm) << "\", \"protocol\": \""
             << protocol_name(row.protocol) << "\", \"channels\": " << row.channels << ", \"calls\": " << count.calls
             << ", \"bytes\": " << count.bytes << ", \"refused\": " << count.refused << ", \"chunks\": " << count.chunks
             << ", \"cost_us\": " << count.cost_us << ", \"own\": ";
        if (count.calls == 0 || tuner.interface < 3) {
            text << "null}";
            continue;
        }
        text << "{\"algorithm\": \"" << algorithm_name(count.own_algorithm) << "\", \"protocol\": \""
             << protocol_name(count.own_protocol) << "\", \"cost_us\": " << count.own_cost_us << "}}";
    }
    text << "]}\n";
    const std::string line = text.str();
    const bool is_stream = std::strcmp(path, "-") == 0;
    const int file = is_stream ? STDERR_FILENO : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    // The line is written with a single call, so that lines of several processes are not mixed.
    if (file < 0 || write(file, line.data(), line.size()) != ssize_t(line.size()))
        tuner.log(WARN, ALL, __FILE__, __LINE__, "Chorale: %s=%s cannot be written", REPORT_VARIABLE, path);
    if (file >= 0 && !is_stream) close(file);
}

int finish(void* context) noexcept {
    const std::unique_ptr<Tuner> tuner(static_cast<Tuner*>(context));
    try {
        report(*tuner);
    } catch (const std::bad_alloc&) {
        return SYSTEM_ERROR;
    }
    return SUCCESS;
}

// All versions export a name and these functions in this order; versions 5 and 6 renamed the last two.
struct Interface {
    const char* name;
    const void *init, *get_coll_info, *finalize, *get_chunk_size;
};

template <typename Init, typename Choose>
Interface interface_of(Init init, Choose get_coll_info, decltype(&chunk) get_chunk_size = nullptr) {
    const auto plain = [](auto function) { return reinterpret_cast<const void*>(function); };
    return {NAME, plain(init), plain(get_coll_info), plain(&finish), plain(get_chunk_size)};
}

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default"))) extern

EXPORTED const Interface ncclTunerPlugin_v2, ncclTunerPlugin_v3, ncclTunerPlugin_v4, ncclTunerPlugin_v5,
    ncclTunerPlugin_v6, ncclTunerPlugin_v7;

const Interface ncclTunerPlugin_v2 = interface_of(begin_old<2>, choose_v2);
const Interface ncclTunerPlugin_v3 = interface_of(begin_old<3>, choose_v3);
const Interface ncclTunerPlugin_v4 = interface_of(begin_old<4>, choose);
const Interface ncclTunerPlugin_v5 = interface_of(begin_new<5>, choose);
const Interface ncclTunerPlugin_v6 = interface_of(begin_new<6>, choose, chunk);
const Interface ncclTunerPlugin_v7 = interface_of(begin_new<7>, choose, chunk);
}
