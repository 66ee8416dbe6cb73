// A thread that delivers for its links: reads what arrives, sleeps until the earliest delivery, writes it out.
#pragma once

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>

#include <deque>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "link.hpp"
#include "namespaces.hpp"

inline int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

class Worker {
  public:
    Worker()
        : epoll_(epoll_create1(EPOLL_CLOEXEC)),
          timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
        if (epoll_ < 0 || timer_ < 0) throw system_error("epoll and timerfd");
        watch(timer_, kTimer, EPOLLIN | EPOLLET);
    }

    void add(const LinkFacts& facts) {
        watch(facts.from_device, static_cast<uint32_t>(links_.size()), EPOLLIN);
        links_.emplace_back(facts);
    }

    [[noreturn]] void run() {
        std::vector<epoll_event> events(links_.size() + 1);
        while (true) {
            const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
            for (int i = 0; i < count; ++i) handle(events[i]);
            deliver_due();
            arm_timer();
        }
    }

  private:
    static constexpr uint32_t kTimer = UINT32_MAX;
    static constexpr int kArrivalsAtOnce = 32;  // then others get their turn

    using Delivery = std::pair<int64_t, uint32_t>;

    void watch(int descriptor, uint32_t index, uint32_t kinds) {
        epoll_event event{};
        event.events = kinds;
        event.data.u32 = index;
        if (epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) != 0) throw system_error("epoll_ctl");
    }

    void handle(const epoll_event& event) {
        const uint32_t index = event.data.u32;
        if (index == kTimer) return;
        if (event.events & (EPOLLERR | EPOLLHUP))  // the device was deleted: it would report that for ever
            epoll_ctl(epoll_, EPOLL_CTL_DEL, links_[index].from_device(), nullptr);
        else
            take_arrivals(index);
    }

    void take_arrivals(uint32_t index) {
        Link& link = links_[index];
        for (int i = 0; i < kArrivalsAtOnce; ++i) {
            const ssize_t size = read(link.from_device(), buffer_, sizeof buffer_);
            if (size <= static_cast<ssize_t>(kVirtioBytes)) return;
            const bool was_empty = link.is_empty();
            link.accept(buffer_, static_cast<size_t>(size), monotonic_ns());
            if (was_empty && !link.is_empty()) deliveries_.emplace(link.next_delivery_ns(), index);
        }
    }

    void deliver_due() {
        for (int64_t now; !deliveries_.empty() && deliveries_.top().first <= (now = monotonic_ns());) {
            const uint32_t index = deliveries_.top().second;
            deliveries_.pop();
            links_[index].deliver(now);
            if (!links_[index].is_empty()) deliveries_.emplace(links_[index].next_delivery_ns(), index);
        }
    }

    void arm_timer() {
        const int64_t earliest = deliveries_.empty() ? 0 : deliveries_.top().first;
        if (earliest == armed_ns_) return;
        armed_ns_ = earliest;
        itimerspec at{};
        at.it_value = {earliest / 1000000000, earliest % 1000000000};
        timerfd_settime(timer_, TFD_TIMER_ABSTIME, &at, nullptr);
    }

    int epoll_;
    int timer_;
    int64_t armed_ns_ = 0;
    std::deque<Link> links_;
    std::priority_queue<Delivery, std::vector<Delivery>, std::greater<Delivery>> deliveries_;
    uint8_t buffer_[kLargestPacketBytes];
};
