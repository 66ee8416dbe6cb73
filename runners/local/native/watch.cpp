#include "watch.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine_clock.hpp"
#include "failure.hpp"

namespace chorale {
namespace {

constexpr int64_t longest_ns = 3'600'000'000'000;

Failure refused(const char* what) { return Failure(CHORALE_SYSTEM, std::string(what) + ": " + std::strerror(errno)); }

}  // namespace

Watch::Watch() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) throw refused("no epoll");
}

Watch::~Watch() { close(epoll_); }

void Watch::add(int fd, Watched& watched) { add(fd, watched, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET); }

void Watch::add_reader(int fd, Watched& watched) { add(fd, watched, EPOLLIN); }

void Watch::remove(int fd) {
    if (epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr) != 0) throw refused("a socket is not watched");
}

void Watch::add(int fd, Watched& watched, uint32_t what) {
    epoll_event event{};
    event.events = what;
    event.data.ptr = &watched;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) throw refused("a socket cannot be watched");
}

const std::vector<Watch::Event>& Watch::wait(int64_t until_ns) {
    const int64_t left_ns = std::min(until_ns - monotonic_ns(), longest_ns);
    if (left_ns > 0) {
        const timespec duration{static_cast<time_t>(left_ns / 1'000'000'000), static_cast<long>(left_ns % 1'000'000'000)};
        pollfd any{epoll_, POLLIN, 0};  // epoll itself waits in milliseconds
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

}  // namespace chorale
