// Two heaps: of (key, node) pairs, and of messages by their next event. The smaller number wins ties, so that runs are
// reproducible.
#pragma once

#include <queue>

#include "arrays.hpp"

namespace chorale {

// A heap with the smallest (key, node) on top.
using NodeHeap = std::priority_queue<std::pair<double, Rank>, std::vector<std::pair<double, Rank>>, std::greater<>>;

inline std::pair<double, Rank> take_top(NodeHeap& heap) {
    const auto top = heap.top();
    heap.pop();
    return top;
}

// Each message has at most one event. If it changes, the earlier entry stays in the queue and is skipped.
class EventHeap {
public:
    explicit EventHeap(Int messages) : is_waiting_(zeros<bool>(messages)), time_(zeros<double>(messages)) {}

    bool is_empty() const { return queue_.empty(); }
    double next_time() const { return queue_.top().first; }
    double time_of(Int message) const { return time_[message]; }

    // Set the next event of `message`. O(log size).
    void schedule(Int message, double when) {
        time_[message] = when;
        is_waiting_[message] = true;
        queue_.emplace(when, message);
        skip();
    }

    // Remove and return the message whose event comes first. O(log size).
    Int take_next() {
        const Int message = take_top(queue_).second;
        is_waiting_[message] = false;
        skip();
        return message;
    }

private:
    void skip() {
        while (!queue_.empty()) {
            const auto [time, message] = queue_.top();
            if (is_waiting_[message] && time_[message] == time) return;
            queue_.pop();
        }
    }

    NodeHeap queue_;
    Array<bool> is_waiting_;
    Array<double> time_;
};

}  // namespace chorale
