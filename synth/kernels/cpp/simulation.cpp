// Flow-level simulation: computes the times of messages that share links fairly at every moment.
#include "heap.hpp"
#include "modules.hpp"

namespace chorale {
namespace {

constexpr double RELATIVE_TOLERANCE = 1e-12;  // smaller differences are rounding errors

// Max-min fair shares of links for the messages in flight, updated only for links with changes.
//
// Rates are max-min fair if every message has a full link on its route on which no other message is faster. They are
// found by progressive filling: the link with the smallest fair share becomes full first; its messages get that rate,
// which is subtracted from the other links. Source: Bertsekas and Gallager, "Data Networks", section 6.5.2.
class FairShares {
public:
    FairShares(Span<const Rank> link_ids, Span<const Int> first, Span<const Rank> hops, Span<const double> capacity)
        : link_ids_(link_ids), first_(first), hops_(hops), capacity_(capacity),
          remaining_(zeros<double>(hops.size())), rate_(zeros<double>(hops.size())), since_(zeros<double>(hops.size())),
          users_(capacity.size()),
          link_mark_(zeros<Int>(capacity.size())), message_mark_(zeros<Int>(hops.size())),
          free_capacity_(zeros<double>(capacity.size())), unfixed_(zeros<Rank>(capacity.size())) {}

    // Add `message` to the links of its route, at rate 0 until the next update.
    void add(Int message, double amount, double now) {
        remaining_[message] = amount;
        rate_[message] = 0.0;
        since_[message] = now;
        for (const Rank link : links_of(message)) users_[link].push_back(message);
        mark_links(message);
    }

    // Remove `message` from its links.
    void remove(Int message) {
        for (const Rank link : links_of(message)) {
            auto& users = users_[link];
            users.erase(std::find(users.begin(), users.end(), message));
        }
        mark_links(message);
    }

    // Recompute rates after changes, and move the events of messages whose rates changed.
    //
    // Only messages that share links with the changed ones, directly or through others, are visited.
    void update(EventQueue& heap, double now) {
        if (touched_.empty()) return;
        spread();
        fill_up(heap, now);
        touched_.clear();
        ++round_;
    }

private:
    Span<const Rank> links_of(Int message) const {
        return link_ids_.part(first_[message], first_[message] + hops_[message]);
    }

    void mark_links(Int message) {
        for (const Rank link : links_of(message)) {
            if (link_mark_[link] == round_) continue;
            link_mark_[link] = round_;
            touched_.push_back(link);
        }
    }

    // Touch all links that are connected to touched ones by messages.
    void spread() {
        for (std::size_t index = 0; index < touched_.size(); ++index) {
            for (const Rank message : users_[touched_[index]]) {
                if (message_mark_[message] == round_) continue;
                message_mark_[message] = round_;
                mark_links(message);
            }
        }
    }

    void fill_up(EventQueue& heap, double now) {
        for (const Rank link : touched_) {
            free_capacity_[link] = capacity_[link];
            unfixed_[link] = users_[link].size();
            if (unfixed_[link] > 0) shares_.emplace(capacity_[link] / unfixed_[link], link);
        }
        double level = 0.0;
        while (!shares_.empty()) {
            const auto [key, link] = take_top(shares_);
            if (unfixed_[link] == 0) continue;
            // Shares only increase while others are fixed, so an outdated entry is too small: push its current value.
            const double current = std::max(level, free_capacity_[link] / unfixed_[link]);
            if (current > key * (1 + RELATIVE_TOLERANCE)) {
                shares_.emplace(current, link);
                continue;
            }
            level = current;
            for (const Rank message : users_[link]) {
                if (message_mark_[message] != round_) continue;
                message_mark_[message] = -round_;
                for (const Rank other : links_of(message)) {
                    free_capacity_[other] -= level;
                    --unfixed_[other];
                }
                set_rate(heap, message, level, now);
            }
        }
    }

    void set_rate(EventQueue& heap, Int message, double rate, double now) {
        const double old = rate_[message];
        if (std::abs(rate - old) <= RELATIVE_TOLERANCE * old) return;
        const double sent = old * (now - since_[message]);
        remaining_[message] = std::max(0.0, remaining_[message] - sent);
        rate_[message] = rate;
        since_[message] = now;
        heap.schedule(message, now + remaining_[message] / rate);
    }

