// One rank: reads its task, joins the others, goes through the runs and reports on each.
//
// Argument: the IP address of this rank. Files of the working folder:
//   task       what to do (see runners/oneccl/tasks.py)
//   key-store  where oneCCL's key-value store is: rank 0 writes it, the other ranks read it
//   joined     there as soon as this rank has heard from the others; from then on the time limit counts
//   results    a line for each run: start and end in nanoseconds of rank 0's clock, then what is wrong with the result,
//              if anything; "end" after the last
//   trace      where the task asks for it, a line for each run of a program: see Programs::write_trace
//   stuck      when the time limit passes: what this rank was waiting for, then a line for each unfinished block
// Exit codes: 3 the time limit passed; 4 an error that is named on standard error. After the last run it waits to be
// killed, so that no connection closes while somebody may still read from it.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <sstream>

#include "element_types.hpp"
#include "engine_clock.hpp"
#include "failure.hpp"
#include "network.hpp"

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

Run read_run(std::istream& text) {
    Run run{next<int>(text) != 0, next<size_t>(text), next<int>(text) != 0, next<size_t>(text), next<size_t>(text), {}};
    run.pattern = {next<uint32_t>(text), next<uint32_t>(text), next<uint32_t>(text), {}};
    run.pattern.weights = list(text, "weights", next<int64_t>);
    return run;
}

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
    task.programs = list(text, "programs", [](std::istream& words) { return list(words, "words", next<int64_t>); });
    task.runs = list(text, "runs", read_run);
    expect(text, "end");
    return task;
}

// Where the data of a collective come from: position x of rank r's vector, or the sum of all ranks' at x.
class Data {
public:
    explicit Data(const Run& run) : pattern_(run.pattern), ranks_(static_cast<int64_t>(run.pattern.weights.size())) {
        for (auto weight : pattern_.weights) total_weight_ += weight;
    }

    int64_t datum(int rank, size_t position) const {
        const auto [base, slope] = at(position);
        return base + pattern_.weights[rank] * slope;
    }

    int64_t total(size_t position) const {
        const auto [base, slope] = at(position);
        return ranks_ * base + total_weight_ * slope;
    }

private:
    std::pair<int64_t, int64_t> at(size_t position) const {
        uint32_t hashed = static_cast<uint32_t>(position) + pattern_.offset;
        hashed *= 0x9E3779B1U;
        hashed ^= hashed >> 15;
        hashed *= 0x85EBCA77U;
        hashed ^= hashed >> 13;
        return {hashed % pattern_.half, std::max<int64_t>((hashed >> 11) % pattern_.slope_limit, 1)};
    }

    const Pattern& pattern_;
    int64_t ranks_, total_weight_ = 0;
};

// Input and output of one rank for one run, what they hold before, and whether they hold the right things after.
class Memory {
public:
    Memory(const Task& task, const Run& run) : task_(task), run_(run), element_bytes_(element_size(task.type)) {
        const size_t shard = run.elements / task.ranks;
        input_elements_ = task.collective == "allgather" ? shard : run.elements;
        output_elements_ = task.collective == "reduce_scatter" ? shard : run.elements;
        const size_t smaller = std::min(input_elements_, output_elements_) * element_bytes_;
        const size_t larger = std::max(input_elements_, output_elements_) * element_bytes_;
        bytes_.resize(run.is_in_place ? larger : smaller + larger);
        input_ = output_ = bytes_.data();
        if (!run.is_in_place)
            output_ += input_elements_ * element_bytes_;
        else if (smaller < larger)
            (input_elements_ < output_elements_ ? input_ : output_) += task.rank * smaller;
        for (size_t at = 0; at < bytes_.size(); at += element_bytes_) store_element(task.type, &bytes_[at], untouched);
        each_input([&](size_t i, int64_t value) {
            store_element(task_.type, input_ + i * element_bytes_, static_cast<double>(value));
        });
    }

    char* input() const { return input_; }
    char* output() const { return output_; }

