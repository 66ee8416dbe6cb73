#include "task.hpp"

#include <stdexcept>

namespace chorale {
namespace {

template <class Value>
Value next(std::istream& text) {
    Value value;
    if (!(text >> value)) throw std::runtime_error("the task ends too early or is malformed");
    return value;
}

void expect(std::istream& text, const std::string& word) {
    const auto found = next<std::string>(text);
    if (found != word) throw std::runtime_error("the task has " + found + " instead of " + word);
}

template <class Read>
auto list(std::istream& text, const std::string& name, Read read) {
    expect(text, name);
    std::vector<decltype(read(text))> items;
    for (auto left = next<size_t>(text); left > 0; left--) items.push_back(read(text));
    return items;
}

void set_operation(Instruction& step, const std::string& name) {
    step.is_copy = name == "cpy";
    step.is_reduce = name == "re";
    step.receives = name[0] == 'r' && !step.is_reduce;
    step.sends = name.back() == 's';
    step.reduces = name == "rrs" || name == "rrc" || name == "rrcs";
    step.stores = name == "r" || name == "rcs" || name == "rrc" || name == "rrcs";
}

Instruction read_instruction(std::istream& text) {
    Instruction step;
    set_operation(step, next<std::string>(text));
    step.src = {next<char>(text), next<size_t>(text)};
    step.dst = {next<char>(text), next<size_t>(text)};
    step.count = next<size_t>(text);
    step.waits = list(text, "waits", [](std::istream& in) { return Wait{next<size_t>(in), next<size_t>(in)}; });
    return step;
}

Block read_block(std::istream& text) {
    Block block{next<int>(text), next<int>(text), next<size_t>(text), {}};
    block.instructions = list(text, "steps", read_instruction);
    return block;
}

Program read_program(std::istream& text) {
    Program program{next<size_t>(text), next<size_t>(text), next<size_t>(text), next<int>(text) != 0, {}};
    program.blocks = list(text, "blocks", read_block);
    return program;
}

Run read_run(std::istream& text) {
    Run run{next<int>(text) != 0, next<size_t>(text), next<size_t>(text), next<size_t>(text), {}};
    run.pattern = {next<uint32_t>(text), next<uint32_t>(text), next<uint32_t>(text), {}};
    run.pattern.weights = list(text, "weights", [](std::istream& in) { return next<int64_t>(in); });
    return run;
}

}  // namespace

Task read_task(std::istream& text) {
    expect(text, "chorale-task-1");
    Task task;
    task.rank = next<int>(text);
    task.ranks = next<int>(text);
    task.type = element_type_named(next<std::string>(text));
    task.collective = next<std::string>(text);
    task.root = next<int>(text);
    task.start_limit_s = next<double>(text);
    task.run_limit_s = next<double>(text);
    task.channels = next<size_t>(text);
    task.fault = {next<std::string>(text), next<size_t>(text), next<long>(text)};
    task.programs = list(text, "programs", read_program);
    task.runs = list(text, "runs", read_run);
    expect(text, "end");
    return task;
}

}  // namespace chorale