    Span<const Rank> link_ids_;  // links of message m start at first_[m]
    Span<const Int> first_;
    Span<const Rank> hops_;
    Span<const double> capacity_;
    Array<double> remaining_, rate_, since_;  // bytes left, rate, and the time since which both hold, by message
    std::vector<std::vector<Rank>> users_;    // by link: the messages that use it
    Array<Int> link_mark_, message_mark_;     // round of the last visit; negative if the rate is fixed
    Array<double> free_capacity_;
    Array<Rank> unfixed_;
    std::vector<Rank> touched_;
    NodeHeap shares_;
    Int round_ = 1;
};

// Messages and gates that wait for events, simulated moment by moment.
//
// Event numbers: g: gate g opens; gates + m: message m has left; gates + messages + m: message m has arrived.
// targets[offsets[e]] to targets[offsets[e + 1] - 1] wait for event e: target t is gate t, or the start of message
// t - gates.
class FlowSimulation {
public:
    FlowSimulation(Span<const double> amount, Span<const double> latency_s, double alpha_s, Span<const Rank> link_ids,
                   Span<const Int> first, Span<const Rank> hops, Span<const double> capacity, Span<const Int> offsets,
                   Span<const Rank> targets, Span<const Rank> needs)
        : opened_at_s_(full<double>(NEVER, needs.size())), arrived_at_s_(full<double>(NEVER, amount.size())),
          amount_(amount), latency_s_(latency_s), alpha_s_(alpha_s), hops_(hops), offsets_(offsets), targets_(targets),
          needs_(copy(needs)), state_(zeros<std::int8_t>(amount.size())), shares_(link_ids, first, hops, capacity),
          heap_(amount.size()) {
        for (Int gate = 0; gate < needs.size(); ++gate)
            if (needs[gate] == 0) open(gate);
    }

    // Simulate up to `moments` moments with events; return whether events remain.
    //
    // Events that are simultaneous up to rounding form one moment: rates are computed once for all of them.
    bool advance(Int moments) {
        for (; moments > 0; --moments) {
            for (const Int message : next_moment()) {
                if (state_[message] == SENDING) {
                    shares_.remove(message);
                    depart(message);
                } else if (state_[message] == FLYING) {
                    arrive(message);
                } else {
                    start(message);
                }
            }
            process_consequences();
            shares_.update(heap_, now_s_);
            if (heap_.is_empty()) return false;
        }
        return true;
    }

    Int arrived() const { return arrived_; }
    Array<double> opened_at_s() const { return opened_at_s_; }
    Array<double> arrived_at_s() const { return arrived_at_s_; }

private:
    enum State : std::int8_t { WAITING, STARTING, SENDING, FLYING, ARRIVED };
    static constexpr double NEVER = std::numeric_limits<double>::quiet_NaN();

    // Remove all events of the next moment from the heap.
    std::vector<Int> next_moment() {
        std::vector<Int> moment;
        if (heap_.is_empty()) return moment;
        const double limit = heap_.next_time() * (1 + RELATIVE_TOLERANCE);
        while (!heap_.is_empty() && heap_.next_time() <= limit) moment.push_back(heap_.take_next());
        // Use the time of the latest of these events, so that no consequence precedes its cause.
        now_s_ = std::max(now_s_, heap_.time_of(moment.back()));
        return moment;
    }

    void process_consequences() {
        while (!events_.empty()) {
            const Int event = events_.back();
            events_.pop_back();
            for (const Rank target : targets_.part(offsets_[event], offsets_[event + 1])) {
                const Int message = target - needs_.size();
                if (message < 0) {
                    if (--needs_[target] == 0) open(target);
                } else if (alpha_s_ > 0) {
                    state_[message] = STARTING;
                    heap_.schedule(message, now_s_ + alpha_s_);
                } else {
                    start(message);
                }
            }
        }
    }

    void open(Int gate) {
        opened_at_s_[gate] = now_s_;
        events_.push_back(gate);
    }

    // The first byte of `message` leaves.
    void start(Int message) {
        if (amount_[message] == 0 || hops_[message] == 0) {
            depart(message);
            return;
        }
        state_[message] = SENDING;
        shares_.add(message, amount_[message], now_s_);
    }

    // The last byte of `message` leaves.
    void depart(Int message) {
        events_.push_back(needs_.size() + message);
        state_[message] = FLYING;
        if (latency_s_[message] > 0) {
            heap_.schedule(message, now_s_ + latency_s_[message]);
        } else {
            arrive(message);
        }
    }

    // The last byte of `message` arrives.
    void arrive(Int message) {
        events_.push_back(needs_.size() + amount_.size() + message);
        state_[message] = ARRIVED;
        arrived_at_s_[message] = now_s_;
        ++arrived_;
    }

    Array<double> opened_at_s_, arrived_at_s_;
    Span<const double> amount_, latency_s_;
    double alpha_s_;
    Span<const Rank> hops_;
    Span<const Int> offsets_;
    Span<const Rank> targets_;
    Array<Rank> needs_;  // by gate: number of events for which it still waits
    Array<std::int8_t> state_;
    FairShares shares_;
    EventQueue heap_;
    std::vector<Int> events_;  // events of the current moment with unprocessed consequences
    double now_s_ = 0.0;
    Int arrived_ = 0;
};

}  // namespace

void bind_simulation(nanobind::module_& module) {
    namespace nb = nanobind;
    nb::class_<FlowSimulation>(module, "FlowSimulation")
        .def(nb::init<Span<const double>, Span<const double>, double, Span<const Rank>, Span<const Int>,
                      Span<const Rank>, Span<const double>, Span<const Int>, Span<const Rank>, Span<const Rank>>(),
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(),
             nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>(), nb::keep_alive<1, 10>(),
             nb::keep_alive<1, 11>())
        .def("advance", &FlowSimulation::advance, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("arrived", &FlowSimulation::arrived)
        .def_prop_ro("opened_at_s", &FlowSimulation::opened_at_s)
        .def_prop_ro("arrived_at_s", &FlowSimulation::arrived_at_s);
}

}  // namespace chorale
