// The emulated network of the local runner: a process that carries the bytes of all ranks over links with limited
// rates.
//
// Usage: chorale_network FD NAME; FD is the control socket and NAME the abstract name of the socket that ranks connect
// to. The process ends when the control socket is closed. Lines of words on the control socket:
//   link NUMBER NS_PER_BYTE    adds a link, numbered from 0, or changes its pace
//   path SRC DST CHANNEL LINK… sets the links of a connection, unless they are already set
//   done                       makes the network answer "done"
// The network sends "ready" when it listens, and "error TEXT" before it exits because of an error.
#include <sys/prctl.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "pipe.hpp"
#include "sockets.hpp"
#include "system.hpp"

namespace chorale {
namespace {

constexpr size_t frame_bytes = 16 * 1024, smallest_frame_bytes = 2 * 1024;
constexpr double usual_frame_ns = 1e6;
constexpr size_t most_held = 16;  // frames per direction of a connection; further data stay in the sender's socket
constexpr size_t frames_at_once = 8;
constexpr time_t stranger_s = 2;  // time limit for the hello on a new connection

// Bytes of a connection that travel together. ready_ns: when they arrived at the current hop
struct Frame {
    std::unique_ptr<char[]> bytes;
    size_t size = 0;
    int64_t ready_ns = 0;
};

// One direction of a connection: the links of its path, each with the frames that wait for it.
struct Flow {
    struct Hop {
        size_t link;
        std::deque<Frame> frames;
    };
    std::deque<Hop> hops;
};

// A link that connections share round robin, frame by frame.
class SharedLink {
public:
    void set_pace(double ns_per_byte) { clock_.set_pace(ns_per_byte); }

    // Returns the size of frames that enter the network at this link. A frame is only forwarded when it is complete, so
    // its transmission should not take long.
    size_t usual_frame_bytes() const {
        const double pace = clock_.ns_per_byte(), bytes = pace > 0 ? usual_frame_ns / pace : static_cast<double>(frame_bytes);
        return static_cast<size_t>(std::clamp<double>(bytes, smallest_frame_bytes, frame_bytes));
    }

    bool is_idle() const { return turns_.empty(); }

    // Returns when the current transmission ends. The link must not be idle.
    int64_t end_ns() const { return clock_.end_ns(); }

    // Adds a frame of `flow`; this link is its hop number `hop`.
    void add(Flow& flow, size_t hop, Frame frame) {
        const bool was_idle = is_idle();
        auto& frames = flow.hops[hop].frames;
        frames.push_back(std::move(frame));
        if (frames.size() == 1) turns_.push_back({&flow, hop});
        if (was_idle) start_next();
    }

    // A frame that has passed the link, with its flow and hop.
    struct Arrival {
        Flow* flow;
        size_t hop;
        Frame frame;
    };

    // Ends the transmission of a frame and starts the next one.
    Arrival finish() {
        const Turn turn = turns_.front();
        turns_.pop_front();
        auto& frames = turn.flow->hops[turn.hop].frames;
        Arrival arrival{turn.flow, turn.hop, std::move(frames.front())};
        frames.pop_front();
        arrival.frame.ready_ns = clock_.end_ns();
        if (!frames.empty()) turns_.push_back(turn);
        if (!turns_.empty()) start_next();
        return arrival;
    }

private:
    struct Turn {
        Flow* flow;
        size_t hop;
    };

    void start_next() {
        const Frame& frame = turns_.front().flow->hops[turns_.front().hop].frames.front();
        clock_.carry(frame.size, frame.ready_ns);
    }

    LinkClock clock_;
    std::deque<Turn> turns_;  // flows that have frames here; a frame of the first one is in transmission
};

// Identifies a connection by its two ranks, low < high, and its channel.
struct ConnectionKey {
    int low, high, channel;
    bool operator<(const ConnectionKey& other) const {
        return std::tie(low, high, channel) < std::tie(other.low, other.high, other.channel);
    }
};

ConnectionKey key_of(int from, int to, int channel) { return {std::min(from, to), std::max(from, to), channel}; }

// The connections between ranks, and the links over which their bytes travel.
class Network {
public:
    explicit Network(Watch& watch) : watch_(watch) {}

