#include "joining.hpp"

#include <fcntl.h>
#include <poll.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <tuple>

#include "devices.hpp"
#include "engine_clock.hpp"
#include "shared_memory.hpp"
#include "sockets.hpp"

namespace chorale {
namespace {

constexpr int poll_ms = 20;
constexpr size_t default_ring_bytes = 1 << 20, smallest_ring_bytes = 4096;
constexpr size_t most_visitors = 256;
constexpr int64_t silence_ns = 3'000'000'000;  // time after which the next address is tried
constexpr int64_t stranger_ns = 2'000'000'000;  // time limit for the hello on a new connection

// A connection that this rank is establishing: first connecting, then waiting for the welcome.
struct Caller {
    Links::Key key;
    std::vector<std::string> ways;  // alternative addresses
    size_t tries = 0;
    Address address{};
    int64_t since_ns = 0;
    std::string refusal;  // error message of the last attempt
    int fd = -1;
    bool has_greeted = false;
    size_t received = 0;
    char welcome[sizeof welcome_text];
    std::unique_ptr<SharedMemory> memory;

    ~Caller() {
        if (fd >= 0) close(fd);
    }
    void hang_up() {
        if (fd >= 0) close(fd);
        fd = -1;
        has_greeted = false;
        received = 0;
    }
};

// Returns the alternative addresses for this connection, best first: those in one of this machine's networks, then
// others, and last those that are also addresses of this machine.
std::vector<std::string> ways_to(const std::string& addresses, int rank, const Links::Key& key) {
    const auto links = split(addresses, ',');
    if (links.empty()) throw Failure(CHORALE_INVALID, "a rank has no address");
    auto ways = split(links[static_cast<size_t>((rank + key.first) / 2 + key.second) % links.size()], '|');
    if (ways.size() < 2) return ways;
    const auto own = device_addresses();
    const auto rating = [&](const std::string& way) {
        const Address address = parse_address(way);
        int found = 1;
        for (const DeviceAddress& each : own) {
            const bool is_four = address.bytes.ss_family == AF_INET;
            const void* at = is_four ? static_cast<const void*>(
                                           &reinterpret_cast<const sockaddr_in*>(&address.bytes)->sin_addr)
                                     : &reinterpret_cast<const sockaddr_in6*>(&address.bytes)->sin6_addr;
            const auto* bytes = static_cast<const unsigned char*>(at);
            const std::vector<unsigned char> other(bytes, bytes + (is_four ? 4 : 16));
            if (other == each.bytes) return 2;
            if (is_near(each, other)) found = 0;
        }
        return found;
    };
    std::stable_sort(ways.begin(), ways.end(), [&](auto& a, auto& b) { return rating(a) < rating(b); });
    return ways;
}

// Formats addresses such as "tcp:10.0.0.1:4000@eno1|…" for error messages.
std::string in_words(const std::string& addresses) {
    std::string text;
    for (const std::string& link : split(addresses, ','))
        for (const std::string& way : split(link, '|')) {
            const size_t at = way.find('@');
            if (way.rfind("tcp:", 0) != 0 || at == std::string::npos) continue;
            text += (text.empty() ? "" : " or ") + way.substr(4, at - 4) + " (" + way.substr(at + 1) + ")";
        }
    return text;
}

// An accepted connection whose hello is not complete yet.
struct Visitor {
    int fd;
    int64_t until_ns;
    size_t received = 0;
    Hello hello;
    int memory_fd = -1;

    ~Visitor() {
        if (fd >= 0) close(fd);
        if (memory_fd >= 0) close(memory_fd);
    }
};

class Meeting {
public:
    Meeting(const Joining& joining, const std::set<Links::Key>& wanted, Links& links)
        : joining_(joining), links_(links) {
        for (const Links::Key& key : wanted) {
            const auto ways = ways_to(joining.addresses.at(static_cast<size_t>(key.first)), joining.rank, key);
            if (parse_address(ways.front()).kind == AddressKind::emulated || key.first < joining.rank) {
                callers_.emplace_back();
                callers_.back().key = key;
                callers_.back().ways = ways;
            } else {
                awaited_.insert(key);
            }
        }
    }

