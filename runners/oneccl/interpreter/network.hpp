// What the runner asks of a rank, and the ranks' way to one another: oneCCL's point-to-point calls and collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "chorale_engine.h"

namespace chorale {

// The datum of rank r at position x is base(x) + weights[r] * slope(x), as in runners/api/elements.py.
struct Pattern {
    uint32_t offset, half, slope_limit;
    std::vector<int64_t> weights;
};

struct Run {
    bool is_library;
    size_t program;   // of a run that is not the library's
    bool is_in_place; // whether the smaller of input and output lies in the other
    size_t elements;  // of the whole vector
    size_t parts;     // into which every chunk is cut; all blocks go through their steps once for each
    Pattern pattern;
};

// Misbehaviour on purpose, for tests: crash, hang, wrong, or slow by some microseconds per step; from one run on.
struct Fault {
    std::string kind;
    size_t run;
    long microseconds;
};

// Programs, and the runs of them in order. Written by runners/oneccl/tasks.py.
struct Task {
    int rank, ranks;
    int type;  // of the elements, as in chorale_engine.h
    std::string collective;
    int root;
    double start_limit_s, run_limit_s;
    size_t channels;
    Fault fault;
    size_t trace_room;  // for how many steps of a run times are written down
    std::vector<std::vector<int64_t>> programs;  // as the engine takes them
    std::vector<Run> runs;
};

// The time limit of a run has passed.
struct LimitPassed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Network {
public:
    // Joins the ranks. Rank 0 writes the address of oneCCL's key-value store to the file key-store, others read it.
    explicit Network(const Task& task);
    ~Network();

    // Messages for the engine. Those from one rank to another on one channel arrive in order.
    chorale_messages messages();

    // Passes `size` bytes between the ranks' main programs, waiting until it is done; LimitPassed with `purpose` when
    // the limit passes before.
    void tell(const void* bytes, size_t size, int peer, const std::string& purpose);
    void hear(void* bytes, size_t size, int peer, const std::string& purpose);

    // Goes through oneCCL's own collective of the task, from `input` to `output`, on `elements` of the whole vector.
    void collective(const void* input, void* output, size_t elements);

    void set_limit(double seconds);
    double seconds_left() const;  // negative when the limit has passed

private:
    struct Library;  // oneCCL's objects: its headers take long to compile and are read in one place

    void wait(const std::string& purpose);

    const Task& task_;
    int64_t deadline_ns_ = INT64_MAX;
    std::unique_ptr<Library> library_;
};

}  // namespace chorale
