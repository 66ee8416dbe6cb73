#include "table.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace chorale::job {

namespace {

constexpr std::string_view FORMAT = "chorale-table/1";
constexpr off_t MOST_BYTES = 1 << 28;

[[noreturn]] void damaged(const std::string& what) {
    throw std::runtime_error("the tuning table is damaged: " + what + "; write it again: chorale table write");
}

std::string_view line_of(std::string_view& rest) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) damaged("it ends too early");
    const auto line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    return line;
}

// Parses an integer from -1 to 2^63 - 1.
template <typename Number>
Number number_in(std::istringstream& line) {
    Number number;
    if (!(line >> number)) damaged("a line of its index has no number where one must be");
    return number;
}

struct Reader {
    Table& table;
    std::string_view blobs;

    void read(std::string_view index) {
        while (!index.empty()) {
            std::istringstream line{std::string(line_of(index))};
            std::string kind;
            line >> kind;
            if (kind == "ranks") table.ranks = number_in<int>(line);
            else if (kind == "program") program(line);
            else if (kind == "words") words(line);
            else if (kind == "entry") entry(line);
            else damaged("a line of its index begins with an unknown word");
        }
    }

    void program(std::istringstream& line) {
        if (number_in<size_t>(line) != table.programs.size()) damaged("its programs are not in order");
        line >> table.programs.emplace_back().digest;  // the rest of the line repeats information of the entries
    }

    void words(std::istringstream& line) {
        const auto number = number_in<size_t>(line);
        const int rank = number_in<int>(line);
        const auto start = number_in<size_t>(line), size = number_in<size_t>(line);
        if (number >= table.programs.size() || start > blobs.size() || size > blobs.size() - start)
            damaged("words lie outside of it");
        table.programs[number].packed[rank] = blobs.substr(start, size);
    }

    void entry(std::istringstream& line) {
        Entry entry;
        std::string group;
        line >> entry.collective >> entry.dtype >> group;
        entry.everyone = group == "*";
        if (!entry.everyone) {
            std::istringstream ranks(group);
            do entry.group.push_back(number_in<int>(ranks));
            while (ranks.get() == ',');
        }
        entry.root = number_in<int>(line);
        entry.min_bytes = number_in<int64_t>(line);
        entry.max_bytes = number_in<int64_t>(line);
        entry.program = number_in<int>(line);
        if (entry.program < -1 || entry.program >= int(table.programs.size())) damaged("an entry names no program");
        table.entries.push_back(std::move(entry));
    }
};

template <typename Holds>
std::vector<const Entry*> those(const std::vector<const Entry*>& entries, Holds holds) {
    std::vector<const Entry*> result;
    for (const Entry* entry : entries)
        if (holds(*entry)) result.push_back(entry);
    return result;
}

}  // namespace

Table parse_table(std::string_view data) {
    if (data.substr(0, FORMAT.size() + 1) != std::string(FORMAT) + "\n")
        throw std::runtime_error("a tuning table must begin with the line " + std::string(FORMAT));
    line_of(data);
    std::istringstream lengths{std::string(line_of(data))};
    const auto header = number_in<size_t>(lengths), index = number_in<size_t>(lengths),
               blobs = number_in<size_t>(lengths);
    Table table;
    lengths >> table.digest;
    const bool fits = header <= data.size() && index <= data.size() - header && blobs == data.size() - header - index;
    if (!fits) damaged("it has another length than its second line says");
    Reader{table, data.substr(header + index)}.read(data.substr(header, index));
    return table;
}

std::string table_digest(const std::string& path) {
    struct stat status{};
    std::ifstream file;  // only regular files are opened, because opening a pipe would block
    if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size <= MOST_BYTES)
        file.open(path, std::ios::binary);
    std::string content(file.is_open() ? size_t(status.st_size) : 0, '\0');
    if (!file.is_open() || !file.read(content.data(), std::streamsize(content.size())))
        throw std::runtime_error("a tuning table must be a regular file of at most 256 MiB that can be read");
    std::string_view rest = content;
    if (line_of(rest) != FORMAT) throw std::runtime_error("a tuning table must begin with the line " + std::string(FORMAT));
    std::istringstream second{std::string(line_of(rest))};
    std::string header, index, blobs, digest;
    second >> header >> index >> blobs >> digest;
    return digest;
}

std::vector<int64_t> Table::words(int program, int rank) const {
    const auto at = programs.at(program).packed.find(rank);
    if (at == programs[program].packed.end()) damaged("a program has no words for rank " + std::to_string(rank));
    std::vector<int64_t> numbers;
    uint64_t value = 0;
    int shift = 0;
    for (const unsigned char byte : at->second) {
        if (shift > 63) damaged("a number has more than 64 bits");
        value |= uint64_t(byte & 0x7f) << shift;
        shift += 7;
        if (byte & 0x80) continue;
        numbers.push_back(int64_t(value >> 1) ^ -int64_t(value & 1));
        value = shift = 0;
    }
    if (shift) damaged("words end inside a number");
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
    if (entries_.empty()) return {nullptr, GROUP};
    auto left = those(entries_, [&](const Entry& entry) { return entry.collective == collective; });
    if (left.empty()) return {nullptr, COLLECTIVE};
    left = those(left, [&](const Entry& entry) { return entry.root == root; });
    if (left.empty()) return {nullptr, ROOT};
    left = those(left, [&](const Entry& entry) { return entry.dtype == dtype || entry.dtype == "any"; });
    if (left.empty()) return {nullptr, DTYPE};
    left = those(left, [&](const Entry& entry) {
        return entry.min_bytes <= size_bytes && (entry.max_bytes < 0 || size_bytes <= entry.max_bytes);
    });
    if (left.empty()) return {nullptr, SIZE};
    const Entry* best = left.front();
    for (const Entry* entry : left)
        if (best->dtype == "any" && entry->dtype != "any") best = entry;
    return best->program < 0 ? Decision{nullptr, LIBRARY} : Decision{best, nullptr};
}

}  // namespace chorale::job
