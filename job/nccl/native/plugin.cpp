// A tuner plug-in of NCCL 2.22 and later (its interfaces 3 to 7), which applies the table that NCCL_TUNER_CONFIG_FILE
// names. What no row decides is left to NCCL, algorithm, protocol and channels. NCCL's header is not needed: the types
// of an interface that has once been published stay as they are.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>

#include "table.hpp"

using namespace chorale::nccl;

namespace {

constexpr int SUCCESS = 0, SYSTEM_ERROR = 2;
constexpr int WARN = 2, INFO = 3;
constexpr unsigned long TUNING = 64, ALL = ~0ul;
constexpr float IGNORED = -1.0f, BEST = 0.0f;
constexpr const char* NAME = "Chorale";
constexpr const char* FILE_VARIABLE = "NCCL_TUNER_CONFIG_FILE";

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

struct Tuner {
    std::vector<Row> rows;
    int nodes, ranks;
    Logger log;
};

void read(Tuner& tuner) {
    const char* path = std::getenv(FILE_VARIABLE);
    std::ifstream file(path == nullptr ? "" : path);
    if (!file) {
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
    tuner.log(INFO, TUNING, __FILE__, __LINE__, "Chorale: %zu rows of %s for %d ranks on %d nodes", tuner.rows.size(), path,
              tuner.ranks, tuner.nodes);
}

int begin(void** context, size_t ranks, size_t nodes, Logger log) noexcept {
    try {
        auto tuner = std::make_unique<Tuner>(Tuner{{}, int(nodes), int(ranks), log});
        read(*tuner);
        *context = tuner.release();
        return SUCCESS;
    } catch (const std::bad_alloc&) {
        return SYSTEM_ERROR;
    }
}

int begin_v3(size_t ranks, size_t nodes, Logger log, void** context) { return begin(context, ranks, nodes, log); }

int begin_v5(void** context, uint64_t, size_t ranks, size_t nodes, Logger log, void*, void*) {
    return begin(context, ranks, nodes, log);
}

// Costs are a table of protocols for each algorithm, though interfaces call it an array of pointers.
int choose(void* context, int collective, size_t size_bytes, int operations, float** costs, int algorithms, int protocols,
           int registered, int* channels) {
    const Tuner& tuner = *static_cast<const Tuner*>(context);
    const Call call{collective, size_bytes, tuner.nodes, tuner.ranks, operations, registered};
    for (const Row& row : tuner.rows) {
        if (!matches(row, call) || row.algorithm >= algorithms || row.protocol >= protocols) continue;
        float& cost = reinterpret_cast<float*>(costs)[row.algorithm * protocols + row.protocol];
        if (cost == IGNORED) continue;
        cost = BEST;
        if (row.channels > 0) *channels = row.channels;
        tuner.log(INFO, TUNING, __FILE__, __LINE__, "Chorale: %s of %zu bytes by %s/%s, channels %d",
                  collective_name(collective), size_bytes, algorithm_name(row.algorithm), protocol_name(row.protocol),
                  row.channels);
        return SUCCESS;
    }
    return SUCCESS;
}

int choose_v3(void* context, int collective, size_t size_bytes, int operations, float** costs, int algorithms,
              int protocols, int* channels) {
    return choose(context, collective, size_bytes, operations, costs, algorithms, protocols, 0, channels);
}

int finish(void* context) {
    delete static_cast<Tuner*>(context);
    return SUCCESS;
}

struct TunerV3 {
    const char* name;
    decltype(&begin_v3) init;
    decltype(&choose_v3) get_coll_info;
    decltype(&finish) destroy;
};

struct TunerV4 {
    const char* name;
    decltype(&begin_v3) init;
    decltype(&choose) get_coll_info;
    decltype(&finish) destroy;
};

struct TunerV5 {
    const char* name;
    decltype(&begin_v5) init;
    decltype(&choose) get_coll_info;
    decltype(&finish) finalize;
};

struct TunerV6 {
    TunerV5 first;
    void* get_chunk_size;  // NCCL's own
};

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default"))) extern

EXPORTED const TunerV3 ncclTunerPlugin_v3;
EXPORTED const TunerV4 ncclTunerPlugin_v4;
EXPORTED const TunerV5 ncclTunerPlugin_v5;
EXPORTED const TunerV6 ncclTunerPlugin_v6;
EXPORTED const TunerV6 ncclTunerPlugin_v7;

const TunerV3 ncclTunerPlugin_v3 = {NAME, begin_v3, choose_v3, finish};
const TunerV4 ncclTunerPlugin_v4 = {NAME, begin_v3, choose, finish};
const TunerV5 ncclTunerPlugin_v5 = {NAME, begin_v5, choose, finish};
const TunerV6 ncclTunerPlugin_v6 = {{NAME, begin_v5, choose, finish}, nullptr};
const TunerV6 ncclTunerPlugin_v7 = {{NAME, begin_v5, choose, finish}, nullptr};
}