    void hold() {
        while (!callers_.empty() || !awaited_.empty()) {
            if (monotonic_ns() > joining_.deadline_ns) throw Failure(CHORALE_TIMEOUT, missing());
            call_again();
            poll_once();
        }
    }

private:
    std::string missing() const {
        const Links::Key key = callers_.empty() ? *awaited_.begin() : callers_.front().key;
        const std::string text = "rank " + std::to_string(key.first) + " could not be connected in time";
        const std::string other = in_words(joining_.addresses[static_cast<size_t>(key.first)]);
        if (other.empty() || joining_.doors.empty()) return text;
        const std::string own = in_words(joining_.doors), refusal = callers_.empty() ? "" : callers_.front().refusal;
        const auto& [from, to] = callers_.empty() ? std::tie(other, own) : std::tie(own, other);
        return text + ": no way from " + from + " to " + to + (refusal.empty() ? "" : ", " + refusal) +
               "; set CHORALE_INTERFACE on all hosts to the device that joins them (NAME, a list, or ^NAME for any other)";
    }

    void call_again() {
        for (Caller& caller : callers_) {
            if (caller.fd >= 0 && caller.ways.size() > 1 && monotonic_ns() > caller.since_ns + silence_ns)
                caller.hang_up();
            if (caller.fd >= 0) continue;
            caller.address = parse_address(caller.ways[caller.tries++ % caller.ways.size()]);
            caller.fd = start_connecting(caller.address);
            caller.since_ns = monotonic_ns();
            if (caller.fd < 0) caller.refusal = std::strerror(errno);
        }
    }

