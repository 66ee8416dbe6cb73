// Checks a plan before it is executed, so that it cannot access anything outside its memory, whatever the words
// contain.
#pragma once

#include <stdexcept>
#include <string>

#include "plan_core.hpp"

namespace chorale::plans {

struct WrongPlan : std::runtime_error {
    using std::runtime_error::runtime_error;
};

constexpr i64 most_pieces = i64{1} << 40, most_numbers = 1 << 20, most_items = 1 << 16;

inline WrongPlan wrong(const std::string& what) { return WrongPlan("the plan " + what); }

// Checks the words of a plan. Throws WrongPlan if they are invalid.
class Checker {
public:
    Checker(const i64* words, size_t count) : words_(words), end_(static_cast<i64>(count)) {}

    void plan(i64 rank, i64 ranks) {
        limit_ = end_;
        number(current_version, current_version, "version");
        number(rank, rank, "rank");
        number(ranks, ranks, "number of ranks");
        number(1, most_numbers, "number of counters");
        number(1, 2, "number of halves");
        const i64 barriers = number(0, most_numbers, "number of barriers");
        const i64 semaphores = number(0, end_ - at_, "number of semaphores");
        const i64 blocks = number(0, end_ - at_, "number of blocks");
        number(vector_bytes / 2, vector_bytes, "length of a vector");
        for (i64 i = 0; i < ranks * Window::counters; i++) {
            const i64 pieces = number(0, most_pieces, "length of memory");
            if (pieces > largest_) largest_ = pieces;
        }
        for (i64 i = 0; i < semaphores; i++) number(0, most_pieces, "semaphore");
        const i64 table = at_;
        for (i64 i = 0; i < 2 * blocks; i++) number(0, end_, "begin or end of a block");
        barriers_ = barriers;
        for (i64 i = 0; i < blocks; i++) block(words_[table + 2 * i], words_[table + 2 * i + 1]);
        if (at_ != end_) throw wrong("goes on after its end");
    }

private:
    i64 number(i64 least, i64 most, const char* what) {
        if (at_ >= limit_) throw wrong("ends too early");
        const i64 value = words_[at_++];
        if (value < least || value > most) throw wrong(std::string("has a wrong ") + what + ": " + std::to_string(value));
        return value;
    }
    i64 items(const char* what) { return number(0, most_items, what); }

    void block(i64 begin, i64 end) {
        if (begin != at_ || end < begin) throw wrong("has blocks that do not follow each other");
        i64 pipeline_end = 0;
        while (at_ < end) {
            const i64 from = at_;
            limit_ = end;
            const i64 length = number(Field::operands + 1, end - from, "length of an action");
            limit_ = from + length;
            number(0, most_numbers, "step");
            const i64 kind = number(0, Kind::pipeline, "action");
            if (kind == Kind::pipeline) {
                if (pipeline_end > from) throw wrong("has a pipeline in a pipeline");
                if (number(1, most_pieces, "part of a pipeline") % vector_bytes != 0)
                    throw wrong("has parts of a pipeline that vectors do not fill");
                number(1, largest_, "length of a pipeline");  // bounded, so that threads reach the pipeline's end
                pipeline_end = number(limit_ + 1, end, "end of a pipeline");
            } else {
                action(kind);
            }
            if (at_ != limit_) throw wrong("has an action of a wrong length");
            if (from < pipeline_end && at_ > pipeline_end) throw wrong("has a pipeline that ends nowhere");
        }
        limit_ = end_;
    }

    void action(i64 kind) {
        switch (kind) {
            case Kind::barrier:
                number(0, barriers_ - 1, "barrier");
                number(1, most_numbers, "number of blocks");
                break;
            case Kind::signal:
                for (i64 left = items("list"); left > 0; left--) {
                    number(0, words_[Head::all] - 1, "rank");
                    number(0, words_[Head::slots] - 1, "counter");
                }
                break;
            case Kind::wait:
                for (i64 left = items("list"); left > 0; left--) {
                    number(0, words_[Head::slots] - 1, "counter");
                    number(0, words_[Head::all] - 1, "rank");
                }
                break;
            case Kind::acquire:
            case Kind::release:
                for (i64 left = items("list"); left > 0; left--)
                    number(0, words_[Head::semaphores] - 1, "semaphore");
                break;
            case Kind::move: stretches(); break;
            default: number(0, 0, "operand"); break;
        }
    }

    void stretches() {
        i64 counts[4];
        for (i64& each : counts) each = items("number of stretches");
        const i64 pieces = number(1, most_pieces, "number of pieces");
        number(0, 1, "flag");
        if (counts[0] + counts[1] == 0) throw wrong("moves data from nowhere");
        const i64 own = words_[Head::own];
        for (i64 list = 0; list < 4; list++)
            for (i64 left = counts[list]; left > 0; left--) {
                const i64 window = number(0, words_[Head::all] * Window::windows - 1, "place");
                const i64 rank = window / Window::windows, kind = window % Window::windows;
                if (kind == Window::counters || (kind == Window::packets) != (list % 2 == 1))
                    throw wrong("has a wrong place: " + std::to_string(window));
                const i64 first = number(0, most_pieces, "first piece");
                const i64 room = words_[Head::sizes + rank * Window::counters + kind];
                if (first > room || pieces > room - first) throw wrong("goes beyond its memory");
                if (rank != own && list == 1) throw wrong("waits for packets elsewhere");
            }
    }

    const i64* words_;
    i64 at_ = 0, end_, limit_ = 0, barriers_ = 0, largest_ = 0;
};

}  // namespace chorale::plans
