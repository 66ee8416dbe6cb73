// A table of choices among NCCL's algorithms, read from CSV.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace chorale::nccl {

constexpr int ANY = -1;

// A row: what is chosen for a collective in a range of sizes, both ends included. ANY matches all; channels and bytes of
// a chunk: NCCL's own where they are below 1.
struct Row {
    int collective, algorithm, protocol, channels;
    size_t min_bytes, max_bytes;
    int nodes, ranks, operations, registered;
    size_t chunk_bytes;
};

// What a row is looked for by.
struct Call {
    int collective;
    size_t size_bytes;
    int nodes, ranks, operations, registered;
};

// Reads a line. nullopt for an empty one and a comment, and for one that is wrong, which `refuse` is told.
std::optional<Row> row_of(const std::string& line, const std::function<void(const std::string&)>& refuse);

bool matches(const Row& row, const Call& call);

const char* collective_name(int collective);
const char* algorithm_name(int algorithm);
const char* protocol_name(int protocol);

}  // namespace chorale::nccl
