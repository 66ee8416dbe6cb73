#include "table_lookup.h"

#include <cstdio>
#include <exception>

#include "table.hpp"

int chorale_table_find(const char* path, const int* group, int ranks, const char* collective, int root,
                       const char* dtype, int64_t size_bytes, char* answer, int room) {
    try {
        const auto table = chorale::job::parse_table(chorale::job::read_regular(path, "a tuning table"));
        const chorale::job::GroupEntries entries(table, std::vector<int>(group, group + ranks));
        const auto found = entries.find(collective, root, dtype, size_bytes);
        std::snprintf(answer, room, "%s", found.entry ? table.programs[found.entry->program].digest.c_str() : found.reason);
        return found.entry != nullptr;
    } catch (const std::exception& error) {
        std::snprintf(answer, room, "%s", error.what());
        return -1;
    }
}