    void poll_once() {
        std::vector<pollfd> watched;
        for (const int listener : joining_.listeners) watched.push_back({listener, POLLIN, 0});
        for (const Visitor& visitor : visitors_) watched.push_back({visitor.fd, POLLIN, 0});
        for (const Caller& caller : callers_)
            watched.push_back({caller.fd, static_cast<short>(caller.has_greeted ? POLLIN : POLLOUT), 0});
        bool is_anyone_away = false;
        for (const Caller& caller : callers_) is_anyone_away |= caller.fd < 0;
        if (is_anyone_away) pause_ns(poll_ms * 500'000);
        if (poll(watched.data(), watched.size(), is_anyone_away ? 0 : poll_ms) < 0 && errno != EINTR)
            throw Failure(CHORALE_SYSTEM, std::string("poll: ") + std::strerror(errno));
        size_t next = joining_.listeners.size();
        for (auto visitor = visitors_.begin(); visitor != visitors_.end(); next++)
            visitor = (watched[next].revents != 0 && hear(*visitor)) || monotonic_ns() > visitor->until_ns
                          ? visitors_.erase(visitor)
                          : std::next(visitor);
        for (auto caller = callers_.begin(); caller != callers_.end(); next++)
            caller = watched[next].revents != 0 && go_on(*caller) ? callers_.erase(caller) : std::next(caller);
        for (size_t i = 0; i < joining_.listeners.size(); i++)
            if (watched[i].revents != 0) open_door(joining_.listeners[i]);
    }

    void open_door(int listener) {
        int fd;
        while ((fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
            if (visitors_.size() == most_visitors) visitors_.pop_front();  // a rank will connect again
            visitors_.emplace_back();
            visitors_.back().fd = fd;
            visitors_.back().until_ns = monotonic_ns() + stranger_ns;
        }
    }

    // Reads a visitor's hello, and its descriptor of shared memory if it sends one. Returns whether the visitor can be
    // removed.
    bool hear(Visitor& visitor) {
        iovec part{reinterpret_cast<char*>(&visitor.hello) + visitor.received, sizeof(Hello) - visitor.received};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        const ssize_t count = recvmsg(visitor.fd, &message, MSG_CMSG_CLOEXEC);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (count <= 0) return true;
        for (cmsghdr* extra = CMSG_FIRSTHDR(&message); extra != nullptr; extra = CMSG_NXTHDR(&message, extra))
            if (extra->cmsg_level == SOL_SOCKET && extra->cmsg_type == SCM_RIGHTS) keep_memory(visitor, *extra);
        visitor.received += static_cast<size_t>(count);
        if (visitor.received == sizeof(Hello)) welcome(visitor);
        return visitor.received == sizeof(Hello);
    }

    // Keeps only the last descriptor, because other processes may send many.
    static void keep_memory(Visitor& visitor, cmsghdr& extra) {
        for (size_t at = CMSG_LEN(0); at + sizeof(int) <= extra.cmsg_len; at += sizeof(int)) {
            if (visitor.memory_fd >= 0) close(visitor.memory_fd);
            std::memcpy(&visitor.memory_fd, reinterpret_cast<char*>(&extra) + at, sizeof(int));
        }
    }

    // Accepts the visitor if it is an awaited rank, and disconnects it otherwise.
    void welcome(Visitor& visitor) {
        const Hello& hello = visitor.hello;
        const Links::Key key{hello.from, hello.channel};
        const bool is_one_of_us = std::memcmp(hello.text, hello_text, sizeof hello_text) == 0 &&
                                  hello.token == joining_.token && hello.to == joining_.rank && awaited_.count(key) > 0;
        if (!is_one_of_us) return;
        if (send(visitor.fd, welcome_text, sizeof welcome_text, MSG_NOSIGNAL) != sizeof welcome_text) return;
        std::unique_ptr<Pipe> pipe;
        if (visitor.memory_fd >= 0) {
            const int memory = std::exchange(visitor.memory_fd, -1);
            pipe = std::make_unique<RingPipe>(visitor.fd, key.first, SharedMemory::open(memory), false);
        } else {
            prepare(visitor.fd, joining_.buffer_bytes);
            pipe = std::make_unique<SocketPipe>(visitor.fd, key.first);
        }
        visitor.fd = -1;
        links_.add(key, std::move(pipe));
        awaited_.erase(key);
    }

    // Continues to establish a connection; returns whether it is established. If the connection breaks, it tries again.
    bool go_on(Caller& caller) {
        if (!caller.has_greeted) {
            caller.has_greeted = greet(caller);
            if (!caller.has_greeted) try_later(caller);
            return false;
        }
        const ssize_t count =
            recv(caller.fd, caller.welcome + caller.received, sizeof caller.welcome - caller.received, 0);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (count <= 0) {
            try_later(caller);
            return false;
        }
        caller.received += static_cast<size_t>(count);
        if (caller.received < sizeof caller.welcome) return false;
        if (std::memcmp(caller.welcome, welcome_text, sizeof welcome_text) != 0)
            throw garbage(caller.key.first, "no welcome");
        finish(caller);
        return true;
    }

    static void try_later(Caller& caller) {
        caller.hang_up();
        pause_ns(1'000'000);
    }

    bool greet(Caller& caller) {
        Hello hello{};
        std::memcpy(hello.text, hello_text, sizeof hello_text);
        hello.token = joining_.token;
        hello.from = joining_.rank;
        hello.to = caller.key.first;
        hello.channel = caller.key.second;
        iovec part{&hello, sizeof hello};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
        if (caller.address.kind == AddressKind::shared_memory) {
            const size_t wanted = joining_.buffer_bytes > 0 ? joining_.buffer_bytes : default_ring_bytes;
            caller.memory = std::make_unique<SharedMemory>(SharedMemory::create(std::max(wanted, smallest_ring_bytes)));
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            cmsghdr* extra = CMSG_FIRSTHDR(&message);
            extra->cmsg_level = SOL_SOCKET;
            extra->cmsg_type = SCM_RIGHTS;
            extra->cmsg_len = CMSG_LEN(sizeof(int));
            const int fd = caller.memory->fd();
            std::memcpy(CMSG_DATA(extra), &fd, sizeof fd);
        }
        int error = 0;
        socklen_t size = sizeof error;
        if (getsockopt(caller.fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0)
            caller.refusal = std::strerror(error);
        return error == 0 && sendmsg(caller.fd, &message, MSG_NOSIGNAL) == sizeof hello;
    }

    void finish(Caller& caller) {
        const int fd = std::exchange(caller.fd, -1);
        std::unique_ptr<Pipe> pipe;
        if (caller.memory != nullptr) {
            pipe = std::make_unique<RingPipe>(fd, caller.key.first, std::move(*caller.memory), true);
        } else {
            prepare(fd, joining_.buffer_bytes);
            pipe = std::make_unique<SocketPipe>(fd, caller.key.first);
        }
        links_.add(caller.key, std::move(pipe));
    }

    const Joining& joining_;
    Links& links_;
    std::list<Caller> callers_;
    std::list<Visitor> visitors_;
    std::set<Links::Key> awaited_;
};

}  // namespace

void join(const Joining& joining, const std::set<Links::Key>& wanted, Links& links) {
    Meeting(joining, wanted, links).hold();
}

}  // namespace chorale
