// What the runner asks of this rank: programs, and the runs of them in order. Written by runners/oneccl/tasks.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

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

Task read_task(std::istream& text);

}  // namespace chorale
