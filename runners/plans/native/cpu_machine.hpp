// The machine of plan_core.hpp on processors, in memory that ranks share: threads, and a proxy thread behind ports.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "plan_core.hpp"

namespace chorale::plans {

// Ports: blocks put what is to be done into a queue, and a proxy thread does it in that order.
class Ports {
public:
    Ports() = default;
    Ports(const Ports&) = delete;
    Ports& operator=(const Ports&) = delete;
    ~Ports() {
        {
            const std::lock_guard lock(mutex_);
            stopped_ = true;
        }
        work_.notify_all();
        if (proxy_.joinable()) proxy_.join();
    }

    // Returns the number of the task, for `done`.
    u64 push(const PortTask& task) {
        const std::lock_guard lock(mutex_);
        if (!proxy_.joinable()) proxy_ = std::thread([this] { serve(); });
        tasks_.push_back(task);
        work_.notify_one();
        return ++pushed_;
    }
    bool done(u64 number) const { return __atomic_load_n(&done_, __ATOMIC_ACQUIRE) >= number; }
    bool idle() {
        const std::lock_guard lock(mutex_);
        return done(pushed_);
    }

private:
    void serve() {
        for (std::unique_lock lock(mutex_);;) {
            work_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
            if (stopped_) return;
            const PortTask task = tasks_.front();
            tasks_.pop_front();
            lock.unlock();
            if (task.are_packets) {
                for (u64 at = 0; at < task.bytes; at += sizeof(u64))
                    __atomic_store_n(reinterpret_cast<u64*>(task.target + at),
                                     __atomic_load_n(reinterpret_cast<const u64*>(task.source + at), __ATOMIC_ACQUIRE),
                                     __ATOMIC_RELEASE);
            } else if (task.bytes > 0) {
                std::memcpy(task.target, task.source, task.bytes);
            }
            if (task.counter != nullptr) __atomic_fetch_add(task.counter, 1, __ATOMIC_RELEASE);
            __atomic_fetch_add(&done_, 1, __ATOMIC_RELEASE);
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable work_;
    std::deque<PortTask> tasks_;
    u64 pushed_ = 0, done_ = 0;
    bool stopped_ = false;
    std::thread proxy_;
};

// Where the threads of a block wait for each other.
class Meeting {
public:
    explicit Meeting(u64 threads) : threads_(threads) {}

    bool wait() {
        if (threads_ == 1) return true;
        std::unique_lock lock(mutex_);
        if (is_broken_) return false;
        if (++here_ == threads_) {
            here_ = 0;
            round_++;
            all_.notify_all();
            return true;
        }
        const u64 round = round_;
        all_.wait(lock, [&] { return round_ != round || is_broken_; });
        return round_ != round;
    }
    void leave() {
        const std::lock_guard lock(mutex_);
        is_broken_ = true;
        all_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable all_;
    u64 threads_, here_ = 0, round_ = 0;
    bool is_broken_ = false;
};

struct CpuMachine {
    static constexpr bool has_switch = false;
    u64 number, threads;
    Meeting& meeting;
    Ports* ports;  // null: the threads of a block do what ports do, as on GPUs

    u64 lane() const { return number; }
    u64 lanes() const { return threads; }
    bool sync() { return meeting.wait(); }

    static u64 load(const u64* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static void store(u64* at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
    static u64 add(u64* at, u64 value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
    static void fence_add(u64* at, u64 value) { __atomic_fetch_add(at, value, __ATOMIC_RELEASE); }
    static void load_packets(const u64* at, u64* two) {
        two[0] = __atomic_load_n(at, __ATOMIC_ACQUIRE);
        two[1] = __atomic_load_n(at + 1, __ATOMIC_ACQUIRE);
    }
    static void store_packets(u64* at, const u64* two) {
        __atomic_store_n(at, two[0], __ATOMIC_RELEASE);
        __atomic_store_n(at + 1, two[1], __ATOMIC_RELEASE);
    }
    bool has_proxies() const { return ports != nullptr; }
    u64 port(const PortTask& task) { return ports->push(task); }
    bool done(u64 ticket) const { return ports->done(ticket); }

    template <class Work>
    static bool with_elements(const Binding& call, Work work) {
        return with_type(int(call.type), [&](auto element) {
            return with_operation(int(call.operation), [&](auto does) { return work(element, does); });
        });
    }
};

}  // namespace chorale::plans
