#include "interpreter.hpp"

#include <csignal>
#include <cstring>

#include "clock.hpp"
#include "wait.hpp"

namespace chorale {

Interpreter::Interpreter(const Task& task, const Run& run, const Memory& memory, Network& network)
    : task_(task), run_(run), memory_(memory), network_(network), element_bytes_(element_bytes(task.type)) {
    is_faulty_ = task.fault.run <= static_cast<size_t>(&run - task.runs.data());
    const Program& program = task.programs[run.program];
    for (const Block& block : program.blocks) {
        State state{&block, nullptr, nullptr};
        if (block.send >= 0) state.outgoing = std::make_unique<Outgoing>(network, block, program.depth);
        if (block.recv >= 0)
            state.incoming = std::make_unique<Incoming>(network, block, program.depth, message_sizes(block));
        states_.push_back(std::move(state));
    }
}

int64_t Interpreter::execute() {
    Idle idle;
    while (!is_done()) {
        if (network_.is_late()) throw LimitPassed("its own blocks");
        if (take_turns())
            idle.reset();
        else
            idle.sleep();
    }
    return now_ns();
}

bool Interpreter::is_done() const {
    for (const State& state : states_)
        if (!state.is_done(run_.parts)) return false;
    return true;
}

void Interpreter::drain() {
    for (Idle idle;; idle.sleep()) {
        bool drained = true;
        for (State& state : states_) {
            if (!state.outgoing) continue;
            state.outgoing->progress();
            drained &= state.outgoing->is_drained();
        }
        if (drained) return;
        if (network_.is_late()) throw LimitPassed("the arrival of what it sent");
    }
}

std::vector<Stuck> Interpreter::stuck() const {
    std::vector<Stuck> found;
    for (size_t number = 0; number < states_.size(); number++)
        if (!states_[number].is_done(run_.parts))
            found.push_back({number, states_[number].step, reason(states_[number])});
    return found;
}

// Gives every block one turn, so that all fill their connections before one sends more.
bool Interpreter::take_turns() {
    bool went = false;
    for (State& state : states_) {
        if (state.outgoing) went |= state.outgoing->progress();
        if (state.incoming) went |= state.incoming->progress();
        went |= advance(state);
    }
    return went;
}

bool Interpreter::advance(State& state) {
    if (state.is_done(run_.parts)) return false;
    const Instruction& step = state.block->instructions[state.step];
    if (state.piece == 0 && unmet_wait(state) != nullptr) return false;
    if (step.receives && !state.incoming->has_message()) return false;
    if (step.sends && !state.outgoing->has_room()) return false;
    if (is_faulty_) misbehave();
    perform(state, step, piece_of(step, state));
    if (++state.piece < pieces(step)) return true;
    state.piece = 0;
    if (++state.step < state.block->instructions.size()) return true;
    state.step = 0;
    state.part++;
    return true;
}

void Interpreter::perform(State& state, const Instruction& step, const Piece& piece) {
    const size_t bytes = piece.elements * element_bytes_;
    if (step.is_copy) std::memmove(piece.dst, piece.src, bytes);
    if (step.is_reduce) add(task_.type, piece.dst, piece.dst, piece.src, piece.elements);
    const char* result = step.receives ? state.incoming->message() : piece.src;
    if (step.reduces) {
        char* sum = step.stores ? piece.dst : state.outgoing->message(bytes);
        add(task_.type, sum, result, piece.src, piece.elements);
        result = sum;
    } else if (step.stores) {
        std::memcpy(piece.dst, result, bytes);
    }
    if (step.sends) {
        char* message = state.outgoing->message(bytes);
        if (message != result) std::memcpy(message, result, bytes);
        state.outgoing->post();
    }
    if (step.receives) state.incoming->pop();
}

Interpreter::Piece Interpreter::piece_of(const Instruction& step, const State& state) const {
    const size_t start = part_start(state.part);
    const size_t length = part_start(state.part + 1) - start;
    Place src = step.src, dst = step.dst;
    src.offset += state.piece;
    dst.offset += state.piece;
    const size_t offset = start * element_bytes_;
    return {memory_.at(src) + offset, memory_.at(dst) + offset, pieces(step) == 1 ? length * step.count : length};
}

std::vector<size_t> Interpreter::message_sizes(const Block& block) const {
    std::vector<size_t> sizes;
    for (size_t part = 0; part < run_.parts; part++)
        for (const Instruction& step : block.instructions)
            if (step.receives) {
                const size_t bytes = (part_start(part + 1) - part_start(part)) * element_bytes_;
                const size_t number = pieces(step);
                sizes.insert(sizes.end(), number, bytes * (step.count / number));
            }
    return sizes;
}

const Wait* Interpreter::unmet_wait(const State& state) const {
    for (const Wait& wait : state.block->instructions[state.step].waits) {
        const State& other = states_[wait.block];
        if (other.part < state.part || (other.part == state.part && other.step <= wait.step)) return &wait;
    }
    return nullptr;
}

std::string Interpreter::reason(const State& state) const {
    const Instruction& step = state.block->instructions[state.step];
    if (const Wait* wait = state.piece == 0 ? unmet_wait(state) : nullptr)
        return "waits for block " + std::to_string(wait->block) + " instruction " + std::to_string(wait->step);
    if (step.receives && !state.incoming->has_message())
        return "waits for a message from rank " + std::to_string(state.block->recv);
    if (step.sends && !state.outgoing->has_room())
        return "waits until rank " + std::to_string(state.block->send) + " receives";
    return "could go on";
}

// Tests ask for this, see Fault.
void Interpreter::misbehave() const {
    const Fault& fault = task_.fault;
    if (fault.kind == "crash") std::raise(SIGSEGV);
    if (fault.kind == "slow") sleep_ns(fault.microseconds * 1000);
    Idle idle;
    do {
        if (network_.is_late()) throw LimitPassed("nothing");
        if (fault.kind == "hang") idle.sleep();
    } while (fault.kind == "hang");
}

}  // namespace chorale