    // "" if every element is right, else which is not.
    std::string complaint() const {
        size_t wrong = 0;
        std::string first;
        const char* found = output_;
        const auto compare = [&](size_t i, int64_t value) {
            const double element = load_element(task_.type, found + i * element_bytes_);
            if (element == static_cast<double>(value)) return;
            if (wrong++ == 0)
                first = "the first is element " + std::to_string(i) + ": " + std::to_string(element) + " instead of " +
                        std::to_string(value);
        };
        const auto report = [&](const char* what, size_t of) {
            return std::to_string(wrong) + " of " + std::to_string(of) + " elements of the " + what + " are wrong, " +
                   first;
        };
        each_output(compare);
        if (wrong > 0) return report("output", output_elements_);
        if (run_.is_in_place) return "";
        found = input_;
        each_input(compare);
        return wrong > 0 ? report("input, which must stay as it was,", input_elements_) : "";
    }

    // Makes the result wrong, for tests.
    void spoil() { store_element(task_.type, output_ + output_elements_ / 2 * element_bytes_, untouched); }

private:
    static constexpr double untouched = -1;  // in outputs before a run; no datum and no sum has this value

    // Calls `visit(index, value)` for every element of the input of this rank.
    template <class Visit>
    void each_input(Visit visit) const {
        const Data data(run_);
        const size_t start = task_.collective == "allgather" ? task_.rank * input_elements_ : 0;
        for (size_t i = 0; i < input_elements_; i++) visit(i, data.datum(task_.rank, start + i));
    }

    // The same for what the collective leaves in the output; nothing where it leaves that open.
    template <class Visit>
    void each_output(Visit visit) const {
        const Data data(run_);
        const size_t shard = run_.elements / task_.ranks, own = task_.rank * shard;
        const auto each = [&](auto value) {
            for (size_t i = 0; i < output_elements_; i++) visit(i, value(i));
        };
        if (task_.collective == "allreduce" || (task_.collective == "reduce" && task_.rank == task_.root))
            each([&](size_t i) { return data.total(i); });
        else if (task_.collective == "reduce_scatter")
            each([&](size_t i) { return data.total(own + i); });
        else if (task_.collective == "broadcast")
            each([&](size_t i) { return data.datum(task_.root, i); });
        else if (task_.collective == "allgather")
            each([&](size_t i) { return data.datum(static_cast<int>(i / shard), i); });
        else if (task_.collective == "alltoall")
            each([&](size_t i) { return data.datum(static_cast<int>(i / shard), own + i % shard); });
    }

    const Task& task_;
    const Run& run_;
    const size_t element_bytes_;
    size_t input_elements_, output_elements_;
    std::vector<char> bytes_;
    char *input_, *output_;
};

// Where all ranks wait for one another and agree when to start. Rank 0 leads.
class Meeting {
public:
    // Lets the ranks find out which of them share a clock.
    Meeting(const Task& task, Network& network) : task_(task), network_(network), clocks_(task.ranks) {
        // Processes have this in common if they read the same clock: of one machine, and there of one time namespace.
        std::string machine;
        std::ifstream("/proc/sys/kernel/random/boot_id") >> machine;
        std::error_code unknown;
        uint64_t& own = clocks_[task.rank];
        own = std::hash<std::string>{}(machine + std::filesystem::read_symlink("/proc/self/ns/time", unknown).string());
        for (int rank = 1; rank < task.ranks && task.rank == 0; rank++) {
            network_.hear(&clocks_[rank], sizeof own, rank, "the first word");
            network_.tell(&own, sizeof own, rank, "the first word");
        }
        if (task.rank > 0) {
            network_.tell(&own, sizeof own, 0, "the first word");
            network_.hear(&clocks_[0], sizeof own, 0, "the first word");
            is_elsewhere_ = clocks_[0] != own;
        }
    }

    // Returns when all ranks have called it, with a time soon after, the same for all, on the own clock.
    int64_t meet() {
        int64_t start_ns = 0;
        if (task_.rank > 0) {
            network_.tell(&start_ns, sizeof start_ns, 0, "word of being ready");
            if (is_elsewhere_) align_clock();
            network_.hear(&start_ns, sizeof start_ns, 0, "the time of the start");
            return start_ns - offset_ns_;
        }
        for (int rank = 1; rank < task_.ranks; rank++) {
            network_.hear(&start_ns, sizeof start_ns, rank, "word of being ready");
            if (clocks_[rank] != clocks_[0]) answer_pings(rank);
        }
        start_ns = monotonic_ns() + lead_ns + lead_per_rank_ns * task_.ranks;
        for (int rank = 1; rank < task_.ranks; rank++)
            network_.tell(&start_ns, sizeof start_ns, rank, "the time of the start");
        return start_ns;
    }

