// Counts of the collectives that a job called, for the files of CHORALE_REPORT and CHORALE_RECORD.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

namespace chorale::job {

class Counts {
  public:
    // Counts a call that was served by the program with this digest.
    void program(const std::string& digest, const char* collective, int64_t size_bytes, double seconds) {
        add(programs_, {digest, collective}, size_bytes, seconds);
    }

    // Counts a call that the library served, and why.
    void fallback(const char* reason, const char* collective, int64_t size_bytes) {
        add(fallbacks_, {reason, collective}, size_bytes, 0);
    }

    // Counts a call under a table whose ranks are nodes. way: leaders or slices, see nodes.hpp
    void way(const char* collective, const char* way, int64_t size_bytes, double seconds) {
        add(ways_, {collective, way}, size_bytes, seconds);
    }

    // Counts an exchange of shard sizes before a call with different shards.
    void exchange(int64_t size_bytes, double seconds) {
        const std::lock_guard guard(lock_);
        exchanges_.add(size_bytes, seconds);
    }

    // Counts a call for the record, regardless of what served it. group: ranks as JSON; root: -1 for none
    void call(const char* collective, const char* dtype, const std::string& group, int root, int64_t size_bytes,
              double seconds) {
        add(calls_, {collective, dtype, group, root, size_bytes}, size_bytes, seconds);
    }

    // Return the JSON that job/report.py reads, and a document of the format chorale-record/1.
    std::string report(const std::string& table, int ranks) const;
    std::string record(int ranks) const;

  private:
    struct Count {
        int64_t calls = 0, bytes = 0;
        double seconds = 0;

        void add(int64_t size_bytes, double spent) {
            calls++;
            bytes += size_bytes;
            seconds += spent;
        }
    };
    using Pairs = std::map<std::pair<std::string, std::string>, Count>;

    template <typename Key>
    void add(std::map<Key, Count>& counts, const Key& key, int64_t size_bytes, double seconds) {
        const std::lock_guard guard(lock_);
        counts[key].add(size_bytes, seconds);
    }
    static std::string list(const Pairs& counts, const char* first, const char* second, bool is_timed);

    mutable std::mutex lock_;
    Pairs programs_, fallbacks_, ways_;
    std::map<std::tuple<std::string, std::string, std::string, int, int64_t>, Count> calls_;
    Count exchanges_;
};

}  // namespace chorale::job
