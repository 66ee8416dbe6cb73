#include "programs.hpp"

#include <algorithm>
#include <csignal>
#include <stdexcept>

#include "engine_clock.hpp"
#include "failure.hpp"

namespace chorale {

Programs::Programs(const Task& task, Network& network)
    : task_(task), network_(network), engine_(chorale_engine_new(task.rank, task.ranks), chorale_engine_free) {
    const chorale_messages messages = network.messages();
    chorale_use_messages(engine_.get(), &messages);
    for (const auto& words : task.programs) {
        numbers_.push_back(chorale_program_load(engine_.get(), words.data(), words.size()));
        if (numbers_.back() < 0) throw std::runtime_error(chorale_error(engine_.get()));
    }
    const auto before_step = [](void* self, int, int) { static_cast<const Programs*>(self)->misbehave(); };
    if (task.fault.kind != "none") chorale_on_step(engine_.get(), before_step, this);
}

int64_t Programs::execute(const Run& run, const Memory& memory, int64_t start_ns) {
    is_faulty_ = task_.fault.run <= static_cast<size_t>(&run - task_.runs.data());
    chorale_call call{};
    call.program = numbers_.at(run.program);
    call.input = memory.input();
    call.output = memory.output();
    call.elements = run.elements;
    call.type = task_.type;
    call.operation = CHORALE_SUM;
    call.parts = run.parts;
    call.limit_s = network_.seconds_left();
    call.not_before_ns = start_ns;
    steps_.resize(task_.trace_room);
    call.steps = steps_.empty() ? nullptr : steps_.data();
    call.step_room = steps_.size();
    const int status = chorale_execute(engine_.get(), &call);
    if (status == CHORALE_TIMEOUT) throw LimitPassed(chorale_error(engine_.get()));
    if (status != CHORALE_OK) throw std::runtime_error(chorale_error(engine_.get()));
    last_ = call;
    return call.end_ns;
}

void Programs::write_trace(std::ostream& file, size_t run, int64_t from_ns) const {
    if (steps_.empty()) return;
    const size_t count = std::min(last_.step_count, steps_.size());
    file << run << " " << last_.start_ns - from_ns << " " << last_.end_ns - from_ns << " " << last_.cpu_ns;
    for (size_t i = 0; i < count; i++) {
        const chorale_step_time& one = steps_[i];
        file << " " << one.block << " " << one.step << " " << one.part << " " << one.piece << " "
             << one.ready_ns - from_ns << " " << (one.start_ns > 0 ? one.start_ns - from_ns : 0) << " "
             << one.end_ns - from_ns;
    }
    file << std::endl;
}

// Tests ask for this, see Fault.
void Programs::misbehave() const {
    const Fault& fault = task_.fault;
    if (!is_faulty_) return;
    if (fault.kind == "crash") std::raise(SIGSEGV);
    if (fault.kind == "slow") pause_ns(fault.microseconds * 1000);
    while (fault.kind == "hang" && network_.seconds_left() > 0) pause_ns(1'000'000);
    if (network_.seconds_left() <= 0) throw Failure(CHORALE_TIMEOUT, "nothing");
}

}  // namespace chorale
