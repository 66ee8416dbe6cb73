// What the runner asks of this rank: programs, and the runs of them in order. Written by runners/oneccl/task.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "element.hpp"

namespace chorale {

struct Place {
    char buffer;  // i, o, s
    size_t offset;  // in chunks
};

struct Wait {
    size_t block;
    size_t step;
};

struct Instruction {
    bool receives, sends, reduces, stores;  // `reduces`: src is added to the message; `stores`: dst is written
    bool is_copy, is_reduce;  // the two that work on memory only
    Place src, dst;
    size_t count;  // of chunks
    std::vector<Wait> waits;
};

struct Block {
    int send, recv;  // peers, -1 for none
    size_t channel;
    std::vector<Instruction> instructions;
};

struct Program {
    size_t chunks, scratch_chunks, depth;
    bool in_place;
    std::vector<Block> blocks;
};

// The datum of rank r at position x is base(x) + weights[r] * slope(x), as in runners/data.py.
struct Pattern {
    uint32_t offset, half, slope_limit;
    std::vector<int64_t> weights;
};

struct Run {
    bool is_library;
    size_t program;  // of a library run: the program whose buffers it uses
    size_t elements;  // of the whole vector
    size_t parts;  // into which every chunk is cut; all blocks go through their steps once for each
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
    ElementType type;
    std::string collective;
    int root;
    double start_limit_s, run_limit_s;
    size_t channels;
    Fault fault;
    std::vector<Program> programs;
    std::vector<Run> runs;
};

Task read_task(std::istream& text);

}  // namespace chorale
