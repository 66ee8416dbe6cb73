// The programs of a task, which the engine executes over the network.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "chorale_engine.h"
#include "memory.hpp"
#include "network.hpp"
#include "task.hpp"

namespace chorale {

class Programs {
public:
    Programs(const Task& task, Network& network);

    // Starts at `start_ns`, prepared for it. Returns when the last instruction was done, but not before all that was
    // sent has left. LimitPassed when the limit passes before.
    int64_t execute(const Run& run, const Memory& memory, int64_t start_ns);

    // Writes what each step of the last execution took, after `from_ns`, as a line that begins with the number of the
    // run; nothing where the task has no room for steps.
    void write_trace(std::ostream& file, size_t run, int64_t from_ns) const;

    // Where the blocks stand that were not finished when the limit passed: a line "BLOCK STEP reason" for each.
    std::string blocked() const { return chorale_blocked(engine_.get()); }

private:
    void misbehave() const;

    const Task& task_;
    Network& network_;
    std::unique_ptr<chorale_engine, void (*)(chorale_engine*)> engine_;
    std::vector<int64_t> numbers_;
    std::vector<chorale_step_time> steps_;
    chorale_call last_{};
    bool is_faulty_ = false;
};

}  // namespace chorale