    void set_link(size_t number, double ns_per_byte) {
        if (number > links_.size()) throw Failure(CHORALE_INVALID, "link " + std::to_string(number) + " is out of line");
        if (number == links_.size()) links_.emplace_back();
        links_[number].set_pace(ns_per_byte);
    }

    void set_path(int src, int dst, int channel, const std::vector<size_t>& links) {
        for (const size_t link : links)
            if (link >= links_.size()) throw Failure(CHORALE_INVALID, "a path over a link that there is not");
        const auto [entry, is_new] = connections_.try_emplace(key_of(src, dst, channel));
        Connection& made = entry->second;
        for (int i = 0; i < 2 && is_new; i++) {
            made.ends[i].network = this;
            made.ends[i].connection = made.directions[i].connection = &made;
            made.directions[i].from = &made.ends[i];
            made.directions[i].to = &made.ends[1 - i];
        }
        Direction& direction = made.directions[src < dst ? 0 : 1];
        if (!direction.hops.empty()) return;
        for (const size_t link : links) direction.hops.push_back({link, {}});
    }

    // Returns whether the connection has a path but is not connected yet.
    bool is_awaited(ConnectionKey key) const {
        const auto entry = connections_.find(key);
        return entry != connections_.end() && entry->second.ends[0].pipe == nullptr;
    }

    // Starts to carry bytes between the sockets of the lower and the higher rank, and takes ownership of them.
    void connect(ConnectionKey key, int low_fd, int high_fd) {
        Connection& made = connections_.at(key);
        made.ends[0].pipe = std::make_unique<SocketPipe>(low_fd, key.low);
        made.ends[1].pipe = std::make_unique<SocketPipe>(high_fd, key.high);
        made.is_open = true;
        for (End& end : made.ends) watch_.add(end.pipe->fd(), end);
        note(made);
    }

    // Returns when the next transmission ends, INT64_MAX if there is none.
    int64_t next_ns() const { return ends_.empty() ? INT64_MAX : ends_.begin()->first; }

    // Completes all transmissions that end by `now_ns`, in order.
    void pump(int64_t now_ns) {
        while (next_ns() <= now_ns) {
            const size_t number = ends_.begin()->second;
            SharedLink& link = links_[number];
            ends_.erase(ends_.begin());
            SharedLink::Arrival arrival = link.finish();
            if (!link.is_idle()) ends_.emplace(link.end_ns(), number);
            auto& direction = static_cast<Direction&>(*arrival.flow);
            if (direction.is_deaf) {
                drop(direction, std::move(arrival.frame));
            } else if (arrival.hop + 1 < direction.hops.size()) {
                forward(direction, arrival.hop + 1, std::move(arrival.frame));
                continue;
            } else {
                direction.arrived.push_back(std::move(arrival.frame));
            }
            note(*direction.connection);
        }
    }

    // Moves bytes between sockets and the network, for all connections on which something has happened. If a rank has
    // closed its end and all its data have arrived, the other end is closed, too.
    void settle() {
        for (Connection* connection : noted_) {
            connection->needs_settling = false;
            for (Direction& direction : connection->directions) {
                write_arrived(direction);
                read_more(direction);
            }
            for (const Direction& direction : connection->directions)
                if (direction.has_ended && direction.held == 0) connection->is_open = false;
            if (connection->is_open) continue;
            for (End& end : connection->ends) shutdown(end.pipe->fd(), SHUT_RDWR);
        }
        noted_.clear();
    }

private:
    struct Connection;

    // One end of a connection: the socket of a rank.
    struct End : Watched {
        void woken(bool has_hung_up) override {
            if (pipe == nullptr || !connection->is_open) return;
            pipe->woken(has_hung_up);
            network->note(*connection);
        }

        std::unique_ptr<SocketPipe> pipe;
        Network* network = nullptr;
        Connection* connection = nullptr;
    };

    // One direction of a connection. held: number of its frames that are in the network
    struct Direction : Flow {
        Connection* connection = nullptr;
        End *from = nullptr, *to = nullptr;
        std::deque<Frame> arrived;
        size_t written = 0;  // how many bytes of the first of these frames were written
        size_t held = 0;
        bool has_ended = false;  // nothing more can be read
        bool is_deaf = false;    // nothing more can be written
    };

    struct Connection {
        End ends[2];
        Direction directions[2];  // the first one starts at the lower rank
        bool is_open = false, needs_settling = false;
    };

