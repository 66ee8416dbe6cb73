#include "ports.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace chorale::plans {
namespace {

constexpr size_t most_at_once = 1 << 16;
constexpr int look_ms = 100;

bool send_all(int stream, const void* data, size_t bytes) {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t sent = send(stream, next, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        next += sent;
        bytes -= static_cast<size_t>(sent);
    }
    return true;
}

bool receive_all(int stream, void* data, size_t bytes) {
    char* next = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t got = recv(stream, next, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        next += got;
        bytes -= static_cast<size_t>(got);
    }
    return true;
}

}  // namespace

Ports::Ports(std::vector<int> outgoing, std::vector<int> incoming)
    : outgoing_(std::move(outgoing)), incoming_(std::move(incoming)) {
    proxy_ = std::thread([this] { serve(); });
    receiver_ = std::thread([this] { receive(); });
}

Ports::~Ports() {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    work_.notify_all();
    for (const auto* streams : {&outgoing_, &incoming_})
        for (const int stream : *streams)
            if (stream >= 0) shutdown(stream, SHUT_RDWR);
    proxy_.join();
    receiver_.join();
    for (const auto* streams : {&outgoing_, &incoming_})
        for (const int stream : *streams)
            if (stream >= 0) close(stream);
}

void Ports::bind(uint64_t context, char* memory, size_t bytes) {
    const std::lock_guard lock(rooms_mutex_);
    rooms_[context] = {memory, bytes};
}

void Ports::forget() {
    const std::lock_guard lock(rooms_mutex_);
    rooms_.clear();
}

uint64_t Ports::push(const PortTask& task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(task);
    work_.notify_one();
    return ++pushed_;
}

bool Ports::done(uint64_t number) {
    const std::lock_guard lock(mutex_);
    return done_ >= number;
}

std::string Ports::error() {
    const std::lock_guard lock(mutex_);
    return error_;
}

void Ports::fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (error_.empty() && !stopped_) error_ = what;
}

void Ports::serve() {
    for (;;) {
        PortTask task;
        {
            std::unique_lock lock(mutex_);
            work_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
            if (stopped_) return;
            task = tasks_.front();
            tasks_.pop_front();
        }
        const Header header{task.context, task.target, task.bytes, task.packets ? 1u : 0u, task.slot};
        const int stream = outgoing_[task.rank];
        if (!send_all(stream, &header, sizeof header) || !send_all(stream, task.source, task.bytes))
            fail("the port to rank " + std::to_string(task.rank) + " is broken");
        const std::lock_guard lock(mutex_);
        done_++;
    }
}

void Ports::receive() {
    std::vector<pollfd> streams;
    for (const int stream : incoming_)
        if (stream >= 0) streams.push_back({stream, POLLIN, 0});
    while (!streams.empty()) {
        {
            const std::lock_guard lock(mutex_);
            if (stopped_) return;
        }
        if (poll(streams.data(), streams.size(), look_ms) <= 0) continue;
        // A stream that ended belongs to a rank that has: whoever waits for it comes to the limit of its time.
        const auto ended = [this](pollfd& each) { return each.revents != 0 && !receive_one(each.fd); };
        streams.erase(std::remove_if(streams.begin(), streams.end(), ended), streams.end());
    }
}

bool Ports::receive_one(int stream) {
    Header header;
    if (!receive_all(stream, &header, sizeof header)) return false;
    std::vector<char> data(std::min<uint64_t>(most_at_once, header.bytes));
    for (uint64_t at = 0; at < header.bytes;) {
        const auto count = static_cast<size_t>(std::min<uint64_t>(data.size(), header.bytes - at));
        if (!receive_all(stream, data.data(), count)) return false;
        store(header, at, data, count);
        at += count;
    }
    if (header.slot >= 0) {
        const std::lock_guard lock(rooms_mutex_);
        const auto room = rooms_.find(header.context);
        const auto slot = static_cast<size_t>(header.slot);
        if (room != rooms_.end() && slot < room->second.bytes / sizeof(uint64_t))
            reinterpret_cast<std::atomic<uint64_t>*>(room->second.memory)[slot].fetch_add(1, std::memory_order_release);
    }
    return true;
}

void Ports::store(const Header& header, uint64_t at, const std::vector<char>& data, size_t count) {
    const std::lock_guard lock(rooms_mutex_);
    const auto room = rooms_.find(header.context);
    if (room == rooms_.end()) return;  // of a plan that is over
    const uint64_t end = header.target + header.bytes;
    if (end < header.target || end > room->second.bytes) return fail("a port sent data beyond the memory");
    char* target = room->second.memory + header.target + at;
    if (header.packets == 0) {
        std::memcpy(target, data.data(), count);
        return;
    }
    for (size_t byte = 0; byte < count; byte += sizeof(uint64_t)) {
        uint64_t word;
        std::memcpy(&word, data.data() + byte, sizeof word);
        reinterpret_cast<PacketWord*>(target + byte)->store(word, std::memory_order_relaxed);
    }
}

}  // namespace chorale::plans
