#include "links.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "engine_clock.hpp"

namespace chorale {
namespace {

constexpr int64_t longest_ns = 1'000'000'000;

int epoll_timeout_ms(int64_t until_ns) {
    const int64_t left = std::clamp<int64_t>(until_ns - monotonic_ns(), 0, longest_ns);
    return static_cast<int>((left + 999'999) / 1'000'000);
}

}  // namespace

Links::Links() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) throw Failure(CHORALE_SYSTEM, std::string("no epoll: ") + std::strerror(errno));
}

Links::~Links() {
    links_.clear();
    ::close(epoll_);
}

void Links::add(Key key, std::unique_ptr<Pipe> pipe) {
    const int fd = pipe->fd();
    Link& link = links_.try_emplace(key, std::move(pipe)).first->second;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = &link;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0)
        throw Failure(CHORALE_SYSTEM, std::string("a connection cannot be watched: ") + std::strerror(errno));
}

Links::Link& Links::link(int peer, int channel) {
    const auto found = links_.find({peer, channel});
    if (found == links_.end())
        throw Failure(CHORALE_INVALID, "there is no connection to rank " + std::to_string(peer) + " on channel " +
                                           std::to_string(channel) + ": load programs before connecting");
    return found->second;
}

void Links::wait(int64_t until_ns, std::vector<int>& blocks) {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(epoll_, events.data(), events.size(), epoll_timeout_ms(until_ns));
    if (count < 0 && errno != EINTR) throw Failure(CHORALE_SYSTEM, std::string("epoll: ") + std::strerror(errno));
    for (int i = 0; i < count; i++) {
        Link& link = *static_cast<Link*>(events[i].data.ptr);
        link.pipe->woken((events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
        if (link.sender >= 0) blocks.push_back(link.sender);
        if (link.receiver >= 0) blocks.push_back(link.receiver);
    }
}

void Links::close() { links_.clear(); }

}  // namespace chorale
