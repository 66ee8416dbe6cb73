#include "table.hpp"

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <initializer_list>

namespace chorale::nccl {

namespace {

using Names = std::vector<std::string>;

// Names, in the order of NCCL's numbers for them.
const Names COLLECTIVES = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
const Names ALGORITHMS = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
const Names PROTOCOLS = {"ll", "ll128", "simple"};
constexpr size_t LEAST_FIELDS = 8, MOST_FIELDS = 11;

struct Wrong {
    std::string what;
};

std::string trimmed(const std::string& text) {
    const size_t first = text.find_first_not_of(" \t\r");
    return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::vector<std::string> fields_of(const std::string& line) {
    std::vector<std::string> fields;
    size_t start = 0, comma;
    do {
        comma = line.find(',', start);
        fields.push_back(trimmed(line.substr(start, comma == std::string::npos ? comma : comma - start)));
        start = comma + 1;
    } while (comma != std::string::npos);
    return fields;
}

int number_among(const Names& names, const std::string& name, const char* kind) {
    for (size_t at = 0; at < names.size(); at++)
        if (names[at] == name) return int(at);
    throw Wrong{std::string(kind) + " '" + name + "' is not known"};
}

size_t size_of(const std::string& text) {
    char* end = nullptr;
    errno = 0;
    const unsigned long long size = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        throw Wrong{"'" + text + "' is no number of bytes"};
    return size_t(size);
}

int integer_of(const std::string& text) {
    char* end = nullptr;
    errno = 0;
    const long number = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || errno != 0 || number < ANY || number > INT_MAX)
        throw Wrong{"'" + text + "' is no number from -1"};
    return int(number);
}

Row parsed(const std::vector<std::string>& fields) {
    if (fields.size() < LEAST_FIELDS || fields.size() > MOST_FIELDS)
        throw Wrong{std::to_string(fields.size()) + " fields, not 8 to 11"};
    Row row{};
    row.collective = number_among(COLLECTIVES, fields[0], "collective");
    row.min_bytes = size_of(fields[1]);
    row.max_bytes = size_of(fields[2]);
    row.algorithm = number_among(ALGORITHMS, fields[3], "algorithm");
    row.protocol = number_among(PROTOCOLS, fields[4], "protocol");
    row.channels = integer_of(fields[5]);
    row.nodes = integer_of(fields[6]);
    row.ranks = integer_of(fields[7]);
    row.operations = fields.size() > 8 ? integer_of(fields[8]) : ANY;
    row.registered = fields.size() > 9 ? integer_of(fields[9]) : ANY;
    row.chunk_bytes = fields.size() > 10 ? size_of(fields[10]) : 0;
    return row;
}

const char* name_of(const Names& names, int number) {
    return number >= 0 && size_t(number) < names.size() ? names[size_t(number)].c_str() : "another";
}

bool fits(int wanted, int there) { return wanted == ANY || there == ANY || wanted == there; }

}  // namespace

std::optional<Row> row_of(const std::string& line, const std::function<void(const std::string&)>& refuse) {
    const std::string text = trimmed(line);
    if (text.empty() || text[0] == '#') return std::nullopt;
    try {
        return parsed(fields_of(text));
    } catch (const Wrong& wrong) {
        refuse(wrong.what);
        return std::nullopt;
    }
}

bool matches(const Row& row, const Call& call) {
    return row.collective == call.collective && row.min_bytes <= call.size_bytes && call.size_bytes <= row.max_bytes &&
           fits(row.nodes, call.nodes) && fits(row.ranks, call.ranks) && fits(row.operations, call.operations) &&
           fits(row.registered, call.registered);
}

const char* collective_name(int collective) { return name_of(COLLECTIVES, collective); }
const char* algorithm_name(int algorithm) { return name_of(ALGORITHMS, algorithm); }
const char* protocol_name(int protocol) { return name_of(PROTOCOLS, protocol); }

}  // namespace chorale::nccl
