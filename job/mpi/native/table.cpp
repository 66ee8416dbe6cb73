#include "table.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace chorale::job {

namespace {

constexpr std::string_view FORMAT = "chorale-table/1";
constexpr off_t MOST_BYTES = 1 << 28;

constexpr std::array<uint32_t, 64> ROUND_CONSTANTS = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

uint32_t rotated(uint32_t value, int bits) { return value >> bits | value << (32 - bits); }

// Adds all complete blocks of 64 bytes to the state of SHA-256.
void add_blocks(State& state, std::string_view data) {
    for (size_t at = 0; at + 64 <= data.size(); at += 64) {
        const auto* block = reinterpret_cast<const unsigned char*>(data.data()) + at;
        std::array<uint32_t, 64> words{};
        for (int i = 0; i < 16; i++)
            words[i] = uint32_t(block[4 * i]) << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            const uint32_t a = words[i - 15], b = words[i - 2];
            words[i] = words[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + words[i - 7] +
                       (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
        }
        auto [a, b, c, d, e, f, g, h] = state;
        for (int i = 0; i < 64; i++) {
            const uint32_t first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) +
                                   ROUND_CONSTANTS[i] + words[i];
            const uint32_t second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
        }
        const State added = {a, b, c, d, e, f, g, h};
        for (int i = 0; i < 8; i++) state[i] += added[i];
    }
}

std::string sha256_hex(std::string_view data) {
    State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::string last(data.substr(data.size() / 64 * 64));
    last += '\x80';
    while (last.size() % 64 != 56) last += '\0';
    for (int shift = 56; shift >= 0; shift -= 8) last += char(uint64_t(data.size()) * 8 >> shift & 0xff);
    add_blocks(state, data);
    add_blocks(state, last);
    std::string text;
    for (const uint32_t word : state)
        for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
    return text;
}

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
    if (!fits || sha256_hex(data) != table.digest) damaged("it has another checksum than its second line says");
    Reader{table, data.substr(header + index)}.read(data.substr(header, index));
    return table;
}

std::string read_regular(const std::string& path, const char* what) {
    struct stat status{};
    std::ifstream file;  // only regular files are opened, because opening a pipe would block
    if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size <= MOST_BYTES)
        file.open(path, std::ios::binary);
    std::string text(file.is_open() ? size_t(status.st_size) : 0, '\0');
    if (!file.is_open() || !file.read(text.data(), std::streamsize(text.size())))
        throw std::runtime_error(std::string(what) + " must be a regular file of at most 256 MiB that can be read");
    return text;
}

Table read_table(const std::string& path) { return parse_table(read_regular(path, "a tuning table")); }

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
