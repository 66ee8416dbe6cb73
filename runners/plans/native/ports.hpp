// Port channels: blocks put what is to be done into a queue, and a proxy thread does it in that order, in memory that
// ranks share.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "plan_memory.hpp"

namespace chorale::plans {

// What a proxy does: copy `bytes` from `source` to `target`, by whole words where these are packets, then count up.
struct PortTask {
    const char* source = nullptr;
    char* target = nullptr;
    size_t bytes = 0;
    bool packets = false;
    std::atomic<uint64_t>* counter = nullptr;  // null: none
};

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
    uint64_t push(const PortTask& task) {
        const std::lock_guard lock(mutex_);
        if (!proxy_.joinable()) proxy_ = std::thread([this] { serve(); });
        tasks_.push_back(task);
        work_.notify_one();
        return ++pushed_;
    }
    bool done(uint64_t number) const { return done_.load(std::memory_order_acquire) >= number; }

private:
    void serve() {
        for (std::unique_lock lock(mutex_);;) {
            work_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
            if (stopped_) return;
            const PortTask task = tasks_.front();
            tasks_.pop_front();
            lock.unlock();
            if (task.packets)
                copy_packets(task.target, task.source, task.bytes);
            else if (task.bytes > 0)
                std::memcpy(task.target, task.source, task.bytes);
            if (task.counter != nullptr) task.counter->fetch_add(1, std::memory_order_release);
            done_.fetch_add(1, std::memory_order_release);
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable work_;
    std::deque<PortTask> tasks_;
    uint64_t pushed_ = 0;
    std::atomic<uint64_t> done_{0};
    bool stopped_ = false;
    std::thread proxy_;
};

}  // namespace chorale::plans
