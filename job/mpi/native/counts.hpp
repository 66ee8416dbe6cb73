// What a job called, counted: the records that CHORALE_REPORT and CHORALE_RECORD write.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace chorale::job {

struct Count {
    int64_t calls = 0, bytes = 0;
    double seconds = 0;
};

class Counts {
  public:
    void program(const std::string& digest, const char* collective, int64_t size_bytes, double seconds);
    void fallback(const char* reason, const char* collective, int64_t size_bytes);

    // Counts a call that several ranks of each node served together, way: how.
    void way(const char* collective, const char* way, int64_t size_bytes, double seconds);

    // An exchange of sizes among ranks before a call whose shards may differ.
    void exchange(int64_t size_bytes, double seconds);

    // group: its JSON; root -1: none
    void call(const char* collective, const char* dtype, const std::string& group, int root, int64_t size_bytes,
              double seconds);

    // The JSON of job/report.py, and of chorale-record/1.
    std::string report(const std::string& table, int ranks) const;
    std::string record(int ranks) const;

  private:
    using Key = std::pair<std::string, std::string>;
    using CallKey = std::tuple<std::string, std::string, std::string, int, int64_t>;

    mutable std::mutex lock_;
    std::map<Key, Count> programs_, fallbacks_, ways_;
    std::map<CallKey, Count> calls_;
    Count exchanges_;
};

// Writes `text` to the file `name`, or to stderr where that is "-". Whether that went well.
bool write_to(const std::string& name, const std::string& text);

}  // namespace chorale::job
