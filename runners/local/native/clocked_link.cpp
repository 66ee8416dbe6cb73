#include "clocked_link.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace chorale {

void ClockedLink::add(Flow& flow, size_t hop, Frame frame) {
    const bool was_idle = turns_.empty();
    auto& frames = flow.hops[hop].frames;
    frames.push_back(std::move(frame));
    if (frames.size() == 1) turns_.push_back({&flow, hop});
    if (was_idle) start_next();
}

ClockedLink::Arrival ClockedLink::finish() {
    const Turn turn = turns_.front();
    turns_.pop_front();
    auto& frames = turn.flow->hops[turn.hop].frames;
    Arrival arrival{turn.flow, turn.hop, std::move(frames.front())};
    frames.pop_front();
    arrival.frame.ready_ns = end_ns_ + latency_ns_;
    if (!frames.empty()) turns_.push_back(turn);
    if (!turns_.empty()) start_next();
    return arrival;
}

void ClockedLink::start_next() {
    const Turn& turn = turns_.front();
    const Frame& frame = turn.flow->hops[turn.hop].frames.front();
    const double duration_ns = std::ceil(static_cast<double>(frame.size) * ns_per_byte_);
    end_ns_ = std::max(end_ns_, frame.ready_ns) + static_cast<int64_t>(duration_ns);
}

}  // namespace chorale
