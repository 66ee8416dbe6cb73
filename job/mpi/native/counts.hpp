// What a job called, counted: the records that CHORALE_REPORT and CHORALE_RECORD write.
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
    // Counts a call that a program served, by its digest.
    void program(const std::string& digest, const char* collective, int64_t size_bytes, double seconds) {
        add(programs_, {digest, collective}, size_bytes, seconds);
    }

    // Counts a call that the library served, and why.
    void fallback(const char* reason, const char* collective, int64_t size_bytes) {
        add(fallbacks_, {reason, collective}, size_bytes, 0);
    }

    // Counts a call that several ranks of each node served together, way: how.
    void way(const char* collective, const char* way, int64_t size_bytes, double seconds) {
        add(ways_, {collective, way}, size_bytes, seconds);
    }

    // Counts an exchange of sizes among ranks, before a call whose shards may differ.
    void exchange(int64_t size_bytes, double seconds) {
        const std::lock_guard guard(lock_);
        exchanges_.add(size_bytes, seconds);
    }

    // Counts a call for the record, whoever served it. group: its JSON; root -1: none
    void call(const char* collective, const char* dtype, const std::string& group, int root, int64_t size_bytes,
              double seconds) {
        add(calls_, {collective, dtype, group, root, size_bytes}, size_bytes, seconds);
    }

    // The JSON of job/report.py, and of chorale-record/1.
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
