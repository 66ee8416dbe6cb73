#include "counts.hpp"

#include <locale>
#include <sstream>

namespace chorale::job {

namespace {

// Returns a stream for JSON that ignores the program's locale. Texts need no escapes: they have no quotes or controls.
std::ostringstream json() {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text.precision(9);
    return text;
}

}  // namespace

std::string Counts::list(const Pairs& counts, const char* first, const char* second, bool is_timed) {
    auto text = json();
    const char* comma = "";
    for (const auto& [key, count] : counts) {
        text << comma << "{\"" << first << "\": \"" << key.first << "\", \"" << second << "\": \"" << key.second
             << "\", \"calls\": " << count.calls << ", \"bytes\": " << count.bytes;
        if (is_timed) text << ", \"seconds\": " << count.seconds;
        text << "}";
        comma = ", ";
    }
    return "[" + text.str() + "]";
}

std::string Counts::report(const std::string& table, int ranks) const {
    const std::lock_guard guard(lock_);
    auto text = json();
    text << "{\"table\": " << (table.empty() ? "null" : "\"" + table + "\"") << ", \"ranks\": " << ranks
         << ", \"programs\": " << list(programs_, "digest", "collective", true)
         << ", \"within_nodes\": " << list(ways_, "collective", "by", true)
         << ", \"fallbacks\": " << list(fallbacks_, "reason", "collective", false)
         << ", \"exchanges\": {\"calls\": " << exchanges_.calls << ", \"bytes\": " << exchanges_.bytes
         << ", \"seconds\": " << exchanges_.seconds << "}}\n";
    return text.str();
}

std::string Counts::record(int ranks) const {
    const std::lock_guard guard(lock_);
    auto text = json();
    text << "{\"format\": \"chorale-record/1\", \"ranks\": " << ranks << ", \"calls\": [";
    const char* comma = "\n";
    for (const auto& [key, count] : calls_) {
        const auto& [collective, dtype, group, root, size_bytes] = key;
        text << comma << "{\"collective\": \"" << collective << "\", \"dtype\": \"" << dtype << "\", \"group\": " << group
             << ", \"root\": " << (root < 0 ? "null" : std::to_string(root)) << ", \"size_bytes\": " << size_bytes
             << ", \"calls\": " << count.calls << ", \"seconds\": " << count.seconds << "}";
        comma = ",\n";
    }
    text << "\n]}\n";
    return text.str();
}

}  // namespace chorale::job