    // A time of the own clock on the clock of rank 0.
    int64_t common(int64_t time_ns) const { return time_ns + offset_ns_; }

private:
    static constexpr int pings = 5;
    static constexpr int64_t lead_ns = 8'000'000, lead_per_rank_ns = 200'000;  // so that all have heard of the start

    void answer_pings(int rank) {
        for (int ping = 0; ping < pings; ping++) {
            int64_t time_ns = 0;
            network_.hear(&time_ns, sizeof time_ns, rank, "a look at the clock");
            time_ns = monotonic_ns();
            network_.tell(&time_ns, sizeof time_ns, rank, "a look at the clock");
        }
    }

    // Takes the clock of rank 0 to have been read in the middle of the fastest of several exchanges.
    void align_clock() {
        int64_t fastest_ns = std::numeric_limits<int64_t>::max();
        for (int ping = 0; ping < pings; ping++) {
            int64_t theirs_ns = 0;
            const int64_t before_ns = monotonic_ns();
            network_.tell(&before_ns, sizeof before_ns, 0, "a look at the clock");
            network_.hear(&theirs_ns, sizeof theirs_ns, 0, "a look at the clock");
            const int64_t after_ns = monotonic_ns();
            if (after_ns - before_ns >= fastest_ns) continue;
            fastest_ns = after_ns - before_ns;
            offset_ns_ = theirs_ns - (before_ns + after_ns) / 2;
        }
    }

    const Task& task_;
    Network& network_;
    std::vector<uint64_t> clocks_;  // of all ranks at rank 0, else of rank 0 and the own one
    int64_t offset_ns_ = 0;  // clock of rank 0 minus own clock
    bool is_elsewhere_ = false;  // with another clock than rank 0
};

// The programs of a task, which the engine executes over the network.
class Programs {
public:
    Programs(const Task& task, Network& network)
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

    // Starts at `start_ns`, prepared for it. Returns when the last instruction was done, but not before all that was
    // sent has left. LimitPassed when the limit passes before.
    int64_t execute(const Run& run, const Memory& memory, int64_t start_ns) {
        is_faulty_ = task_.fault.run <= static_cast<size_t>(&run - task_.runs.data());
        steps_.resize(task_.trace_room);
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
        call.steps = steps_.empty() ? nullptr : steps_.data();
        call.step_room = steps_.size();
        const int status = chorale_execute(engine_.get(), &call);
        if (status == CHORALE_TIMEOUT) throw LimitPassed(chorale_error(engine_.get()));
        if (status != CHORALE_OK) throw std::runtime_error(chorale_error(engine_.get()));
        last_ = call;
        return call.end_ns;
    }

    // Writes what each step of the last execution took, after `from_ns`, as a line that begins with the number of the
    // run; nothing where the task has no room for steps.
    void write_trace(std::ostream& file, size_t run, int64_t from_ns) const {
        if (steps_.empty()) return;
        file << run << " " << last_.start_ns - from_ns << " " << last_.end_ns - from_ns << " " << last_.cpu_ns;
        for (size_t i = 0; i < std::min(last_.step_count, steps_.size()); i++) {
            const chorale_step_time& one = steps_[i];
            file << " " << one.block << " " << one.step << " " << one.part << " " << one.piece << " "
                 << one.ready_ns - from_ns << " " << (one.start_ns > 0 ? one.start_ns - from_ns : 0) << " "
                 << one.end_ns - from_ns;
        }
        file << std::endl;
    }

    // Where the blocks stand that were not finished when the limit passed: a line "BLOCK STEP reason" for each.
    std::string blocked() const { return chorale_blocked(engine_.get()); }

private:
    // Tests ask for this, see Fault.
    void misbehave() const {
        const Fault& fault = task_.fault;
        if (!is_faulty_) return;
        if (fault.kind == "crash") std::raise(SIGSEGV);
        if (fault.kind == "slow") pause_ns(fault.microseconds * 1000);
        while (fault.kind == "hang" && network_.seconds_left() > 0) pause_ns(1'000'000);
        if (network_.seconds_left() <= 0) throw Failure(CHORALE_TIMEOUT, "nothing");
    }

    const Task& task_;
    Network& network_;
    std::unique_ptr<chorale_engine, void (*)(chorale_engine*)> engine_;
    std::vector<int64_t> numbers_;
    std::vector<chorale_step_time> steps_;
    chorale_call last_{};
    bool is_faulty_ = false;
};