    void note(Connection& connection) {
        if (connection.needs_settling || !connection.is_open) return;
        connection.needs_settling = true;
        noted_.push_back(&connection);
    }

    void forward(Direction& direction, size_t hop, Frame frame) {
        const size_t number = direction.hops[hop].link;
        SharedLink& link = links_[number];
        const bool was_idle = link.is_idle();
        link.add(direction, hop, std::move(frame));
        if (was_idle) ends_.emplace(link.end_ns(), number);
    }

    void write_arrived(Direction& direction) {
        std::array<iovec, most_held> parts;
        auto& frames = direction.arrived;
        while (!frames.empty()) {
            const size_t count = std::min(frames.size(), parts.size());
            for (size_t i = 0; i < count; i++) parts[i] = {frames[i].bytes.get(), frames[i].size};
            parts[0] = {frames[0].bytes.get() + direction.written, frames[0].size - direction.written};
            size_t written = 0;
            try {
                written = direction.to->pipe->write(parts.data(), static_cast<int>(count));
            } catch (const Failure&) {  // the receiver has ended, so data for it are dropped
                direction.is_deaf = true;
                for (Frame& frame : frames) drop(direction, std::move(frame));
                return frames.clear();
            }
            if (written == 0) return;
            direction.written += written;
            while (!frames.empty() && direction.written >= frames[0].size) {
                direction.written -= frames[0].size;
                drop(direction, std::move(frames[0]));
                frames.pop_front();
            }
        }
    }

    void read_more(Direction& direction) {
        while (!direction.has_ended && direction.held < most_held && direction.from->pipe->may_read()) {
            std::vector<Frame> frames(std::min(frames_at_once, most_held - direction.held));
            const size_t room =
                direction.hops.empty() ? frame_bytes : links_[direction.hops[0].link].usual_frame_bytes();
            std::array<iovec, frames_at_once> parts;
            for (size_t i = 0; i < frames.size(); i++) {
                if (spare_.empty()) spare_.emplace_back(new char[frame_bytes]);
                frames[i].bytes = std::move(spare_.back());
                spare_.pop_back();
                parts[i] = {frames[i].bytes.get(), room};
            }
            size_t count = 0;
            try {
                count = direction.from->pipe->read(parts.data(), static_cast<int>(frames.size()));
            } catch (const Failure&) {  // the sender has ended; the receiver still gets the remaining data
                direction.has_ended = true;
            }
            take_in(direction, frames, count, room);
        }
    }

    // Adds to the network the `count` bytes that were read into `frames`, each of which has room for `room` bytes.
    void take_in(Direction& direction, std::vector<Frame>& frames, size_t count, size_t room) {
        if (count > 0 && direction.hops.empty())
            throw Failure(CHORALE_INVALID, "rank " + std::to_string(direction.from->pipe->peer) + " sent to rank " +
                                               std::to_string(direction.to->pipe->peer) + " where no path is known");
        const int64_t now_ns = monotonic_ns();
        for (Frame& frame : frames) {
            direction.held++;
            frame.size = std::min(count, room);
            frame.ready_ns = now_ns;
            count -= frame.size;
            if (frame.size > 0)
                forward(direction, 0, std::move(frame));
            else
                drop(direction, std::move(frame));
        }
    }

    void drop(Direction& direction, Frame frame) {
        spare_.push_back(std::move(frame.bytes));
        direction.held--;
    }

    Watch& watch_;
    std::deque<SharedLink> links_;
    std::set<std::pair<int64_t, size_t>> ends_;  // (end of the transmission, number of the link)
    std::map<ConnectionKey, Connection> connections_;
    std::vector<Connection*> noted_;
    std::vector<std::unique_ptr<char[]>> spare_;
};

// Accepts connections from awaited ranks, which are processes of this user. Others are disconnected.
class Reception : Watched {
public:
    Reception(const std::string& address, Watch& watch, Network& network) : network_(network) {
        std::string bound;
        listener_ = listen_at(address, bound);
        watch.add_reader(listener_, *this);
    }
    ~Reception() override { close(listener_); }

private:
    // Accepts a connection. A rank sends its hello immediately, so waiting for the hello delays nobody.
    void woken(bool) override {
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
            throw refused("no connection can be taken");
        }
        Hello hello{};
        const ConnectionKey key = is_rank(fd, hello) ? key_of(hello.from, hello.to, hello.channel) : ConnectionKey{};
        if (key.low == key.high || !network_.is_awaited(key)) {
            close(fd);
            return;
        }
        const int side = hello.from == key.low ? 0 : 1;
        const auto [own, is_first] = waiting_[side].emplace(key, fd);
        if (!is_first) close(std::exchange(own->second, fd));  // the rank has connected again
        const auto other = waiting_[1 - side].find(key);
        if (other == waiting_[1 - side].end()) return;
        const int ends[] = {side == 0 ? fd : other->second, side == 0 ? other->second : fd};
        waiting_[side].erase(own);
        waiting_[1 - side].erase(other);
        for (const int end : ends) {
            fcntl(end, F_SETFL, O_NONBLOCK);
            if (send(end, welcome_text, sizeof welcome_text, MSG_NOSIGNAL) == sizeof welcome_text) continue;
            for (const int each : ends) close(each);  // a rank has ended
            return;
        }
        network_.connect(key, ends[0], ends[1]);
    }

