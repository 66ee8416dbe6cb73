// The emulated network: connections between ranks, whose bytes travel over the links of their paths.
#pragma once

#include <map>
#include <set>
#include <tuple>

#include "clocked_link.hpp"
#include "pipe.hpp"
#include "watch.hpp"

namespace chorale {

// What joins two ranks on a channel; `low` < `high`.
struct ConnectionKey {
    int low, high, channel;
    bool operator<(const ConnectionKey& other) const {
        return std::tie(low, high, channel) < std::tie(other.low, other.high, other.channel);
    }
};

class Network {
public:
    explicit Network(Watch& watch) : watch_(watch) {}

    // Makes a link, or changes its pace. Links are numbered from 0. Failure for a number out of line.
    void set_link(size_t number, double ns_per_byte, int64_t latency_ns);

    // Says over which links the bytes from `src` to `dst` go; a path that is known stays.
    void set_path(int src, int dst, int channel, const std::vector<size_t>& links);

    // Whether there is a path on this connection and nobody has connected yet.
    bool is_awaited(ConnectionKey key) const;

    // Passes bytes between two sockets from now on: those of the lower and of the higher rank, which it closes.
    void connect(ConnectionKey key, int low_fd, int high_fd);

    // When a frame comes out of a link next, INT64_MAX if none is on its way.
    int64_t next_ns() const;

    // Ends all transmissions that have ended by `now_ns`, in their order.
    void pump(int64_t now_ns);

    // Moves bytes from and to the sockets that something has happened for.
    void settle();

private:
    struct Connection;

    // The socket of a rank.
    struct End : Watched {
        void woken(bool has_hung_up) override;

        std::unique_ptr<SocketPipe> pipe;
        Network* network = nullptr;
        Connection* connection = nullptr;
    };

    // From one end to the other. `held`: frames that wait or are in transmission; `flying`: those that have left a
    // link and, for its latency, not come out.
    struct Direction : Flow {
        Connection* connection = nullptr;
        End *from = nullptr, *to = nullptr;
        std::deque<Frame> arrived;
        size_t written = 0;  // of the first of these
        size_t held = 0, flying = 0;
        bool has_ended = false;  // there is nothing more to read
        bool is_deaf = false;    // there is nobody to write to
    };

    struct Connection {
        ConnectionKey key;
        End ends[2];
        Direction directions[2];  // the first from the lower rank
        bool is_open = false, needs_settling = false;
    };

    void note(Connection& connection);
    void settle(Connection& connection);
    void write_arrived(Direction& direction);
    void deafen(Direction& direction);
    void read_more(Direction& direction);
    void take_in(Direction& direction, std::vector<Frame>& frames, size_t count, size_t room);
    void forward(Direction& direction, size_t hop, Frame frame);
    void finish(size_t link);
    void land(ClockedLink::Arrival arrival);
    Frame new_frame();
    void drop(Direction& direction, Frame frame);
    Connection& connection(ConnectionKey key);

    Watch& watch_;
    std::deque<ClockedLink> links_;
    std::set<std::pair<int64_t, size_t>> ends_;  // of transmissions: when, and on which link
    std::multimap<int64_t, ClockedLink::Arrival> flights_;
    std::map<ConnectionKey, Connection> connections_;
    std::vector<Connection*> noted_;
    std::vector<std::unique_ptr<char[]>> spare_;
};

}  // namespace chorale
