// A table of choices among NCCL's algorithms, read from CSV.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace chorale::nccl {

constexpr int ANY = -1;

// A row of the table: the choice for a collective in a range of sizes, including both ends. ANY matches everything. If
// channels or chunk_bytes is below 1, NCCL chooses it.
struct Row {
    int collective, algorithm, protocol, channels;
    size_t min_bytes, max_bytes;
    int nodes, ranks, operations, registered;
    size_t chunk_bytes;
};

// The properties of a call that determine which rows match it.
struct Call {
    int collective;
    size_t size_bytes;
    int nodes, ranks, operations, registered;
};

// Reads a line. Returns nullopt for empty lines, comments and invalid lines. If a line is invalid, calls `refuse` with
// the reason.
std::optional<Row> row_of(const std::string& line, const std::function<void(const std::string&)>& refuse);

bool matches(const Row& row, const Call& call);

const char* collective_name(int collective);
const char* algorithm_name(int algorithm);
const char* protocol_name(int protocol);

}  // namespace chorale::nccl
