#include "counts.hpp"

#include <fstream>
#include <iostream>
#include <locale>
#include <sstream>

namespace chorale::job {

namespace {

void add(Count& count, int64_t size_bytes, double seconds) {
    count.calls++;
    count.bytes += size_bytes;
    count.seconds += seconds;
}

// Of a text without quotes and control characters.
std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::string number(double value) {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text.precision(9);
    text << value;
    return text.str();
}

}  // namespace

void Counts::program(const std::string& digest, const char* collective, int64_t size_bytes, double seconds) {
    const std::lock_guard guard(lock_);
    add(programs_[{digest, collective}], size_bytes, seconds);
}

void Counts::fallback(const char* reason, const char* collective, int64_t size_bytes) {
    const std::lock_guard guard(lock_);
    add(fallbacks_[{reason, collective}], size_bytes, 0);
}

void Counts::way(const char* collective, const char* way, int64_t size_bytes, double seconds) {
    const std::lock_guard guard(lock_);
    add(ways_[{collective, way}], size_bytes, seconds);
}

void Counts::exchange(int64_t size_bytes, double seconds) {
    const std::lock_guard guard(lock_);
    add(exchanges_, size_bytes, seconds);
}

void Counts::call(const char* collective, const char* dtype, const std::string& group, int root, int64_t size_bytes,
                  double seconds) {
    const std::lock_guard guard(lock_);
    add(calls_[{collective, dtype, group, root, size_bytes}], size_bytes, seconds);
}

std::string Counts::report(const std::string& table, int ranks) const {
    const std::lock_guard guard(lock_);
    std::string text = "{\"table\": " + (table.empty() ? "null" : quoted(table)) +
                       ", \"ranks\": " + std::to_string(ranks);
    const auto list = [&](const char* name, const std::map<Key, Count>& counts, const char* first, const char* second,
                          bool is_timed) {
        text += ", " + quoted(name) + ": [";
        const char* comma = "";
        for (const auto& [key, count] : counts) {
            text += comma + ("{" + quoted(first) + ": " + quoted(key.first)) + ", " + quoted(second) + ": " +
                    quoted(key.second) + ", \"calls\": " + std::to_string(count.calls) +
                    ", \"bytes\": " + std::to_string(count.bytes) +
                    (is_timed ? ", \"seconds\": " + number(count.seconds) : "") + "}";
            comma = ", ";
        }
        text += "]";
    };
    list("programs", programs_, "digest", "collective", true);
    list("within_nodes", ways_, "collective", "by", true);
    list("fallbacks", fallbacks_, "reason", "collective", false);
    return text + ", \"exchanges\": {\"calls\": " + std::to_string(exchanges_.calls) +
           ", \"bytes\": " + std::to_string(exchanges_.bytes) + ", \"seconds\": " + number(exchanges_.seconds) +
           "}}\n";
}

std::string Counts::record(int ranks) const {
    const std::lock_guard guard(lock_);
    std::string text = "{\"format\": \"chorale-record/1\", \"ranks\": " + std::to_string(ranks) + ", \"calls\": [";
    const char* comma = "\n";
    for (const auto& [key, count] : calls_) {
        const auto& [collective, dtype, group, root, size_bytes] = key;
        text += comma + ("{\"collective\": " + quoted(collective)) + ", \"dtype\": " + quoted(dtype) +
                ", \"group\": " + group + ", \"root\": " + (root < 0 ? "null" : std::to_string(root)) +
                ", \"size_bytes\": " + std::to_string(size_bytes) + ", \"calls\": " + std::to_string(count.calls) +
                ", \"seconds\": " + number(count.seconds) + "}";
        comma = ",\n";
    }
    return text + "\n]}\n";
}

bool write_to(const std::string& name, const std::string& text) {
    if (name == "-") return bool(std::cerr << text << std::flush);
    std::ofstream file(name);
    file << text;
    file.close();
    return bool(file);
}

}  // namespace chorale::job
