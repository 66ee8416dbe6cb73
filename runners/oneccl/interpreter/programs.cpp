#include "programs.hpp"

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

int64_t Programs::execute(const Run& run, const Memory& memory) {
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
    const int status = chorale_execute(engine_.get(), &call);
    if (status == CHORALE_TIMEOUT) throw LimitPassed(chorale_error(engine_.get()));
    if (status != CHORALE_OK) throw std::runtime_error(chorale_error(engine_.get()));
    return call.end_ns;
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
