// Port channels: blocks put what is to be done into a queue, a proxy thread does it over sockets in that order, and at
// the other end a thread writes what arrives into memory and counts signals.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plan_memory.hpp"

namespace chorale::plans {

// What a proxy does: send `bytes` from `source` to `target` in the memory of `rank`, then count up `slot`.
struct PortTask {
    size_t rank;
    uint64_t context;
    const char* source;
    uint64_t target, bytes;
    bool packets;
    int64_t slot;  // -1: none
};

class Ports {
public:
    // The sockets to and from each rank, -1 where there is none.
    Ports(std::vector<int> outgoing, std::vector<int> incoming);
    ~Ports();
    Ports(const Ports&) = delete;
    Ports& operator=(const Ports&) = delete;

    // From now on what arrives for `context` is written into `memory` of this rank.
    void bind(uint64_t context, char* memory, size_t bytes);
    void forget();

    uint64_t push(const PortTask& task);  // its number, for `done`
    bool done(uint64_t number);
    bool leads_to(size_t rank) const { return outgoing_[rank] >= 0; }
    std::string error();

private:
    struct Room {
        char* memory;
        size_t bytes;
    };
    struct Header {
        uint64_t context, target, bytes, packets;
        int64_t slot;
    };

    void serve();
    void receive();
    bool receive_one(int stream);
    void store(const Header& header, uint64_t at, const std::vector<char>& data, size_t count);
    void fail(const std::string& what);

    std::vector<int> outgoing_, incoming_;
    std::mutex mutex_, rooms_mutex_;
    std::condition_variable work_;
    std::deque<PortTask> tasks_;
    uint64_t pushed_ = 0, done_ = 0;
    bool stopped_ = false;
    std::string error_;
    std::map<uint64_t, Room> rooms_;
    std::thread proxy_, receiver_;
};

}  // namespace chorale::plans