class Rank {
public:
    Rank(const Task& task, Network& network)
        : task_(task), network_(network), meeting_(task, network), programs_(task, network) {}

    void go_through_runs() {
        std::ofstream results("results");
        for (current_ = 0; current_ < task_.runs.size(); current_++) results << perform(task_.runs[current_]) << std::endl;
        meeting_.meet();
        results << "end" << std::endl;
    }

    // Writes what this rank was waiting for when the limit passed.
    void report(const LimitPassed& late) const {
        std::ofstream file("stuck");
        file << "run " << current_ << " " << late.what() << "\n";
        std::istringstream blocked(programs_.blocked());
        for (std::string line; std::getline(blocked, line);) file << "block " << line << "\n";
    }

private:
    std::string perform(const Run& run) {
        Memory memory(task_, run);
        const int64_t start_ns = meeting_.meet();
        int64_t end_ns;
        if (run.is_library) {
            pause_until(start_ns);
            network_.collective(memory.input(), memory.output(), run.elements);
            end_ns = monotonic_ns();
        } else {
            end_ns = programs_.execute(run, memory, start_ns);
            programs_.write_trace(trace_, current_, start_ns);
        }
        meeting_.meet();  // nobody's check takes a core from those who still run
        if (task_.fault.kind == "wrong" && task_.fault.run <= current_) memory.spoil();
        return std::to_string(meeting_.common(start_ns)) + " " + std::to_string(meeting_.common(end_ns)) + " " +
               memory.complaint();
    }

    const Task& task_;
    Network& network_;
    Meeting meeting_;
    Programs programs_;
    std::ofstream trace_{"trace"};
    size_t current_ = 0;
};

constexpr int limit_passed = 3, failed = 4;
constexpr double grace_s = 1.0;  // to report a timeout in good order; then a signal ends what hangs inside oneCCL

void kill_after(double seconds) {
    const auto whole = static_cast<time_t>(seconds);
    const itimerval limit{{0, 0}, {whole, static_cast<suseconds_t>((seconds - static_cast<double>(whole)) * 1e6)}};
    setitimer(ITIMER_REAL, &limit, nullptr);
}

// oneCCL looks for its network by the name of the interface: that of this machine with the IP address `address`.
void choose_interface(const std::string& address) {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) throw std::runtime_error("the network interfaces cannot be listed");
    std::string found;
    for (const ifaddrs* one = all; one != nullptr && found.empty(); one = one->ifa_next) {
        if (one->ifa_addr == nullptr) continue;
        const int family = one->ifa_addr->sa_family;
        const void* bytes = nullptr;
        if (family == AF_INET) bytes = &reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr;
        if (family == AF_INET6) bytes = &reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr;
        char text[INET6_ADDRSTRLEN];
        if (bytes != nullptr && inet_ntop(family, bytes, text, sizeof text) != nullptr && address == text)
            found = one->ifa_name;
    }
    freeifaddrs(all);
    if (found.empty()) throw std::runtime_error("no network interface has the address " + address);
    setenv("FI_TCP_IFACE", found.c_str(), 1);
    setenv("CCL_KVS_IFACE", found.c_str(), 1);
}

void explain(const std::exception& error) { std::cerr << "error: " << error.what() << std::endl; }

// Joins the others and does the task; does not return.
[[noreturn]] void serve(const std::string& address) {
    std::ifstream file("task");
    const Task task = read_task(file);
    kill_after(task.start_limit_s);
    prctl(PR_SET_TIMERSLACK, 1000UL);
    choose_interface(address);
    Network network(task);
    Rank rank(task, network);
    std::ofstream("joined") << "yes" << std::endl;
    network.set_limit(task.run_limit_s);
    kill_after(task.run_limit_s + grace_s);
    try {
        rank.go_through_runs();
    } catch (const LimitPassed& late) {
        rank.report(late);
        std::_Exit(limit_passed);  // here, because oneCCL waits before it destroys what is not done
    } catch (const std::exception& error) {
        explain(error);
        std::_Exit(failed);
    }
    while (true) pause();
}

}  // namespace
}  // namespace chorale

int main(int count, char** arguments) {
    try {
        if (count != 2) throw std::runtime_error("the only argument is the IP address of this rank");
        chorale::serve(arguments[1]);
    } catch (const std::exception& error) {
        chorale::explain(error);
    }
    std::_Exit(chorale::failed);  // without closing oneCCL, which would wait for ranks that may be gone
}
