#include "plan_words.hpp"

#include <algorithm>
#include <string>

namespace chorale::plans {
namespace {

constexpr int64_t version = 1, most_pieces = int64_t{1} << 40, most_numbers = 1 << 20;

WrongPlan wrong(const std::string& what) { return WrongPlan("the plan " + what); }

class Words {
public:
    Words(const int64_t* words, size_t count) : next_(words), end_(words + count) {}

    int64_t number(int64_t least, int64_t most, const char* what) {
        if (next_ == end_) throw wrong("ends too early");
        const int64_t value = *next_++;
        if (value < least || value > most) throw wrong(std::string("has a wrong ") + what + ": " + std::to_string(value));
        return value;
    }
    size_t size(int64_t most, const char* what) { return static_cast<size_t>(number(0, most, what)); }
    // How many items follow; each takes a word or more.
    size_t length(const char* what) { return size(end_ - next_, what); }
    bool at_end() const { return next_ == end_; }

private:
    const int64_t *next_, *end_;
};

class Decoder {
public:
    Decoder(Words& words, PlanOfRank& plan) : words_(words), plan_(plan) {}

    std::vector<Action> block() {
        std::vector<Action> actions;
        for (size_t left = words_.length("number of actions"); left > 0; left--) actions.push_back(action());
        for (size_t at = 0; at < actions.size(); at++) {
            if (actions[at].kind != Kind::pipeline) continue;
            const size_t length = actions[at].length;
            if (length == 0 || length > actions.size() - at - 1) throw wrong("has a pipeline that ends nowhere");
            for (size_t inner = at + 1; inner <= at + length; inner++)
                if (actions[inner].kind == Kind::pipeline) throw wrong("has a pipeline in a pipeline");
        }
        return actions;
    }

private:
    Action action() {
        Action action;
        action.step = words_.number(0, most_numbers, "step");
        action.kind = static_cast<Kind>(words_.number(0, static_cast<int64_t>(Kind::pipeline), "action"));
        switch (action.kind) {
            case Kind::nop: break;
            case Kind::barrier:
                action.numbers = {words_.size(most_numbers, "barrier"), words_.size(most_numbers, "number of blocks")};
                if (action.numbers[1] == 0) throw wrong("has a barrier for nobody");
                plan_.barriers = std::max(plan_.barriers, action.numbers[0] + 1);
                break;
            case Kind::signal:
            case Kind::port_signal: action.counters = counters(); break;
            case Kind::wait: action.numbers = numbers(plan_.slots, "counter"); break;
            case Kind::acquire:
            case Kind::release: action.numbers = numbers(plan_.semaphores.size(), "semaphore"); break;
            case Kind::move: read_stretches(action); break;
            case Kind::port_move:
                read_stretches(action);
                action.counters = counters();
                action.waits = words_.number(0, 1, "flag") != 0;
                action.flushes = words_.number(0, 1, "flag") != 0;
                check_port(action);
                break;
            case Kind::pipeline:
                action.unit_bytes = static_cast<size_t>(words_.number(1, most_pieces, "part of a pipeline"));
                action.pieces = static_cast<size_t>(words_.number(1, most_pieces, "length of a pipeline"));
                action.length = words_.size(most_numbers, "pipeline");
                break;
        }
        return action;
    }

    void read_stretches(Action& action) {
        action.reads = stretches(plan_.data_pieces);
        action.takes = stretches(plan_.packet_pieces);
        action.writes = stretches(plan_.data_pieces);
        action.packets = stretches(plan_.packet_pieces);
        size_t count = 0;
        for (const auto* some : {&action.reads, &action.takes, &action.writes, &action.packets})
            for (const Stretch& each : *some) {
                if (count != 0 && each.count != count) throw wrong("moves stretches of several lengths at once");
                count = each.count;
            }
        if (action.reads.empty() && action.takes.empty()) throw wrong("moves data from nowhere");
        for (const Stretch& each : action.takes)
            if (each.rank != plan_.rank) throw wrong("waits for packets elsewhere");
    }

    void check_port(const Action& action) const {
        const bool plain = action.reads.size() == 1 && action.writes.size() == 1 && action.reads[0].rank == plan_.rank &&
                           action.takes.empty() && action.packets.empty();
        const bool packets = action.takes.size() == 1 && action.packets.size() == 1 && action.reads.empty() &&
                             action.writes.empty();
        const size_t target = plain ? action.writes[0].rank : packets ? action.packets[0].rank : plan_.rank;
        if (target == plan_.rank || action.counters.size() > 1) throw wrong("has a port that leads nowhere");
        for (const Counter& counter : action.counters)
            if (counter.rank != target) throw wrong("has a port that signals somebody else");
    }

    std::vector<Stretch> stretches(size_t room) {
        std::vector<Stretch> some;
        for (size_t left = words_.length("number of stretches"); left > 0; left--) {
            const size_t rank = words_.size(static_cast<int64_t>(plan_.ranks) - 1, "rank");
            const size_t first = words_.size(most_pieces, "first piece");
            const auto count = static_cast<size_t>(words_.number(1, most_pieces, "number of pieces"));
            if (first > room || count > room - first) throw wrong("goes beyond its memory");
            some.push_back({rank, first, count});
        }
        return some;
    }

    std::vector<Counter> counters() {
        std::vector<Counter> some;
        for (size_t left = words_.length("number of counters"); left > 0; left--) {
            const size_t rank = words_.size(static_cast<int64_t>(plan_.ranks) - 1, "rank");
            some.push_back({rank, words_.size(static_cast<int64_t>(plan_.slots) - 1, "counter")});
        }
        return some;
    }

    std::vector<size_t> numbers(size_t end, const char* what) {
        std::vector<size_t> some;
        for (size_t left = words_.length("list"); left > 0; left--)
            some.push_back(words_.size(static_cast<int64_t>(end) - 1, what));
        return some;
    }

    Words& words_;
    PlanOfRank& plan_;
};

}  // namespace

PlanOfRank decode_plan(const int64_t* words, size_t count, size_t rank, size_t ranks) {
    Words input(words, count);
    input.number(version, version, "version");
    PlanOfRank plan{};
    plan.rank = rank;
    plan.ranks = ranks;
    const auto all = static_cast<int64_t>(ranks);
    input.number(all, all, "number of ranks");
    plan.slots = input.size(most_numbers, "number of counters");
    plan.data_pieces = input.size(most_pieces, "length of memory");
    plan.packet_pieces = input.size(most_pieces, "length of packets");
    plan.halves = input.number(0, 1, "flag for halves") != 0;
    for (size_t left = input.length("number of semaphores"); left > 0; left--)
        plan.semaphores.push_back(input.number(0, INT64_MAX, "semaphore"));
    Decoder decoder(input, plan);
    for (size_t left = input.length("number of blocks"); left > 0; left--) plan.blocks.push_back(decoder.block());
    if (!input.at_end()) throw wrong("goes on after its end");
    return plan;
}

}  // namespace chorale::plans
