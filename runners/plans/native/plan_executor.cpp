#include "plan_executor.hpp"

#include <sched.h>

#include "chorale_engine.h"
#include "element_types.hpp"
#include "engine_clock.hpp"

namespace chorale::plans {
namespace {

constexpr size_t at_once = 1 << 15;  // bytes that are summed while they are in a cache
constexpr int patience = 200;        // rounds without progress after which processors are left to others

const char* reason(Kind kind) {
    switch (kind) {
        case Kind::wait: return "a signal";
        case Kind::acquire: return "a semaphore";
        case Kind::barrier: return "other blocks at a barrier";
        case Kind::move:
        case Kind::port_move: return "packets or its port";
        default: return "its turn";
    }
}

}  // namespace

PlanExecutor::PlanExecutor(const PlanOfRank& plan, PlanMemory memory, int type, Ports& ports)
    : plan_(plan),
      memory_(memory),
      type_(type),
      ports_(ports),
      heard_(plan.slots),
      semaphores_(plan.semaphores),
      barriers_(plan.barriers),
      sum_(at_once),
      summand_(at_once) {}

void PlanExecutor::call(int64_t deadline_ns) {
    call_++;
    states_.assign(plan_.blocks.size(), {});
    int idle = 0;
    for (;;) {
        bool moved = false, unfinished = false;
        for (size_t block = 0; block < states_.size(); block++) {
            moved |= advance(block);
            unfinished |= states_[block].at < plan_.blocks[block].size();
        }
        if (!unfinished && ports_.done(pushed_)) return;
        idle = moved ? 0 : idle + 1;
        if (idle == 0) continue;
        if (idle % 16 == 0 && monotonic_ns() > deadline_ns) throw Unfinished("the time limit has passed", blocked());
        if (idle < patience)
            sched_yield();
        else
            pause_ns(20'000);
    }
}

// Goes on with a block as far as it gets; returns whether it moved.
bool PlanExecutor::advance(size_t block) {
    const std::vector<Action>& actions = plan_.blocks[block];
    BlockState& state = states_[block];
    bool moved = false;
    while (state.at < actions.size() && perform(actions[state.at], state)) {
        step(actions, state);
        moved = true;
    }
    return moved;
}

void PlanExecutor::step(const std::vector<Action>& actions, BlockState& state) {
    state.progress = 0;
    state.entered = false;
    if (actions[state.at].kind == Kind::pipeline) {
        const size_t bytes = actions[state.at].pieces * memory_.piece_bytes();
        state.pipeline = state.at + 1;
        state.part = 0;
        state.parts = (bytes + actions[state.at].unit_bytes - 1) / actions[state.at].unit_bytes;
    }
    state.at++;
    if (state.pipeline == 0 || state.at <= state.pipeline - 1 + actions[state.pipeline - 1].length) return;
    if (++state.part < state.parts) {
        state.at = state.pipeline;
    } else {
        state.pipeline = state.part = 0;
        state.parts = 1;
    }
}

// Does an action; returns false where it has to wait.
bool PlanExecutor::perform(const Action& action, BlockState& state) {
    switch (action.kind) {
        case Kind::nop:
        case Kind::pipeline: return true;  // a block is one thread here
        case Kind::barrier: return meet(action, state);
        case Kind::signal:
            for (const Counter& each : action.counters) memory_.counter(each).fetch_add(1, std::memory_order_release);
            return true;
        case Kind::port_signal:
            for (const Counter& each : action.counters)
                pushed_ = ports_.push({nullptr, nullptr, 0, false, &memory_.counter(each)});
            return true;
        case Kind::wait: return wait(action, state);
        case Kind::acquire: return acquire(action, state);
        case Kind::release:
            for (const size_t number : action.numbers) semaphores_[number]++;
            return true;
        case Kind::move: return move(action, state);
        case Kind::port_move: return move_by_port(action, state);
    }
    return true;
}

bool PlanExecutor::meet(const Action& action, BlockState& state) {
    Barrier& barrier = barriers_[action.numbers[0]];
    if (!state.entered) {
        state.entered = true;
        state.ticket = barrier.rounds;
        if (++barrier.arrived == action.numbers[1]) {
            barrier.arrived = 0;
            barrier.rounds++;
        }
    }
    return barrier.rounds > state.ticket;
}

bool PlanExecutor::wait(const Action& action, BlockState& state) {
    for (; state.progress < action.numbers.size(); state.progress++) {
        const size_t slot = action.numbers[state.progress];
        if (memory_.counter({plan_.rank, slot}).load(std::memory_order_acquire) <= heard_[slot]) return false;
        heard_[slot]++;
    }
    return true;
}

bool PlanExecutor::acquire(const Action& action, BlockState& state) {
    for (; state.progress < action.numbers.size(); state.progress++) {
        int64_t& semaphore = semaphores_[action.numbers[state.progress]];
        if (semaphore < 1) return false;
        semaphore--;
    }
    return true;
}

// Which bytes of its stretches an action moves: all, or those of the part of the pipeline that it is in.
std::pair<size_t, size_t> PlanExecutor::range(const Action& action, const BlockState& state) const {
    const auto& some = !action.reads.empty() ? action.reads : action.takes;
    const size_t bytes = some[0].count * memory_.piece_bytes();
    if (state.pipeline == 0) return {0, bytes};
    const size_t unit = plan_.blocks[static_cast<size_t>(&state - states_.data())][state.pipeline - 1].unit_bytes;
    const size_t from = std::min(bytes, state.part * unit);
    return {from, std::min(unit, bytes - from)};
}

bool PlanExecutor::has_packets(const Action& action, BlockState& state, size_t from, size_t bytes) {
    while (state.progress < bytes * action.takes.size()) {
        const size_t skipped = state.progress % bytes;
        const char* packets = memory_.packets(action.takes[state.progress / bytes], from + skipped, call_);
        const size_t count = arrived(packets, bytes - skipped, call_);
        state.progress += count;
        if (count < bytes - skipped) return false;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    return true;
}

bool PlanExecutor::move(const Action& action, BlockState& state) {
    const auto [from, bytes] = range(action, state);
    if (!has_packets(action, state, from, bytes)) return false;
    copy(action, from, bytes);
    return true;
}

void PlanExecutor::copy(const Action& action, size_t from, size_t bytes) {
    const size_t element = element_size(type_), sources = action.reads.size() + action.takes.size();
    for (size_t at = from; at < from + bytes; at += at_once) {
        const size_t count = std::min(at_once, from + bytes - at);
        if (sources == 1 && action.takes.empty()) {
            write(action, at, memory_.data(action.reads[0], at), count);
            continue;
        }
        for (size_t number = 0; number < sources; number++) {
            char* target = number == 0 ? sum_.data() : summand_.data();
            if (number < action.reads.size())
                std::memcpy(target, memory_.data(action.reads[number], at), count);
            else
                read_packets(target, memory_.packets(action.takes[number - action.reads.size()], at, call_), count);
            if (number > 0) reduce(type_, CHORALE_SUM, sum_.data(), sum_.data(), summand_.data(), count / element);
        }
        write(action, at, sum_.data(), count);
    }
}

void PlanExecutor::write(const Action& action, size_t at, const char* data, size_t bytes) {
    for (const Stretch& each : action.writes) std::memmove(memory_.data(each, at), data, bytes);
    for (const Stretch& each : action.packets) write_packets(memory_.packets(each, at, call_), data, bytes, call_);
}

bool PlanExecutor::move_by_port(const Action& action, BlockState& state) {
    if (!state.entered) {
        const auto [from, bytes] = range(action, state);
        if (action.waits && !has_packets(action, state, from, bytes)) return false;
        const bool packets = !action.packets.empty();
        const Stretch& target = packets ? action.packets[0] : action.writes[0];
        const char* source = packets ? memory_.packets(action.takes[0], from, call_) : memory_.data(action.reads[0], from);
        char* there = packets ? memory_.packets(target, from, call_) : memory_.data(target, from);
        auto* counter = action.counters.empty() ? nullptr : &memory_.counter(action.counters[0]);
        state.ticket = pushed_ = ports_.push({source, there, packets ? 2 * bytes : bytes, packets, counter});
        state.entered = true;
    }
    return !action.flushes || ports_.done(state.ticket);
}

std::string PlanExecutor::blocked() const {
    std::string lines;
    for (size_t block = 0; block < states_.size(); block++) {
        const BlockState& state = states_[block];
        if (state.at == plan_.blocks[block].size()) continue;
        const Action& action = plan_.blocks[block][state.at];
        lines += std::to_string(block) + " " + std::to_string(action.step) + " waits for " + reason(action.kind) + "\n";
    }
    return lines;
}

}  // namespace chorale::plans
