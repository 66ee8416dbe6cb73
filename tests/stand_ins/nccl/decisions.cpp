// How the stand-in chooses: a model of costs that is wrong on purpose, variables, and tuner plug-ins, with the log lines of
// the version that it plays.
#include <algorithm>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <dlfcn.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "types.hpp"

namespace stand_in {

namespace {

const char* const COLLECTIVE_NAMES[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
const char* const ALGORITHM_NAMES[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
const char* const VARIABLE_NAMES[] = {"Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"};
const char* const PROTOCOL_NAMES[] = {"LL", "LL128", "SIMPLE"};
// Start in microseconds and bytes a microsecond of four channels, as the library reckons and as it is.
struct Rate {
    double start_us, own_pace, true_pace;
};
const Rate RATES[ALGORITHMS][PROTOCOLS] = {
    {{300, 400, 60}, {400, 700, 90}, {700, 900, 120}},    // tree
    {{500, 300, 500}, {550, 600, 900}, {900, 1000, 400}}, // ring
    {}, {},
    {{}, {}, {600, 2000, 1500}},  // switches
    {{}, {}, {800, 1500, 800}},
    {{}, {}, {700, 500, 300}},
};

FILE* log_file() {
    static FILE* const file = [] {
        const char* path = getenv("NCCL_DEBUG_FILE");
        if (path == nullptr) return stdout;
        std::string name;
        for (const char* at = path; *at; at++) {
            if (*at == '%' && at[1] == 'p') name += std::to_string(getpid()), at++;
            else if (*at == '%' && at[1] == 'h') name += "host", at++;
            else name += *at;
        }
        FILE* opened = fopen(name.c_str(), "w");
        if (opened != nullptr) setlinebuf(opened);
        return opened == nullptr ? stdout : opened;
    }();
    return file;
}

unsigned long wanted_subsystems() {
    const char* text = getenv("NCCL_DEBUG_SUBSYS");
    if (text == nullptr) return INIT | ENV;
    const std::pair<const char*, unsigned long> known[] = {
        {"INIT", INIT}, {"COLL", COLL}, {"TUNING", TUNING}, {"ENV", ENV}, {"ALL", ALL}};
    unsigned long wanted = 0;
    for (const auto& [name, flag] : known)
        if (strcasestr(text, name) != nullptr) wanted |= flag;
    return wanted;
}

bool has(Collective collective, int algorithm) {
    const bool shards = collective == ALLGATHER || collective == REDUCE_SCATTER;
    const bool switches = getenv("STAND_IN_SWITCHES") != nullptr;
    switch (algorithm) {
        case 0: return collective == ALLREDUCE;
        case 1: return true;
        case 4: return switches && version().is_from(17) && (shards || collective == ALLREDUCE);
        case 5: return switches && version().is_from(18) && collective == ALLREDUCE;
        case 6: return version().is_from(23) && shards;
        default: return false;  // no network adds up
    }
}

// Whether NCCL_ALGO or NCCL_PROTO names one of them: `ring,tree`, `^tree`, and from 2.24 on `allreduce:ring;allgather:ring`.
bool is_named(const char* text, Collective collective, const char* name) {
    if (text == nullptr) return true;
    std::string list = text;
    if (list.find(':') != std::string::npos && version().is_from(24)) {
        std::string rest = list, own;
        for (size_t start = 0; start < rest.size();) {
            size_t end = std::min(rest.find(';', start), rest.size());
            const std::string part = rest.substr(start, end - start);
            const size_t colon = part.find(':');
            if (colon != std::string::npos && strcasecmp(part.substr(0, colon).c_str(), COLLECTIVE_NAMES[collective]) == 0)
                own = part.substr(colon + 1);
            start = end + 1;
        }
        if (own.empty()) return true;
        list = own;
    }
    const bool excludes = list[0] == '^';
    bool is_there = false;
    for (size_t start = excludes; start <= list.size();) {
        const size_t end = std::min(list.find(',', start), list.size());
        is_there |= strcasecmp(list.substr(start, end - start).c_str(), name) == 0;
        start = end + 1;
    }
    return is_there != excludes;
}

// Whether algSelection takes a name of NCCL's registry: `,` or, `+` and, `^` not, each a beginning of the name.
bool is_selected(const std::string& selection, const std::string& name) {
    for (size_t start = 0; start <= selection.size();) {
        const size_t end = std::min(selection.find(',', start), selection.size());
        bool takes = end > start;
        for (size_t at = start; at < end;) {
            const size_t stop = std::min(selection.find('+', at), end);
            const bool excludes = selection[at] == '^';
            const std::string tag = selection.substr(at + excludes, stop - at - excludes);
            takes &= (strncasecmp(name.c_str(), tag.c_str(), tag.size()) == 0) != excludes;
            at = stop + 1;
        }
        if (takes) return true;
        start = end + 1;
    }
    return false;
}

struct Table2 {
    const char* name;
    int (*init)(size_t, size_t, void (*)(int, unsigned long, const char*, int, const char*, ...), void**);
    int (*choose)(void*, int, size_t, int, int, int, int*, int*, int*);
    int (*finish)(void*);
};
struct Table3 {
    const char* name;
    int (*init)(size_t, size_t, void (*)(int, unsigned long, const char*, int, const char*, ...), void**);
    int (*choose)(void*, int, size_t, int, float**, int, int, int*);
    int (*finish)(void*);
};
struct Table4 {
    const char* name;
    int (*init)(size_t, size_t, void (*)(int, unsigned long, const char*, int, const char*, ...), void**);
    int (*choose)(void*, int, size_t, int, float**, int, int, int, int*);
    int (*finish)(void*);
};
struct Table6 {
    const char* name;
    int (*init)(void**, uint64_t, size_t, size_t, void (*)(int, unsigned long, const char*, int, const char*, ...), void*, void*);
    int (*choose)(void*, int, size_t, int, float**, int, int, int, int*);
    int (*finish)(void*);
    int (*chunk)(void*, int, size_t, int, int, int, size_t*);  // from 6 on
};

int newest_interface() {
    const std::pair<int, int> known[] = {{33, 7}, {30, 6}, {28, 5}, {25, 4}, {22, 3}, {20, 2}};
    const long newest = number("STAND_IN_INTERFACE", 7);
    for (const auto& [minor, interface] : known)
        if (version().is_from(minor) && interface <= newest) return interface;
    return 0;
}

size_t nodes() { return size_t(number("STAND_IN_NODES", 1)); }

}  // namespace

Version version() {
    static const Version played = [] {
        Version found{2, 32, 3};
        if (const char* text = getenv("STAND_IN_VERSION")) sscanf(text, "%d.%d.%d", &found.major, &found.minor, &found.patch);
        return found;
    }();
    return played;
}

void log(int level, unsigned long flags, const char*, int, const char* format, ...) {
    static const int wanted = [] {
        const char* text = getenv("NCCL_DEBUG");
        return text == nullptr ? 0 : strcasecmp(text, "INFO") == 0 ? LEVEL_INFO : LEVEL_WARN;
    }();
    static const unsigned long subsystems = wanted_subsystems();
    if (level > wanted || (level == LEVEL_INFO && (flags & subsystems) == 0)) return;
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    const char* where = level == LEVEL_INFO ? "INFO" : "WARN";
    fprintf(log_file(), "stand-in:%d:%ld [0] NCCL %s %s\n", getpid(), syscall(SYS_gettid), where, text);
}

const char* variable(const char* name) {
    const char* text = getenv(name);
    if (text != nullptr && strncmp(name, "NCCL_", 5) == 0)
        log(LEVEL_INFO, ENV, __FILE__, __LINE__, "%s set by environment to %s", name, text);
    return text;
}

long number(const char* name, long otherwise) {
    const char* text = getenv(name);
    const char* ignored = getenv("STAND_IN_IGNORES");
    if (text == nullptr || (ignored != nullptr && strcmp(ignored, name) == 0)) return otherwise;
    char* end = nullptr;
    const long value = strtol(text, &end, 0);
    if (*text == '\0' || *end != '\0') {
        log(LEVEL_INFO, ALL, __FILE__, __LINE__, "Invalid value %s for %s, using default %ld.", text, name, otherwise);
        return otherwise;
    }
    if (strncmp(name, "NCCL_", 5) == 0)
        log(LEVEL_INFO, ENV, __FILE__, __LINE__, "%s set by environment to %ld.", name, value);
    return value;
}

// As NCCL does: what the first communicator of a process finds holds for all.
void load_plugin(Communicator& communicator) {
    static std::once_flag once;
    static Plugin found;
    std::call_once(once, [] {
        const char* path = variable("NCCL_TUNER_PLUGIN");
        void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            log(LEVEL_INFO, INIT | TUNING, __FILE__, __LINE__,
                "TUNER/Plugin: Could not find: %s. Using internal tuner plugin.", path == nullptr ? "libnccl-tuner.so" : path);
            return;
        }
        for (int interface = newest_interface(); interface >= 2; interface--) {
            const std::string name = "ncclTunerPlugin_v" + std::to_string(interface);
            const void* table = dlsym(library, name.c_str());
            if (table == nullptr) {
                log(LEVEL_INFO, INIT | TUNING, __FILE__, __LINE__, "TUNER/Plugin: Failed to find %s symbol.", name.c_str());
                continue;
            }
            found.interface = interface;
            found.table = table;
            log(LEVEL_INFO, INIT | TUNING, __FILE__, __LINE__, "TUNER/Plugin: Using %s (v%d)",
                *static_cast<const char* const*>(table), interface);
            return;
        }
    });
    communicator.plugin = found;
    Plugin& plugin = communicator.plugin;
    if (plugin.table == nullptr) return;
    const size_t ranks = size_t(communicator.ranks);
    if (plugin.interface >= 5)
        static_cast<const Table6*>(plugin.table)->init(&plugin.context, 1, ranks, nodes(), log, nullptr, nullptr);
    else
        static_cast<const Table3*>(plugin.table)->init(ranks, nodes(), log, &plugin.context);
}

void unload_plugin(Communicator& communicator) {
    if (communicator.plugin.table != nullptr)
        static_cast<const Table3*>(communicator.plugin.table)->finish(communicator.plugin.context);
}

int decide(Communicator& communicator, Collective collective, size_t vector_bytes, size_t logged_bytes, const CallConfig* config,
           Decision& decision) {
    const char* const registry[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLSTREE", "PAT"};
    const char* algorithms = getenv("NCCL_ALGO");
    const char* protocols = getenv("NCCL_PROTO");
    float costs[ALGORITHMS][PROTOCOLS];
    for (int a = 0; a < ALGORITHMS; a++)
        for (int p = 0; p < PROTOCOLS; p++) {
            const bool is_there = has(collective, a) && RATES[a][p].own_pace > 0 &&
                                  is_named(algorithms, collective, VARIABLE_NAMES[a]) &&
                                  is_named(protocols, collective, PROTOCOL_NAMES[p]);
            const bool is_taken = config == nullptr || config->selection == nullptr ||
                                  is_selected(config->selection, std::string(registry[a]) + "_" + PROTOCOL_NAMES[p]);
            costs[a][p] = is_there && is_taken ? float(RATES[a][p].start_us + double(vector_bytes) / RATES[a][p].own_pace) : -1.0f;
        }
    const Plugin& plugin = communicator.plugin;
    int channels = 0, chosen_a = -1, chosen_p = -1;
    float** const table = reinterpret_cast<float**>(costs);
    if (plugin.interface == 2)
        static_cast<const Table2*>(plugin.table)
            ->choose(plugin.context, collective, vector_bytes, 0, has(collective, 4), 1, &chosen_a, &chosen_p, &channels);
    else if (plugin.interface == 3)
        static_cast<const Table3*>(plugin.table)
            ->choose(plugin.context, collective, vector_bytes, 1, table, ALGORITHMS, PROTOCOLS, &channels);
    else if (plugin.interface >= 4 && plugin.interface < 5)
        static_cast<const Table4*>(plugin.table)
            ->choose(plugin.context, collective, vector_bytes, 1, table, ALGORITHMS, PROTOCOLS, 0, &channels);
    else if (plugin.interface >= 5)
        static_cast<const Table6*>(plugin.table)
            ->choose(plugin.context, collective, vector_bytes, 1, table, ALGORITHMS, PROTOCOLS, 0, &channels);
    if (chosen_a < 0)
        for (int a = 0; a < ALGORITHMS; a++)
            for (int p = 0; p < PROTOCOLS; p++)
                if (costs[a][p] >= 0 && (chosen_a < 0 || costs[a][p] < costs[chosen_a][chosen_p])) chosen_a = a, chosen_p = p;
    const char* name = COLLECTIVE_NAMES[collective];
    if (config != nullptr && config->max_ctas > 0) channels = config->max_ctas;
    if (chosen_a < 0 && config != nullptr && !config->is_forced) {
        log(LEVEL_INFO, TUNING, __FILE__, __LINE__, "algSelection: selected set unavailable for %s; falling back to automatic selection", name);
        return decide(communicator, collective, vector_bytes, logged_bytes, nullptr, decision);
    }
    if (chosen_a < 0 && config != nullptr) {
        log(LEVEL_WARN, ALL, __FILE__, __LINE__, "algSelection: no algorithm in the selected set is available for %s", name);
        return INVALID_ARGUMENT;
    }
    if (chosen_a < 0) {
        log(LEVEL_WARN, ALL, __FILE__, __LINE__, "Error : no algorithm/protocol available for function %s with datatype ncclFloat32.%s%s",
            name, algorithms ? " NCCL_ALGO was set to " : "", algorithms ? algorithms : "");
        return INTERNAL_ERROR;
    }
    const int most = std::max(1, int(std::min<size_t>(vector_bytes / 1024, 64)));
    const int used = std::min({channels > 0 ? channels : communicator.channels, communicator.channels, most});
    const Rate& rate = RATES[chosen_a][chosen_p];
    const double own_us = rate.start_us + double(vector_bytes) / rate.own_pace;
    static const double slowness = double(number("STAND_IN_SLOWNESS", 1));
    const double true_us = rate.start_us / 2 + double(vector_bytes) / (rate.true_pace * used / 4);
    decision = {chosen_a, chosen_p, used, own_us, slowness * true_us};
    if (plugin.interface >= 6) {
        static const long buffer = number("NCCL_BUFFSIZE", 1 << 22);
        size_t chunk = size_t(buffer) / 8;
        static_cast<const Table6*>(plugin.table)->chunk(plugin.context, collective, vector_bytes, chosen_a, chosen_p, used, &chunk);
        if (chunk > size_t(buffer) / 2)
            log(LEVEL_INFO, TUNING, __FILE__, __LINE__, "%s: tuner chunk size %zu exceeds buffer max %ld, clamping", name, chunk, buffer / 2);
    }
    if (!version().is_from(24))
        log(LEVEL_INFO, TUNING, __FILE__, __LINE__, "%zu Bytes -> Algo %d proto %d time %f", logged_bytes, chosen_a, chosen_p, own_us);
    else if (communicator.rank == 0)
        log(LEVEL_INFO, TUNING, __FILE__, __LINE__, "%s: %zu Bytes -> Algo %s proto %s channel{Lo..Hi}={0..%d}%s", name, logged_bytes,
            ALGORITHM_NAMES[chosen_a], PROTOCOL_NAMES[chosen_p], used - 1, version().is_from(31) ? " cgaClusterSize 4" : "");
    return SUCCESS;
}

}  // namespace stand_in
