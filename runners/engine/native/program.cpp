#include "program.hpp"

#include <set>
#include <string>
#include <utility>

#include "failure.hpp"

namespace chorale {
namespace {

constexpr int64_t version = 1, most_chunks = int64_t{1} << 40, most_channels = 1 << 16;

Failure wrong(const std::string& what) { return Failure(CHORALE_INVALID, "the program " + what); }

class Words {
public:
    Words(const int64_t* words, size_t count) : next_(words), end_(words + count) {}

    int64_t number(int64_t least, int64_t most, const char* what) {
        if (next_ == end_) throw wrong("ends too early");
        const int64_t value = *next_++;
        if (value < least || value > most) throw wrong(std::string("has a wrong ") + what + ": " + std::to_string(value));
        return value;
    }
    // Reads a number of items, each of which takes at least one word.
    size_t length(const char* what) { return static_cast<size_t>(number(0, end_ - next_, what)); }
    bool at_end() const { return next_ == end_; }

private:
    const int64_t *next_, *end_;
};

Place read_place(Words& words) {
    const int buffer = static_cast<int>(words.number(0, 2, "buffer"));
    return {buffer, static_cast<size_t>(words.number(0, most_chunks, "offset"))};
}

Instruction read_step(Words& words) {
    Instruction step{};
    step.op = static_cast<Op>(words.number(0, 7, "instruction"));
    step.src = read_place(words);
    step.dst = read_place(words);
    step.count = static_cast<size_t>(words.number(1, most_chunks, "count"));
    for (size_t left = words.length("number of waits"); left > 0; left--) {
        const auto block = static_cast<size_t>(words.number(0, most_chunks, "block"));
        step.waits.push_back({block, static_cast<size_t>(words.number(0, most_chunks, "step")), -1});
    }
    return step;
}

Block read_block(Words& words, int rank, int ranks) {
    Block block{};
    block.send_peer = static_cast<int>(words.number(-1, ranks - 1, "peer"));
    block.recv_peer = static_cast<int>(words.number(-1, ranks - 1, "peer"));
    block.channel = static_cast<int>(words.number(0, most_channels, "channel"));
    if (block.send_peer == rank || block.recv_peer == rank) throw wrong("exchanges messages with itself");
    bool sends = false, receives = false;
    for (size_t left = words.length("number of steps"); left > 0; left--) {
        block.steps.push_back(read_step(words));
        sends |= block.steps.back().sends();
        receives |= block.steps.back().receives();
    }
    if ((sends && block.send_peer < 0) || (receives && block.recv_peer < 0)) throw wrong("has a block without peer");
    // Removes peers with which a block exchanges nothing, so that they are not connected.
    if (!sends) block.send_peer = -1;
    if (!receives) block.recv_peer = -1;
    return block;
}

class Checker {
public:
    explicit Checker(const Program& program)
        : program_(program), room_{program.input_chunks(), program.output_chunks(), program.scratch_chunks} {}

    void check() {
        for (const Block& block : program_.blocks) {
            for (const Instruction& step : block.steps) check_step(step);
            check_peers(block);
        }
    }

private:
    void check_step(const Instruction& step) const {
        if ((step.reads() && !fits(step.src, step.count)) || (step.stores() && !fits(step.dst, step.count)))
            throw wrong("goes beyond a buffer");
        for (const Wait& wait : step.waits)
            if (wait.block >= program_.blocks.size() || wait.step >= program_.blocks[wait.block].steps.size())
                throw wrong("waits for a step that there is not");
    }

    bool fits(Place place, size_t count) const {
        return place.offset <= room_[place.buffer] && count <= room_[place.buffer] - place.offset;
    }

    void check_peers(const Block& block) {
        if (block.send_peer >= 0 && !outgoing_.emplace(block.send_peer, block.channel).second)
            throw wrong("sends on a connection from two blocks");
        if (block.recv_peer >= 0 && !incoming_.emplace(block.recv_peer, block.channel).second)
            throw wrong("receives on a connection in two blocks");
    }

    const Program& program_;
    const size_t room_[3];
    std::set<std::pair<int, int>> outgoing_, incoming_;
};

bool is_in_place(const Instruction& step) {
    return step.src.buffer == step.dst.buffer && step.src.offset == step.dst.offset;
}

// Returns whether `step` may use bytes that `other` has stored while `other` still stores more. `step` must not
// overwrite data that `other` still has to read or to send.
bool may_follow(const Program& program, const Instruction& step, const Instruction& other) {
    if (!other.receives() || !other.stores()) return false;
    if (step.op == Op::send) return true;
    if (step.op != Op::recv_reduce_copy || !is_in_place(step) || other.sends()) return false;
    return !other.reads() || is_in_place(other) || (!program.in_place && other.src.buffer != step.dst.buffer);
}

// Sets Wait::shift.
void find_shifts(Program& program) {
    for (Block& block : program.blocks)
        for (Instruction& step : block.steps)
            for (Wait& wait : step.waits) {
                const Instruction& other = program.blocks[wait.block].steps[wait.step];
                if (!may_follow(program, step, other)) continue;
                if (other.dst.buffer != step.src.buffer || step.src.offset < other.dst.offset) continue;
                const size_t shift = step.src.offset - other.dst.offset;
                if (shift + step.count <= other.count) wait.shift = static_cast<int64_t>(shift);
            }
}

}  // namespace

Program decode_program(const int64_t* words, size_t count, int rank, int ranks) {
    Words input(words, count);
    input.number(version, version, "version");
    Program program{};
    program.collective = static_cast<Collective>(input.number(0, 5, "collective"));
    program.root = static_cast<int>(input.number(-1, ranks - 1, "root"));
    program.ranks = static_cast<size_t>(input.number(ranks, ranks, "number of ranks"));
    program.chunks = static_cast<size_t>(input.number(1, most_chunks, "number of chunks"));
    program.in_place = input.number(0, 1, "flag for working in place") != 0;
    program.scratch_chunks = static_cast<size_t>(input.number(0, most_chunks, "number of scratch chunks"));
    program.depth = static_cast<size_t>(input.number(1, 1024, "depth of queues"));
    for (size_t left = input.length("number of blocks"); left > 0; left--)
        program.blocks.push_back(read_block(input, rank, ranks));
    if (!input.at_end()) throw wrong("goes on after its end");
    if (program.has_shards() && program.chunks % program.ranks != 0) throw wrong("has chunks that are no whole shards");
    Checker(program).check();
    find_shifts(program);
    return program;
}

}  // namespace chorale
