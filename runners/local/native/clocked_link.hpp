// A directed link as a clock: when frames that share it start and end. Nothing here waits or reads a clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>

namespace chorale {

constexpr size_t frame_bytes = 16 * 1024, smallest_frame_bytes = 2 * 1024;
constexpr double usual_frame_ns = 1e6;

// Bytes of a connection that travel together. `ready_ns`: when they arrived where they are.
struct Frame {
    std::unique_ptr<char[]> bytes;
    size_t size = 0;
    int64_t ready_ns = 0;
};

// One direction of a connection: the numbers of the links of its path, and its frames at each of them.
struct Flow {
    struct Hop {
        size_t link;
        std::deque<Frame> frames;
    };
    std::deque<Hop> hops;
};

// Connections take turns, frame by frame. A frame starts when the one before it ends, or when it arrived if that is
// later, and takes its bytes' time: so whoever looks late loses no rate, and what a link idles is lost.
class ClockedLink {
public:
    void set_pace(double ns_per_byte, int64_t latency_ns) {
        ns_per_byte_ = ns_per_byte;
        latency_ns_ = latency_ns;
    }

    // How large frames are that enter the network here: a frame is passed on as a whole, so it should not take long.
    size_t usual_frame_bytes() const {
        const double bytes = ns_per_byte_ > 0 ? usual_frame_ns / ns_per_byte_ : static_cast<double>(frame_bytes);
        return static_cast<size_t>(std::clamp<double>(bytes, smallest_frame_bytes, frame_bytes));
    }

    // Takes a frame in at hop number `hop` of `flow`, which is this link.
    void add(Flow& flow, size_t hop, Frame frame);

    bool is_idle() const { return turns_.empty(); }

    // When the frame that is in transmission ends; only where the link is not idle.
    int64_t end_ns() const { return end_ns_; }

    struct Arrival {
        Flow* flow;
        size_t hop;   // the link that it has passed
        Frame frame;  // ready when it comes out of the link
    };

    // Ends the transmission of a frame and starts the next one.
    Arrival finish();

private:
    struct Turn {
        Flow* flow;
        size_t hop;
    };

    void start_next();

    double ns_per_byte_ = 0;
    int64_t latency_ns_ = 0, end_ns_ = 0;
    std::deque<Turn> turns_;  // those with frames; the first one's is in transmission
};

}  // namespace chorale
