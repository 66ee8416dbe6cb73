#include "table_lookup.h"

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "table.hpp"

int chorale_table_find(const char* path, const int* group, int ranks, const char* collective, int root,
                       const char* dtype, int64_t size_bytes, char* answer, int room) {
    try {
        std::ifstream file(path, std::ios::binary);
        const std::string content(std::istreambuf_iterator<char>(file), {});
        const auto table = chorale::job::parse_table(content);
        const chorale::job::GroupEntries entries(table, std::vector<int>(group, group + ranks));
        const auto found = entries.find(collective, root, dtype, size_bytes);
        std::snprintf(answer, room, "%s", found.entry ? table.programs[found.entry->program].digest.c_str() : found.reason);
        return found.entry != nullptr;
    } catch (const std::exception& error) {
        std::snprintf(answer, room, "%s", error.what());
        return -1;
    }
}
