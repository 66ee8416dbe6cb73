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
#include <sys/prctl.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "engine_clock.hpp"
#include "interfaces.hpp"
#include "memory.hpp"
#include "network.hpp"
#include "programs.hpp"
#include "rendezvous.hpp"
#include "task.hpp"

namespace chorale {
namespace {

constexpr int limit_passed = 3, failed = 4;
constexpr double grace_s = 1.0;  // to report a timeout in good order; then a signal ends what hangs inside oneCCL

void kill_after(double seconds) {
    const auto whole = static_cast<time_t>(seconds);
    const itimerval limit{{0, 0}, {whole, static_cast<suseconds_t>((seconds - static_cast<double>(whole)) * 1e6)}};
    setitimer(ITIMER_REAL, &limit, nullptr);
}

// oneCCL looks for its network by the name of the interface.
void choose_interface(const std::string& address) {
    const std::string name = interface_with(address);
    setenv("FI_TCP_IFACE", name.c_str(), 1);
    setenv("CCL_KVS_IFACE", name.c_str(), 1);
}

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
        const int64_t end_ns =
            run.is_library ? perform_collective(run, memory, start_ns) : programs_.execute(run, memory, start_ns);
        if (!run.is_library) programs_.write_trace(trace_, current_, start_ns);
        meeting_.meet();  // nobody's check takes a core from those who still run
        if (task_.fault.kind == "wrong" && task_.fault.run <= current_) memory.spoil();
        return std::to_string(meeting_.common(start_ns)) + " " + std::to_string(meeting_.common(end_ns)) + " " +
               memory.complaint();
    }

    int64_t perform_collective(const Run& run, const Memory& memory, int64_t start_ns) {
        pause_until(start_ns);
        network_.collective(memory.input(), memory.output(), run.elements);
        return monotonic_ns();
    }

    const Task& task_;
    Network& network_;
    Meeting meeting_;
    Programs programs_;
    std::ofstream trace_{"trace"};
    size_t current_ = 0;
};

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