    bool is_rank(int fd, Hello& hello) const {
        const timeval limit{stranger_s, 0};
        ucred who{};
        socklen_t size = sizeof who;
        return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid() &&
               setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
               recv(fd, &hello, sizeof hello, MSG_WAITALL) == sizeof hello &&
               std::memcmp(hello.text, hello_text, sizeof hello_text) == 0;
    }

    Network& network_;
    int listener_;
    std::map<ConnectionKey, int> waiting_[2];  // sockets of waiting lower ranks, and of waiting higher ranks
};

Failure wrong(const std::string& line) { return Failure(CHORALE_INVALID, "no command of the network: " + line); }

// The control socket of the process that started the network.
class Control : Watched {
public:
    Control(int fd, Watch& watch, Network& network) : fd_(fd), network_(network) {
        watch.add_reader(fd, *this);
    }

    // Returns whether the other side has closed the socket.
    bool is_closed() const { return is_closed_; }

    static void say(int fd, const std::string& text) {
        const std::string line = text + "\n";
        if (send(fd, line.data(), line.size(), MSG_NOSIGNAL) < 0) return;  // the other side has ended: see `woken`
    }

private:
    void woken(bool) override {
        std::array<char, 65536> bytes;
        const ssize_t count = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
        is_closed_ = count <= 0;
        if (is_closed_) return;
        text_.append(bytes.data(), static_cast<size_t>(count));
        size_t start = 0;
        for (size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n', start)) {
            obey(text_.substr(start, end - start));
            start = end + 1;
        }
        text_.erase(0, start);
    }

    void obey(const std::string& line) {
        std::istringstream words(line);
        std::string name;
        words >> name;
        if (name == "done") return say(fd_, name);
        if (name == "link") {
            size_t number;
            double ns_per_byte;
            if (!(words >> number >> ns_per_byte) || ns_per_byte < 0) throw wrong(line);
            return network_.set_link(number, ns_per_byte);
        }
        int src, dst, channel;
        if (name != "path" || !(words >> src >> dst >> channel) || src == dst) throw wrong(line);
        std::vector<size_t> links;
        for (size_t link; words >> link;) links.push_back(link);
        if (links.empty()) throw wrong(line);
        network_.set_path(src, dst, channel, links);
    }

    int fd_;
    Network& network_;
    std::string text_;
    bool is_closed_ = false;
};

void serve(int control_fd, const std::string& name) {
    Watch watch;
    Network network(watch);
    const Reception reception("unix:" + name, watch, network);
    const Control control(control_fd, watch, network);
    Control::say(control_fd, "ready");
    while (!control.is_closed()) {
        const auto& events = watch.wait(network.next_ns());
        network.pump(monotonic_ns());  // comes first, so that new data are not sent before older data
        for (const Watch::Event& event : events) event.watched->woken(event.has_hung_up);
        network.settle();
    }
}

}  // namespace
}  // namespace chorale

int main(int count, char** arguments) {
    if (count != 3) return 2;
    const int control_fd = std::atoi(arguments[1]);
    prctl(PR_SET_TIMERSLACK, 1);
    chorale::raise_descriptor_limit();
    try {
        chorale::serve(control_fd, arguments[2]);
    } catch (const std::exception& error) {
        chorale::Control::say(control_fd, std::string("error ") + error.what());
        return 1;
    }
    return 0;
}
