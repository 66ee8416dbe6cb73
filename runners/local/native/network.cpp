#include "network.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "engine_clock.hpp"

namespace chorale {
namespace {

// Of one direction of a connection, in the network: more stay in the sender's socket.
constexpr size_t most_held = 16;
constexpr size_t frames_at_once = 8;

}  // namespace

void Network::set_link(size_t number, double ns_per_byte, int64_t latency_ns) {
    if (number > links_.size()) throw Failure(CHORALE_INVALID, "link " + std::to_string(number) + " is out of line");
    if (number == links_.size()) links_.emplace_back();
    links_[number].set_pace(ns_per_byte, latency_ns);
}

void Network::set_path(int src, int dst, int channel, const std::vector<size_t>& links) {
    for (const size_t link : links)
        if (link >= links_.size()) throw Failure(CHORALE_INVALID, "a path over a link that there is not");
    Direction& direction =
        connection({std::min(src, dst), std::max(src, dst), channel}).directions[src < dst ? 0 : 1];
    if (!direction.hops.empty()) return;
    for (const size_t link : links) direction.hops.push_back({link, {}});
}

Network::Connection& Network::connection(ConnectionKey key) {
    const auto [entry, is_new] = connections_.try_emplace(key);
    Connection& made = entry->second;
    if (!is_new) return made;
    made.key = key;
    for (int i = 0; i < 2; i++) {
        made.ends[i].network = this;
        made.ends[i].connection = made.directions[i].connection = &made;
        made.directions[i].from = &made.ends[i];
        made.directions[i].to = &made.ends[1 - i];
    }
    return made;
}

bool Network::is_awaited(ConnectionKey key) const {
    const auto entry = connections_.find(key);
    return entry != connections_.end() && entry->second.ends[0].pipe == nullptr;
}

void Network::connect(ConnectionKey key, int low_fd, int high_fd) {
    Connection& made = connections_.at(key);
    made.ends[0].pipe = std::make_unique<SocketPipe>(low_fd, key.low);
    made.ends[1].pipe = std::make_unique<SocketPipe>(high_fd, key.high);
    made.is_open = true;
    for (End& end : made.ends) watch_.add(end.pipe->fd(), end);
    note(made);
}

int64_t Network::next_ns() const {
    const int64_t end_ns = ends_.empty() ? INT64_MAX : ends_.begin()->first;
    return flights_.empty() ? end_ns : std::min(end_ns, flights_.begin()->first);
}

void Network::pump(int64_t now_ns) {
    for (int64_t next = next_ns(); next <= now_ns; next = next_ns()) {
        if (!flights_.empty() && flights_.begin()->first == next) {
            ClockedLink::Arrival arrival = std::move(flights_.begin()->second);
            flights_.erase(flights_.begin());
            auto& direction = static_cast<Direction&>(*arrival.flow);
            direction.flying--;
            direction.held++;
            land(std::move(arrival));
        } else {
            finish(ends_.begin()->second);
        }
    }
}

void Network::finish(size_t number) {
    ClockedLink& link = links_[number];
    const int64_t end_ns = link.end_ns();
    ends_.erase(ends_.begin());
    ClockedLink::Arrival arrival = link.finish();
    if (!link.is_idle()) ends_.emplace(link.end_ns(), number);
    if (arrival.frame.ready_ns == end_ns) return land(std::move(arrival));
    auto& direction = static_cast<Direction&>(*arrival.flow);
    direction.held--;
    direction.flying++;
    flights_.emplace(arrival.frame.ready_ns, std::move(arrival));
    note(*direction.connection);
}

void Network::land(ClockedLink::Arrival arrival) {
    auto& direction = static_cast<Direction&>(*arrival.flow);
    if (direction.is_deaf) {
        drop(direction, std::move(arrival.frame));
    } else if (arrival.hop + 1 < direction.hops.size()) {
        return forward(direction, arrival.hop + 1, std::move(arrival.frame));
    } else {
        direction.arrived.push_back(std::move(arrival.frame));
    }
    note(*direction.connection);
}

void Network::forward(Direction& direction, size_t hop, Frame frame) {
    const size_t number = direction.hops[hop].link;
    ClockedLink& link = links_[number];
    const bool was_idle = link.is_idle();
    link.add(direction, hop, std::move(frame));
    if (was_idle) ends_.emplace(link.end_ns(), number);
}

void Network::End::woken(bool has_hung_up) {
    if (pipe == nullptr || !connection->is_open) return;
    pipe->woken(has_hung_up);
    network->note(*connection);
}

void Network::note(Connection& connection) {
    if (connection.needs_settling || !connection.is_open) return;
    connection.needs_settling = true;
    noted_.push_back(&connection);
}

void Network::settle() {
    for (Connection* connection : noted_) {
        connection->needs_settling = false;
        settle(*connection);
    }
    noted_.clear();
}

// Where a rank has closed its end and all that it sent has arrived, the other end is closed too.
void Network::settle(Connection& connection) {
    for (Direction& direction : connection.directions) {
        write_arrived(direction);
        read_more(direction);
    }
    for (const Direction& direction : connection.directions)
        if (direction.has_ended && direction.held + direction.flying == 0) connection.is_open = false;
    if (connection.is_open) return;
    for (End& end : connection.ends) shutdown(end.pipe->fd(), SHUT_RDWR);
}

void Network::write_arrived(Direction& direction) {
    std::array<iovec, most_held> parts;
    auto& frames = direction.arrived;
    while (!frames.empty()) {
        const size_t count = std::min(frames.size(), parts.size());
        for (size_t i = 0; i < count; i++) parts[i] = {frames[i].bytes.get(), frames[i].size};
        parts[0] = {frames[0].bytes.get() + direction.written, frames[0].size - direction.written};
        size_t written = 0;
        try {
            written = direction.to->pipe->write(parts.data(), static_cast<int>(count));
        } catch (const Failure&) {
            return deafen(direction);
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

// What is on its way to a rank that is gone is lost.
void Network::deafen(Direction& direction) {
    direction.is_deaf = true;
    for (Frame& frame : direction.arrived) drop(direction, std::move(frame));
    direction.arrived.clear();
}

void Network::read_more(Direction& direction) {
    while (!direction.has_ended && direction.held < most_held && direction.from->pipe->may_read()) {
        std::vector<Frame> frames(std::min(frames_at_once, most_held - direction.held));
        const size_t room = direction.hops.empty() ? frame_bytes : links_[direction.hops[0].link].usual_frame_bytes();
        std::array<iovec, frames_at_once> parts;
        for (size_t i = 0; i < frames.size(); i++) {
            frames[i] = new_frame();
            parts[i] = {frames[i].bytes.get(), room};
        }
        size_t count = 0;
        try {
            count = direction.from->pipe->read(parts.data(), static_cast<int>(frames.size()));
        } catch (const Failure&) {  // the rank is gone; the other one is told when it has everything
            direction.has_ended = true;
        }
        take_in(direction, frames, count, room);
    }
}

// `count` bytes were read into `frames`, with room for `room` each.
void Network::take_in(Direction& direction, std::vector<Frame>& frames, size_t count, size_t room) {
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

Frame Network::new_frame() {
    if (spare_.empty()) return {std::unique_ptr<char[]>(new char[frame_bytes]), 0, 0};
    Frame frame{std::move(spare_.back()), 0, 0};
    spare_.pop_back();
    return frame;
}

void Network::drop(Direction& direction, Frame frame) {
    spare_.push_back(std::move(frame.bytes));
    direction.held--;
}

}  // namespace chorale
