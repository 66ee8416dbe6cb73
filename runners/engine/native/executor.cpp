#include "executor.hpp"

#include <algorithm>
#include <cstring>

#include "element_types.hpp"
#include "engine_clock.hpp"
#include "failure.hpp"

namespace chorale {
namespace {

constexpr size_t stage_bytes = 64 * 1024;

}  // namespace

Executor::Executor(const Program& program, chorale_call& call, Buffers& buffers, Transport& transport,
                   const Settings& settings)
    : program_(program),
      call_(call),
      buffers_(buffers),
      transport_(transport),
      settings_(settings),
      element_bytes_(element_size(call.type)),
      parts_(std::clamp<size_t>(call.parts, 1, std::max<size_t>(buffers.chunk_elements(), 1))),
      states_(program.blocks.size()) {
    for (size_t i = 0; i < states_.size(); i++) states_[i].block = &program.blocks[i];
}

Executor::~Executor() {
    for (const State& state : states_) {
        if (state.outgoing != nullptr) transport_.set_sender(state.block->send_peer, state.block->channel, -1);
        if (state.incoming != nullptr) transport_.set_receiver(state.block->recv_peer, state.block->channel, -1);
    }
}

void Executor::start(uint32_t tag) {
    connect_blocks(tag);
    busy_ = static_cast<size_t>(std::count_if(states_.begin(), states_.end(), [&](auto& s) { return !is_done(s); }));
    for (size_t i = 0; i < states_.size(); i++) enqueue(i);
}

void Executor::connect_blocks(uint32_t tag) {
    for (size_t number = 0; number < states_.size(); number++) {
        State& state = states_[number];
        const Block& block = *state.block;
        if (block.send_peer >= 0) {
            transport_.set_sender(block.send_peer, block.channel, static_cast<int>(number));
            state.outgoing = &transport_.outgoing(block.send_peer, block.channel);
            state.outgoing->start(tag, program_.depth);
        }
        if (block.recv_peer >= 0) {
            transport_.set_receiver(block.recv_peer, block.channel, static_cast<int>(number));
            state.incoming = &transport_.incoming(block.recv_peer, block.channel);
            state.incoming->start(tag, message_sizes(block), program_.depth);
        }
    }
}

std::vector<size_t> Executor::message_sizes(const Block& block) const {
    std::vector<size_t> sizes;
    for (size_t part = 0; part < parts_; part++)
        for (const Instruction& step : block.steps)
            if (step.receives()) sizes.insert(sizes.end(), pieces(step), piece_bytes_of(step, part));
    return sizes;
}

size_t Executor::piece_bytes_of(const Instruction& step, size_t part) const {
    return (part_start(part + 1) - part_start(part)) * element_bytes_ * (step.count / pieces(step));
}

void Executor::run(int64_t deadline_ns) {
    std::vector<int> ready;
    while (true) {
        run_queue();
        if (busy_ == 0) return;
        read_ahead();
        if (monotonic_ns() > deadline_ns) throw Failure(CHORALE_TIMEOUT, "the time limit passed");
        ready.clear();
        transport_.wait(deadline_ns, ready);
        for (const int block : ready) enqueue(static_cast<size_t>(block));
    }
}

// Only blocks that had a turn need to read ahead, because a block for which data arrive gets a turn.
void Executor::read_ahead() {
    for (const size_t number : had_turn_) {
        State& state = states_[number];
        state.had_turn = false;
        if (state.incoming != nullptr) state.incoming->read_ahead();
    }
    had_turn_.clear();
}

void Executor::drain(int64_t deadline_ns) {
    std::vector<int> ready;
    const auto has_left = [](State& state) { return state.outgoing == nullptr || state.outgoing->is_drained(); };
    while (!std::all_of(states_.begin(), states_.end(), has_left)) {
        if (monotonic_ns() > deadline_ns) throw Failure(CHORALE_TIMEOUT, "what was sent did not leave in time");
        ready.clear();
        transport_.wait(deadline_ns, ready);
    }
}

void Executor::enqueue(size_t block) {
    if (!states_[block].is_queued) queue_.push_back(static_cast<int>(block));
    states_[block].is_queued = true;
}

// Gives turns to the blocks round robin, so that every connection gets data before any block sends more.
void Executor::run_queue() {
    while (!queue_.empty()) {
        next_queue_.clear();
        std::swap(queue_, next_queue_);
        for (const int number : next_queue_) {
            State& state = states_[static_cast<size_t>(number)];
            if (!state.had_turn) had_turn_.push_back(static_cast<size_t>(number));
            state.had_turn = true;
            state.is_queued = false;
            if (advance(static_cast<size_t>(number))) enqueue(static_cast<size_t>(number));
        }
    }
}

// Advances a block; returns whether it should have another turn.
bool Executor::advance(size_t number) {
    State& state = states_[number];
    while (!is_done(state)) {
        const Instruction& step = state.block->steps[state.step];
        if (!state.has_begun && !begin(state, number)) return false;
        if (move(state, step) && state.start_ns == 0) state.start_ns = monotonic_ns();
        if (!is_complete(state, step)) {
            if (!state.waiters.empty() && step.receives() && step.stores()) wake_waiters(state);
            return false;
        }
        finish(state, step);
        if (step.sends()) return !is_done(state);
    }
    return false;
}

// If everything that the next piece waits for has happened, prepares the piece and returns true. Otherwise makes the
// block wait for another block and returns false.
bool Executor::begin(State& state, size_t number) {
    const Instruction& step = state.block->steps[state.step];
    if (state.piece == 0 && unmet(state, false) != nullptr) {
        wait_for(state, number);
        return false;
    }
    if (settings_.on_step) settings_.on_step(static_cast<int>(number), static_cast<int>(state.step));
    const size_t offset = part_start(state.part) * element_bytes_;
    state.length = piece_bytes_of(step, state.part);
    state.src = step.reads() ? buffers_.at({step.src.buffer, step.src.offset + state.piece}) + offset : nullptr;
    state.dst = step.stores() ? buffers_.at({step.dst.buffer, step.dst.offset + state.piece}) + offset : nullptr;
    if (step.op == Op::recv_reduce_send) {
        state.passed_on.resize(state.length);
        state.dst = state.passed_on.data();
    }
    state.received = state.stored = state.sent = state.staged = 0;
    state.start_ns = 0;
    state.ready_ns = call_.steps != nullptr ? monotonic_ns() : 0;
    if (step.receives()) state.incoming->begin();
    if (step.sends()) state.outgoing->begin(state.length);
    state.has_begun = true;
    return true;
}

bool Executor::move(State& state, const Instruction& step) {
    switch (step.op) {
        case Op::copy: std::memmove(state.dst, state.src, state.length); return true;
        case Op::reduce:
            reduce(call_.type, call_.operation, state.dst, state.dst, state.src, state.length / element_bytes_);
            return true;
        case Op::send: return send(state, state.src, available(state, step));
        default: {
            const bool has_received = step.reduces_message() ? receive_and_reduce(state, step) : receive(state, step);
            const bool has_all = state.stored == state.length && step.sends() && state.incoming->is_done();
            // The last byte is only forwarded once the message's checksum has been verified.
            const size_t sendable = has_all ? state.length : state.stored - std::min<size_t>(state.stored, 1);
            return (step.sends() && send(state, state.dst, sendable)) || has_received;
        }
    }
}

bool Executor::receive(State& state, const Instruction&) {
    const size_t count = state.incoming->give(state.dst + state.received, state.length - state.received);
    state.received += count;
    state.stored = state.received;
    return count > 0;
}

// While the bytes to which the message is added are not available, receives only as much as fits into the stage.
bool Executor::receive_and_reduce(State& state, const Instruction& step) {
    bool any = false;
    if (state.stage.size() < stage_bytes) state.stage.resize(std::min(stage_bytes, state.length));
    const size_t there = available(state, step);
    while (state.stored < state.length) {
        const size_t room = std::min(state.stage.size() - state.staged, state.length - state.received);
        const size_t count = room == 0 ? 0 : state.incoming->give(state.stage.data() + state.staged, room);
        state.received += count;
        state.staged += count;
        const size_t whole = std::min(state.staged, there - std::min(there, state.stored)) / element_bytes_;
        if (count == 0 && whole == 0) break;
        any = true;
        add_staged(state, whole);
    }
    return any;
}

void Executor::add_staged(State& state, size_t elements) {
    const size_t bytes = elements * element_bytes_;
    reduce(call_.type, call_.operation, state.dst + state.stored, state.stage.data(), state.src + state.stored, elements);
    state.stored += bytes;
    state.staged -= bytes;
    if (state.staged > 0) std::memmove(state.stage.data(), state.stage.data() + bytes, state.staged);
}

// Sends those of the available bytes that were not sent yet, in multiples of `piece_bytes` except for the last piece.
bool Executor::send(State& state, const char* bytes, size_t available) {
    if (available < state.length) available -= available % settings_.piece_bytes;
    if (available <= state.sent && state.sent < state.length) return false;
    const size_t count = state.outgoing->take(bytes + state.sent, available - state.sent);
    state.sent += count;
    return count > 0;
}

// Returns how many of the bytes that a step reads are available: all, unless another step is still storing them.
size_t Executor::available(State& state, const Instruction& step) {
    size_t bytes = state.length;
    for (const Wait& wait : step.waits) {
        if (is_met(state, wait)) continue;
        const size_t before = static_cast<size_t>(wait.shift) * (state.length / step.count);
        const size_t stored = states_[wait.block].stored;
        bytes = std::min(bytes, stored > before ? stored - before : 0);
        // The other step's message can only be verified at its end, so the last byte is held back.
        bytes = std::min(bytes, state.length - 1);
    }
    if (bytes < state.length) wait_for(state, static_cast<size_t>(&state - states_.data()));
    return bytes;
}

bool Executor::is_complete(State& state, const Instruction& step) const {
    if (step.receives() && (state.stored < state.length || !state.incoming->is_done())) return false;
    return !step.sends() || (state.sent == state.length && state.outgoing->is_done());
}

void Executor::finish(State& state, const Instruction& step) {
    record(state);
    state.has_begun = false;
    if (++state.piece == pieces(step)) {
        state.piece = 0;
        if (++state.step == state.block->steps.size()) {
            state.step = 0;
            state.part++;
        }
    }
    if (is_done(state)) busy_--;
    wake_waiters(state);
}

void Executor::record(const State& state) {
    if (call_.steps == nullptr) return;
    if (call_.step_count < call_.step_room)
        call_.steps[call_.step_count] = {static_cast<int32_t>(&state - states_.data()),
                                         static_cast<int32_t>(state.step),
                                         static_cast<int32_t>(state.part),
                                         static_cast<int32_t>(state.piece),
                                         state.ready_ns,
                                         state.start_ns,
                                         monotonic_ns()};
    call_.step_count++;
}

void Executor::wake_waiters(State& state) {
    for (const size_t block : state.waiters) enqueue(block);
    state.waiters.clear();
}

void Executor::wait_for(State& state, size_t number) {
    const Wait* wait = unmet(state, true);
    if (wait == nullptr) return;
    auto& waiters = states_[wait->block].waiters;
    if (std::find(waiters.begin(), waiters.end(), number) == waiters.end()) waiters.push_back(number);
}

bool Executor::is_met(const State& state, const Wait& wait) const {
    const State& other = states_[wait.block];
    return other.part > state.part || (other.part == state.part && other.step > wait.step);
}

// Returns whether the other step has begun to store bytes that this step may use as they arrive.
bool Executor::is_passing(const State& state, const Wait& wait) const {
    const State& other = states_[wait.block];
    return wait.shift >= 0 && parts_ == 1 && other.part == state.part && other.step == wait.step && other.has_begun;
}

// Returns the first unmet wait of the current step. If `counts_passing` is false, waits for which `is_passing` is true
// do not count.
const Wait* Executor::unmet(const State& state, bool counts_passing) const {
    for (const Wait& wait : state.block->steps[state.step].waits)
        if (!is_met(state, wait) && (counts_passing || !is_passing(state, wait))) return &wait;
    return nullptr;
}

std::string Executor::blocked() const {
    std::string text;
    for (size_t number = 0; number < states_.size(); number++)
        if (!is_done(states_[number]))
            text += std::to_string(number) + " " + std::to_string(states_[number].step) + " " +
                    reason(states_[number]) + "\n";
    return text;
}

std::string Executor::reason(const State& state) const {
    const Instruction& step = state.block->steps[state.step];
    if (const Wait* wait = unmet(state, true))
        return "waits for block " + std::to_string(wait->block) + " instruction " + std::to_string(wait->step);
    if (!state.has_begun) return "could go on";
    if (step.receives() && (state.stored < state.length || !step.sends()))
        return "waits for a message from rank " + std::to_string(state.block->recv_peer);
    if (step.sends()) return "waits until rank " + std::to_string(state.block->send_peer) + " receives";
    return "could go on";
}

}  // namespace chorale
