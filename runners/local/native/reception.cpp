#include "reception.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine_clock.hpp"
#include "sockets.hpp"

namespace chorale {
namespace {

constexpr int64_t stranger_ns = 2'000'000'000;   // how long somebody may take to say who it is
constexpr int64_t patience_ns = 60'000'000'000;  // how long a rank may wait for the other one before it tries again

bool is_of_this_user(int fd) {
    ucred who{};
    socklen_t size = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid();
}

bool welcome(int fd) { return send(fd, welcome_text, sizeof welcome_text, MSG_NOSIGNAL) == sizeof welcome_text; }

ConnectionKey key_of(const Hello& hello) {
    return {std::min(hello.from, hello.to), std::max(hello.from, hello.to), hello.channel};
}

}  // namespace

Reception::Reception(const std::string& address, Watch& watch, Network& network) : watch_(watch), network_(network) {
    std::string bound;
    listener_ = listen_at(address, bound);
    watch_.add_reader(listener_, *this);
}

Reception::~Reception() { close(listener_); }

Reception::Visitor::~Visitor() {
    if (fd >= 0) close(fd);
}

void Reception::woken(bool) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
        throw Failure(CHORALE_SYSTEM, std::string("no connection can be taken: ") + std::strerror(errno));
    }
    Visitor& visitor = visitors_.emplace_back();
    visitor.fd = fd;
    visitor.until_ns = monotonic_ns() + stranger_ns;
    visitor.is_leaving = !is_of_this_user(fd);
    watch_.add(fd, visitor);
}

void Reception::Visitor::woken(bool has_hung_up) {
    is_leaving |= has_hung_up;
    while (!is_leaving && received < sizeof hello) {
        const ssize_t count = recv(fd, reinterpret_cast<char*>(&hello) + received, sizeof hello - received, 0);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) return;
        if (count <= 0) is_leaving = true;
        received += count > 0 ? static_cast<size_t>(count) : 0;
    }
}

int64_t Reception::next_ns() const {
    int64_t next = INT64_MAX;
    for (const Visitor& visitor : visitors_) next = std::min(next, visitor.until_ns);
    return next;
}

void Reception::settle() {
    if (visitors_.empty()) return;
    const int64_t now_ns = monotonic_ns();
    for (Visitor& visitor : visitors_) {
        if (!visitor.is_leaving && visitor.received == sizeof(Hello) && !visitor.has_greeted) greet(visitor);
        visitor.is_leaving |= now_ns > visitor.until_ns;
    }
    for (auto& side : waiting_)
        for (auto entry = side.begin(); entry != side.end();)
            entry = entry->second->is_leaving ? side.erase(entry) : std::next(entry);
    visitors_.remove_if([](const Visitor& visitor) { return visitor.is_leaving; });
}

void Reception::greet(Visitor& visitor) {
    const Hello& hello = visitor.hello;
    const ConnectionKey key = key_of(hello);
    visitor.has_greeted = true;
    visitor.is_leaving = std::memcmp(hello.text, hello_text, sizeof hello_text) != 0 || hello.token != token_ ||
                         hello.from == hello.to || !network_.is_awaited(key);
    if (visitor.is_leaving) return;
    visitor.until_ns = monotonic_ns() + patience_ns;
    const int side = hello.from == key.low ? 0 : 1;
    Visitor*& entry = waiting_[side][key];
    if (entry != nullptr) entry->is_leaving = true;  // it has come again
    entry = &visitor;
    const auto other = waiting_[1 - side].find(key);
    if (other == waiting_[1 - side].end() || other->second->is_leaving) return;
    join(key, *(side == 0 ? &visitor : other->second), *(side == 0 ? other->second : &visitor));
}

void Reception::join(ConnectionKey key, Visitor& low, Visitor& high) {
    low.is_leaving = high.is_leaving = true;
    watch_.remove(low.fd);
    watch_.remove(high.fd);
    if (!welcome(low.fd) || !welcome(high.fd)) return;
    network_.connect(key, std::exchange(low.fd, -1), std::exchange(high.fd, -1));
}

}  // namespace chorale
