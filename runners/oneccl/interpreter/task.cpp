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

std::vector<int64_t> read_program(std::istream& text) { return list(text, "words", next<int64_t>); }

Run read_run(std::istream& text) {
    Run run{next<int>(text) != 0, next<size_t>(text), next<int>(text) != 0, next<size_t>(text), next<size_t>(text), {}};
    run.pattern = {next<uint32_t>(text), next<uint32_t>(text), next<uint32_t>(text), {}};
    run.pattern.weights = list(text, "weights", next<int64_t>);
    return run;
}

}  // namespace

Task read_task(std::istream& text) {
    expect(text, "chorale-task-3");
    Task task;
    task.rank = next<int>(text);
    task.ranks = next<int>(text);
    task.type = next<int>(text);
    task.collective = next<std::string>(text);
    task.root = next<int>(text);
    task.start_limit_s = next<double>(text);
    task.run_limit_s = next<double>(text);
    task.channels = next<size_t>(text);
    task.fault = {next<std::string>(text), next<size_t>(text), next<long>(text)};
    task.trace_room = next<size_t>(text);
    task.programs = list(text, "programs", read_program);
    task.runs = list(text, "runs", read_run);
    expect(text, "end");
    return task;
}

}  // namespace chorale
