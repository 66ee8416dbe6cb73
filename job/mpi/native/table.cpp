#include "table.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>

namespace chorale::job {

namespace {

constexpr const char* FORMAT = "chorale-table/1";
constexpr off_t MOST_BYTES = 1 << 28;

}  // namespace

Table parse_table(const std::string& content) {
    std::istringstream text(content);
    Table table;
    text >> table.digest >> table.ranks;
    for (std::string kind; text >> kind;) {
        size_t count = 0;
        if (kind == "program") {
            text >> table.programs.emplace_back().digest;
        } else if (kind == "words") {
            text >> count;
            text.ignore();
            text.read(table.programs.back().packed.emplace_back(count, '\0').data(), std::streamsize(count));
        } else {
            Entry& entry = table.entries.emplace_back();
            text >> entry.collective >> entry.dtype >> entry.root >> entry.min_bytes >> entry.max_bytes >> entry.program;
            text >> count;
            entry.everyone = count == 0;
            entry.group.resize(count);
            for (int& rank : entry.group) text >> rank;
        }
    }
    return table;
}

std::string table_digest(const std::string& path) {
    struct stat status{};
    std::ifstream file;  // only regular files are opened, because opening a pipe would block
    if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size <= MOST_BYTES) file.open(path);
    if (!file.is_open())
        throw std::runtime_error("a tuning table must be a regular file of at most 256 MiB that can be read");
    std::string format, header, index, blobs, digest;
    if (!std::getline(file, format) || format != FORMAT)
        throw std::runtime_error("a tuning table must begin with the line " + std::string(FORMAT));
    file >> header >> index >> blobs >> digest;
    return digest;
}

std::vector<int64_t> Table::words(int program, int rank) const {
    std::vector<int64_t> numbers;
    uint64_t value = 0;
    int shift = 0;
    for (const unsigned char byte : programs.at(program).packed.at(rank)) {
        value |= uint64_t(byte & 0x7f) << shift;
        shift += 7;
        if (byte & 0x80) continue;
        numbers.push_back(int64_t(value >> 1) ^ -int64_t(value & 1));
        value = shift = 0;
    }
    return numbers;
}

GroupEntries::GroupEntries(const Table& table, const std::vector<int>& group) {
    bool everyone = int(group.size()) == table.ranks;
    for (size_t i = 0; i < group.size(); i++) everyone = everyone && group[i] == int(i);
    for (const Entry& entry : table.entries)
        if (entry.everyone ? everyone : entry.group == group) entries_.push_back(&entry);
}

bool GroupEntries::has(std::string_view collective) const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const Entry* entry) { return entry->collective == collective; });
}

Decision GroupEntries::find(std::string_view collective, int root, std::string_view dtype, int64_t size_bytes) const {
    struct Test {
        const char* reason;
        std::function<bool(const Entry&)> holds;
    };
    const Test tests[] = {
        {COLLECTIVE, [&](const Entry& entry) { return entry.collective == collective; }},
        {ROOT, [&](const Entry& entry) { return entry.root == root; }},
        {DTYPE, [&](const Entry& entry) { return entry.dtype == dtype || entry.dtype == "any"; }},
        {SIZE, [&](const Entry& entry) {
             return entry.min_bytes <= size_bytes && (entry.max_bytes < 0 || size_bytes <= entry.max_bytes);
         }}};
    if (entries_.empty()) return {nullptr, GROUP};
    auto left = entries_;
    for (const Test& test : tests) {
        const auto fails = [&](const Entry* entry) { return !test.holds(*entry); };
        left.erase(std::remove_if(left.begin(), left.end(), fails), left.end());
        if (left.empty()) return {nullptr, test.reason};
    }
    const auto exact = std::find_if(left.begin(), left.end(), [](const Entry* entry) { return entry->dtype != "any"; });
    const Entry* best = exact == left.end() ? left.front() : *exact;
    return best->program < 0 ? Decision{nullptr, LIBRARY} : Decision{best, nullptr};
}

}  // namespace chorale::job
