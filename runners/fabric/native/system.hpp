// Code that both emulators share: the clock of a link, namespaces, descriptors, priorities, and waiting for events.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "engine_clock.hpp"
#include "failure.hpp"

namespace chorale {

// Computes transmission times of a link, without waiting or reading a clock. A transmission starts when the previous
// one has ended and its own data have arrived. So the rate does not suffer if the process wakes up late. Idle time is
// lost, as on a wire.
class LinkClock {
public:
    void set_pace(double ns_per_byte) { ns_per_byte_ = ns_per_byte; }
    double ns_per_byte() const { return ns_per_byte_; }

    // Starts the transmission of `bytes` bytes that arrived at `ready_ns`. Returns when it ends, rounded up, so that
    // the rate is not exceeded.
    int64_t carry(size_t bytes, int64_t ready_ns) {
        const double duration_ns = std::ceil(static_cast<double>(bytes) * ns_per_byte_);
        return end_ns_ = std::max(end_ns_, ready_ns) + static_cast<int64_t>(duration_ns);
    }

    // Returns when the last transmission ends.
    int64_t end_ns() const { return end_ns_; }

private:
    double ns_per_byte_ = 0;
    int64_t end_ns_ = 0;
};

inline Failure refused(const std::string& what) {
    return Failure(CHORALE_SYSTEM, what + ": " + std::strerror(errno));
}

// Moves this thread to the network namespace at `path`.
inline void enter_namespace(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw refused("open " + path);
    const int status = setns(file, CLONE_NEWNET);
    close(file);
    if (status != 0) throw refused("setns " + path);
}

// Raises the limit on open descriptors, because large networks need many.
inline void raise_descriptor_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

// Requests a real-time priority (0 or more; higher ones run first), so that work starts without delay. The kernel still
// reserves some time for other processes. If the request is refused, sets a niceness instead. Linux may weigh sessions
// instead of processes, so the niceness is also set for the session, which must contain only this process. Threads that
// are created later inherit these settings. If everything is refused, the only effect is that work may be delayed.
inline void take_precedence(int priority, int niceness) {
    sched_param parameters{};
    parameters.sched_priority = sched_get_priority_min(SCHED_RR) + priority;
    if (sched_setscheduler(0, SCHED_RR, &parameters) == 0) return;
    setpriority(PRIO_PROCESS, 0, niceness);
    if (FILE* session = std::fopen("/proc/self/autogroup", "w")) {
        std::fprintf(session, "%d", niceness);
        std::fclose(session);
    }
}

// An object that a `Watch` wakes when there is an event on the object's descriptor.
class Watched {
public:
    virtual ~Watched() = default;
    virtual void woken(bool has_hung_up) = 0;
};

class Watch {
public:
    Watch() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
        if (epoll_ < 0) throw refused("no epoll");
    }
    ~Watch() { close(epoll_); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // Wakes `watched` at every edge, when more can be read or written than before.
    void add(int fd, Watched& watched) { add(fd, watched, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET); }

    // Wakes `watched` as long as there is something to read.
    void add_reader(int fd, Watched& watched) { add(fd, watched, EPOLLIN); }

    void remove(int fd) {
        if (epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr) != 0) throw refused("a descriptor is not watched");
    }

    struct Event {
        Watched* watched;
        bool has_hung_up;
    };

    // Waits for events until `until_ns`, which is precise to the nanosecond. The result is valid until the next call.
    const std::vector<Event>& wait(int64_t until_ns) {
        const int64_t left_ns = std::min(until_ns - monotonic_ns(), longest_ns);
        if (left_ns > 0) {
            const timespec duration{static_cast<time_t>(left_ns / 1'000'000'000),
                                    static_cast<long>(left_ns % 1'000'000'000)};
            pollfd any{epoll_, POLLIN, 0};  // epoll_wait only accepts milliseconds
            if (ppoll(&any, 1, &duration, nullptr) < 0 && errno != EINTR) throw refused("poll");
        }
        std::array<epoll_event, 256> events;
        const int count = epoll_wait(epoll_, events.data(), events.size(), 0);
        if (count < 0 && errno != EINTR) throw refused("epoll");
        events_.clear();
        for (int i = 0; i < count; i++)
            events_.push_back({static_cast<Watched*>(events[i].data.ptr),
                               (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0});
        return events_;
    }

private:
    static constexpr int64_t longest_ns = 3'600'000'000'000;

    void add(int fd, Watched& watched, uint32_t what) {
        epoll_event event{};
        event.events = what;
        event.data.ptr = &watched;
        if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) throw refused("a descriptor cannot be watched");
    }

    int epoll_;
    std::vector<Event> events_;
};

}  // namespace chorale
