// Two binary heaps: of (key, node) pairs, and of messages by their next event. The smaller number wins ties, so that
// runs are reproducible.
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

// Each message has at most one event. The heap stores the position of each message, to move it when its event changes.
class EventHeap {
public:
    explicit EventHeap(Int messages)
        : members_(empty<Rank>(messages)), position_(full<Rank>(-1, messages)), time_(zeros<double>(messages)) {}

    bool is_empty() const { return size_ == 0; }
    double next_time() const { return time_[members_[0]]; }
    double time_of(Int message) const { return time_[message]; }

    // Set the next event of `message`. O(log size).
    void schedule(Int message, double when) {
        const Int place = position_[message];
        const bool is_earlier = when < time_[message];
        time_[message] = when;
        if (place < 0) {
            rise(size_++, message);
        } else if (is_earlier) {
            rise(place, message);
        } else {
            sink(place, message);
        }
    }

    // Remove and return the message whose event comes first. O(log size).
    Int take_next() {
        const Int first = members_[0];
        position_[first] = -1;
        if (--size_ > 0) sink(0, members_[size_]);
        return first;
    }

private:
    bool comes_before(Int first, Int second) const {
        return time_[first] < time_[second] || (time_[first] == time_[second] && first < second);
    }
    void put(Int place, Int message) {
        members_[place] = message;
        position_[message] = place;
    }
    void rise(Int place, Int message) {
        for (; place > 0 && comes_before(message, members_[(place - 1) / 2]); place = (place - 1) / 2)
            put(place, members_[(place - 1) / 2]);
        put(place, message);
    }
    void sink(Int place, Int message) {
        for (Int child = 2 * place + 1; child < size_; child = 2 * place + 1) {
            if (child + 1 < size_ && comes_before(members_[child + 1], members_[child])) ++child;
            if (!comes_before(members_[child], message)) break;
            put(place, members_[child]);
            place = child;
        }
        put(place, message);
    }

    Int size_ = 0;
    Array<Rank> members_, position_;  // the first `size_` members form the heap; position of each message, or -1
    Array<double> time_;
};

}  // namespace chorale
