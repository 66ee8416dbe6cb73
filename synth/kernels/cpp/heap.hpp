// Queues of (key, node) pairs, and of messages in the order of their next events. The smaller number wins ties, so that
// runs are reproducible.
#pragma once

#include <queue>
#include <set>

#include "arrays.hpp"

namespace chorale {

// A heap with the smallest (key, node) on top.
using NodeHeap = std::priority_queue<std::pair<double, Rank>, std::vector<std::pair<double, Rank>>, std::greater<>>;

inline std::pair<double, Rank> take_top(NodeHeap& heap) {
    const auto top = heap.top();
    heap.pop();
    return top;
}

// The next event of each message, if it has one.
class EventQueue {
public:
    explicit EventQueue(Int messages) : time_(zeros<double>(messages)) {}

    bool is_empty() const { return events_.empty(); }
    double next_time() const { return events_.begin()->first; }
    double time_of(Int message) const { return time_[message]; }

    // Set the next event of `message`, which replaces its previous event if there is one. O(log size).
    void schedule(Int message, double when) {
        events_.erase({time_[message], message});
        time_[message] = when;
        events_.emplace(when, message);
    }

    // Remove and return the message whose event comes first. O(log size).
    Int take_next() { return events_.extract(events_.begin()).value().second; }

private:
    std::set<std::pair<double, Rank>> events_;
    Array<double> time_;
};

}  // namespace chorale
