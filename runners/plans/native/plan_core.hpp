// The work of one thread of a thread block in a call of a plan. The source is the same for CPUs and GPUs.
//
// Freestanding. A plan consists of the words that runners/plans/rank_plans.py encodes. Memory consists of windows, each
// with an address. The class `Machine` contains what differs between machines:
//     lane(), lanes()          number of this thread, and of all threads of the block
//     load(p), store(p), add(p, n), fence_add(p, n)
//                              counters: an acquiring load; a relaxed store; a relaxed addition that returns the
//                              earlier value; a releasing addition
//     load_packets(p, two), store_packets(p, two)    two packets, each of them atomically
//     sync()                   all threads of the block wait for each other; returns false if one of them has given up
//     has_switch               if true: adds_by_switch(keeps_wide), sum_of_all(p, vector), store_everywhere(p, vector)
#pragma once

#include "elements.hpp"

namespace chorale::plans {

using u64 = unsigned long long;
using i64 = long long;

// The numbers are the same as in runners/plans/rank_plans.py.
enum Kind : i64 { nop, barrier, signal, wait, acquire, release, move, pipeline };
enum Window : i64 { packets = 3, counters = 4, windows = 5 };  // windows 0 to 2 of a rank: input, output, scratch
enum Head : i64 { version, own, all, slots, halves, barriers, semaphores, blocks, vector, sizes };
enum Field : i64 { length, step, kind, operands };
enum Why : u64 { turn, other_ranks, a_signal, a_semaphore, other_blocks, a_packet, outside };
constexpr i64 current_version = 4;
constexpr u64 vector_bytes = 16, packet_data = 4;

// The unit in which data are moved, as two halves.
struct alignas(16) Vector {
    u64 half[2];
};

// Description of a call, written by the host in words of 64 bits.
//
// state:  state of this rank, zero before the first call except for semaphores: for each block the number of its
//         finished calls, the size of a piece in bytes, how often this size changed, and whether a thread reports why
//         it gave up; then the number of signals taken from each slot, semaphores, barriers
// broken: whether a block of any plan of this rank gave up, so that no block waits any longer
// record: read by the host: whether a block gave up, then for each block: step, reason, rank, and 1 + the number of the
//         signal or of the piece of scratch whose packet is missing; all 0 if the block did not give up
// bases:  address of each window of each rank, then the multicast address of each kind of window; 0 if there is none
// half:   distance in bytes between the two halves of packets
struct Binding {
    const i64* words;
    u64* state;
    u64* broken;
    u64* record;
    const u64* bases;
    u64 piece, half, limit_ns, type, operation, keeps_wide;
};
constexpr u64 block_state = 4, block_record = 4;

CHORALE_CODE u64 least(u64 a, u64 b) { return a < b ? a : b; }

template <class Machine>
class Thread {
public:
    CHORALE_CODE Thread(const Binding& call, Machine& machine, u64 block)
        : b_(call), m_(machine), words_(call.words), block_(block), lane_(machine.lane()), lanes_(machine.lanes()) {
        const i64* table = words_ + Head::sizes + words_[Head::all] * Window::counters + words_[Head::semaphores];
        at_ = table[2 * block];
        end_ = table[2 * block + 1];
        heard_ = b_.state + block_state * u64(words_[Head::blocks]);
        semaphores_ = heard_ + words_[Head::slots];
        barriers_ = semaphores_ + words_[Head::semaphores];
        mine_ = b_.state + block_state * block;
        call_ = mine_[0] + 1;
        changes_ = mine_[1] == b_.piece ? 0 : mine_[2] + 1;
    }

    CHORALE_CODE bool ended() const { return at_ == end_ && begun_; }
    CHORALE_CODE bool gave_up() const { return gave_up_; }

    // Continues as far as possible; returns whether there was any progress.
    CHORALE_CODE bool advance() {
        if (!begun_ && !begin()) return false;
        bool moved = false;
        while (at_ < end_ && !gave_up_ && perform(words_ + at_)) {
            next(words_ + at_);
            moved = true;
        }
        if (ended()) finish();
        return moved;
    }

    // Gives up. The first thread of a block that gives up records what it was waiting for.
    CHORALE_CODE void stop() {
        if (m_.add(mine_ + 3, 1) == 0) note(b_.record + 1 + block_record * block_);
        m_.store(b_.broken, 1);
        m_.store(b_.record, 1);
        give_up();
    }

private:
    // If the size of pieces changes, memory may only be accessed once all ranks have finished calls with the old size.
    CHORALE_CODE bool begin() {
        const i64 ranks = words_[Head::all], own = words_[Head::own];
        if (!entered_) {
            entered_ = true;
            progress_ = lane_;
            if (!m_.sync()) return give_up();
            if (changes_ > 0 && block_ == 0)
                for (i64 rank = i64(lane_); rank < ranks; rank += i64(lanes_))
                    m_.fence_add(counter(rank, words_[Head::slots] + own), 1);
        }
        for (; changes_ > 0 && progress_ < u64(ranks); progress_ += lanes_)
            if (m_.load(counter(own, words_[Head::slots] + i64(progress_))) < changes_) return false;
        if (!m_.sync()) return give_up();
        begun_ = true;
        enter();
        return true;
    }

    CHORALE_CODE void finish() {
        if (!m_.sync() || lane_ != 0) return;
        mine_[0] = call_;
        mine_[1] = b_.piece;
        if (changes_ > 0) mine_[2] = changes_;
    }

    CHORALE_CODE void note(u64* entry) const {
        const i64* action = words_ + at_;
        const bool is_told = begun_ && at_ < end_ && !is_outside_;
        const i64 doing = is_told ? action[Field::kind] : i64(Kind::nop);
        u64 why = is_outside_ ? Why::outside : begun_ ? Why::turn : Why::other_ranks, who = begun_ ? ~u64(0) : progress_, which = 0;
        if (doing == Kind::wait && progress_ < u64(action[Field::operands])) {
            why = Why::a_signal;
            which = u64(action[Field::operands + 1 + 2 * progress_]);
            who = u64(action[Field::operands + 2 + 2 * progress_]);
        } else if (doing == Kind::acquire || doing == Kind::barrier) {
            why = doing == Kind::acquire ? Why::a_semaphore : Why::other_blocks;
        } else if (doing == Kind::move) {
            why = Why::a_packet;
            which = absent_;
        }
        m_.store(entry, begun_ && at_ < end_ ? u64(action[Field::step]) : 0);
        m_.store(entry + 1, why);
        m_.store(entry + 2, who);
        m_.store(entry + 3, 1 + which);
    }

    CHORALE_CODE bool give_up() {
        gave_up_ = true;
        return false;
    }

    CHORALE_CODE void enter() {
        progress_ = lane_;
        entered_ = false;
    }

    CHORALE_CODE void next(const i64* action) {
        const i64 after = at_ + action[Field::length];
        if (action[Field::kind] == Kind::pipeline) {
            pipeline_ = at_;
            part_ = 0;
        }
        at_ = after;
        enter();
        if (pipeline_ == 0 || at_ < words_[pipeline_ + Field::operands + 2]) return;
        const i64* repeated = words_ + pipeline_;
        const u64 bytes = u64(repeated[Field::operands + 1]) * b_.piece;
        if (++part_ * u64(repeated[Field::operands]) < bytes)
            at_ = pipeline_ + repeated[Field::length];
        else
            pipeline_ = 0;
    }

    // Executes an action. Returns false if the action has to wait.
    CHORALE_CODE bool perform(const i64* action) {
        const i64* items = action + Field::operands + 1;
        const u64 count = u64(action[Field::operands]);
        switch (action[Field::kind]) {
            case Kind::nop: return m_.sync() || give_up();
            case Kind::barrier: return meet(action);
            case Kind::signal:
                for (u64 i = lane_; i < count; i += lanes_) m_.fence_add(counter(items[2 * i], items[2 * i + 1]), 1);
                return true;
            case Kind::wait: return hear(items, count);
            case Kind::acquire:
                for (; progress_ < count; progress_ += lanes_) {
                    if (m_.load(semaphores_ + items[progress_]) < 1) return false;
                    m_.add(semaphores_ + items[progress_], ~u64(0));
                }
                return true;
            case Kind::release:
                for (u64 i = lane_; i < count; i += lanes_) m_.fence_add(semaphores_ + items[i], 1);
                return true;
            case Kind::move: return transfer(action);
            default: return true;
        }
    }

    // A thread claims the next signal of a channel before it waits for it, so that two waits without a nop between them
    // get different signals.
    CHORALE_CODE bool hear(const i64* items, u64 count) {
        for (; progress_ < count; progress_ += lanes_) {
            const i64 slot = items[2 * progress_];
            if (!entered_) ticket_ = m_.add(heard_ + slot, 1);
            entered_ = true;
            if (m_.load(counter(words_[Head::own], slot)) <= ticket_) return false;
            entered_ = false;
        }
        return true;
    }

    CHORALE_CODE bool meet(const i64* action) {
        u64* arrived = barriers_ + action[Field::operands];
        const u64 blocks = u64(action[Field::operands + 1]);
        if (!entered_) {
            if (!m_.sync()) return give_up();
            if (lane_ == 0) {
                ticket_ = (m_.load(arrived) / blocks + 1) * blocks;
                m_.fence_add(arrived, 1);
            }
            entered_ = true;
        }
        if (lane_ == 0 && m_.load(arrived) < ticket_) return false;
        return m_.sync() || give_up();
    }

    // The ranges of a move, all of the same length: plain data to read, packets to read, plain data to write, packets
    // to write.
    struct Stretches {
        const i64* place;
        u64 reads, takes, writes, packets, from, bytes;
        bool by_switch;
    };

    CHORALE_CODE Stretches stretches(const i64* action) const {
        const i64* head = action + Field::operands;
        const u64 bytes = u64(head[4]) * b_.piece;
        Stretches some{head + 6, u64(head[0]), u64(head[1]), u64(head[2]), u64(head[3]), 0, bytes, head[5] != 0};
        if (pipeline_ != 0) {
            const u64 unit = u64(words_[pipeline_ + Field::operands]);
            some.from = least(bytes, part_ * unit);
            some.bytes = least(unit, bytes - some.from);
        }
        return some;
    }

    // Returns the address of the data `skipped` bytes after the beginning of a range.
    CHORALE_CODE char* place(const Stretches& some, u64 number, u64 skipped) const {
        const i64 window = some.place[2 * number];
        const u64 at = u64(some.place[2 * number + 1]) * b_.piece + some.from + skipped;
        const bool are_packets = window % Window::windows == Window::packets;
        const u64 half = are_packets && words_[Head::halves] > 1 ? (call_ & 1) * b_.half : 0;
        return reinterpret_cast<char*>(b_.bases[window]) + half + (are_packets ? 2 * at : at);
    }

    CHORALE_CODE u64* counter(i64 rank, i64 slot) const {
        return reinterpret_cast<u64*>(b_.bases[rank * Window::windows + Window::counters]) + slot;
    }

    CHORALE_CODE bool transfer(const i64* action) {
        const Stretches some = stretches(action);
#ifdef CHORALE_CHECKS
        for (u64 i = 0; i < some.reads + some.takes + some.writes + some.packets; i++) {
            const i64 window = some.place[2 * i], rank = window / Window::windows, kind = window % Window::windows;
            const bool is_known = rank >= 0 && rank < words_[Head::all] && kind < Window::counters;
            const i64 room = is_known ? words_[Head::sizes + rank * Window::counters + kind] : 0;
            const i64 first = some.place[2 * i + 1], count = action[Field::operands + 4];
            if (first >= 0 && count >= 0 && first <= room && count <= room - first) continue;
            is_outside_ = true;
            m_.sync();
            return give_up();
        }
#endif
        const u64 sources = some.reads + some.takes;
        if (some.takes + some.packets > 0)
            return sources == 1 ? copy<true>(some) : summed<true>(some);
        if constexpr (Machine::has_switch)
            if (some.by_switch && by_switch(some)) return true;
        return sources == 1 ? copy<false>(some) : summed<false>(some);
    }

    // Moves the data through the switch, if it reaches this memory on all ranks and can add elements of this type.
    // Returns whether it did.
    CHORALE_CODE bool by_switch(const Stretches& some) {
        const u64 ranks = u64(words_[Head::all]);
        const bool adds = some.reads == ranks, stores = some.writes == ranks;
        char *from = everywhere(some, 0), *to = everywhere(some, some.reads);
        if (!(adds || some.reads == 1) || !(stores || some.writes == 1)) return false;
        if ((adds && (from == nullptr || !m_.adds_by_switch(b_.keeps_wide != 0))) || (stores && to == nullptr)) return false;
        for (u64 unit = lane_; unit < some.bytes / vector_bytes; unit += lanes_) {
            const u64 at = unit * vector_bytes;
            Vector value;
            if (adds) m_.sum_of_all(from + at, value);
            else value = *reinterpret_cast<const Vector*>(place(some, 0, at));
            if (stores) m_.store_everywhere(to + at, value);
            else *reinterpret_cast<Vector*>(place(some, some.reads, at)) = value;
        }
        return true;
    }

    CHORALE_CODE char* everywhere(const Stretches& some, u64 number) const {
        const i64 window = words_[Head::all] * Window::windows + some.place[2 * number] % Window::windows;
        char* base = reinterpret_cast<char*>(b_.bases[window]);
        return base == nullptr ? nullptr : base + u64(some.place[2 * number + 1]) * b_.piece + some.from;
    }

    // A sum of elements, which are added in the order in which they are read.
    template <class Element, class Does>
    struct Sum {
        using Wide = decltype(widen(Element{}));
        static constexpr unsigned count = 8 / sizeof(Element);
        Wide values[count];

        CHORALE_CODE void take(u64 word, bool is_first, bool keeps_wide) {
            Element elements[count];
            CHORALE_COPY(elements, &word, sizeof word);
            for (unsigned i = 0; i < count; i++) {
                values[i] = is_first ? widen(elements[i]) : Does{}(values[i], widen(elements[i]));
                if (keeps_wide) continue;
                narrow(values[i], elements[i]);
                values[i] = widen(elements[i]);
            }
        }
        CHORALE_CODE u64 word() const {
            Element elements[count];
            for (unsigned i = 0; i < count; i++) narrow(values[i], elements[i]);
            u64 word;
            CHORALE_COPY(&word, elements, sizeof word);
            return word;
        }
    };
    struct Copy {
        u64 value;
        CHORALE_CODE void take(u64 word, bool, bool) { value = word; }
        CHORALE_CODE u64 word() const { return value; }
    };

    template <bool packed>
    CHORALE_CODE bool summed(const Stretches& some) {
        return m_.with_elements(b_, [&](auto element, auto does) {
            return units<packed, Sum<decltype(element), decltype(does)>>(some);
        });
    }
    template <bool packed>
    CHORALE_CODE bool copy(const Stretches& some) {
        return units<packed, Copy>(some);
    }

    // Moves this thread's share: several vectors at a time, or packets with eight bytes of data as they arrive.
    template <bool packed, class Way>
    CHORALE_CODE bool units(const Stretches& some) {
        if constexpr (packed) return units_of<1, 1, Way>(some);
        else return words_[Head::vector] < i64(vector_bytes) ? units_of<1, 4, Way>(some) : units_of<2, 4, Way>(some);
    }

    // width: number of 8-byte words that a thread reads or writes at once; unroll: number of units read before writing
    template <unsigned width, unsigned unroll, class Way>
    CHORALE_CODE bool units_of(const Stretches& some) {
        const u64 count = some.bytes / (8 * width), sources = some.reads + some.takes;
        for (; progress_ < count; progress_ += lanes_ * unroll) {
            Way ways[unroll * width] = {};
            for (u64 source = 0; source < sources; source++)
                for (unsigned turn = 0; turn < unroll; turn++) {
                    const u64 unit = progress_ + turn * lanes_;
                    if (unit < count && !read<width>(some, source, unit, ways + turn * width)) return false;
                }
            for (u64 target = sources; target < sources + some.writes + some.packets; target++)
                for (unsigned turn = 0; turn < unroll; turn++) {
                    const u64 unit = progress_ + turn * lanes_;
                    if (unit < count) write<width>(some, target, unit, ways + turn * width);
                }
        }
        return true;
    }

    template <unsigned width, class Way>
    CHORALE_CODE bool read(const Stretches& some, u64 source, u64 unit, Way* ways) {
        const bool is_first = source == 0, keeps_wide = b_.keeps_wide != 0;
        const char* at = place(some, source, unit * 8 * width);
        if constexpr (width == 2) {
            const Vector value = *reinterpret_cast<const Vector*>(at);
            ways[0].take(value.half[0], is_first, keeps_wide);
            ways[1].take(value.half[1], is_first, keeps_wide);
        } else if (source < some.reads) {
            ways[0].take(*reinterpret_cast<const u64*>(at), is_first, keeps_wide);
        } else {
            u64 two[2];
            m_.load_packets(reinterpret_cast<const u64*>(at), two);
            const u64 flag = call_ & 0xffffffffu;
            if (two[0] >> 32 != flag || two[1] >> 32 != flag) {
                absent_ = u64(some.place[2 * source + 1]) + (some.from + unit * 8) / b_.piece;
                return false;
            }
            ways[0].take((two[0] & 0xffffffffu) | two[1] << 32, is_first, keeps_wide);
        }
        return true;
    }

    template <unsigned width, class Way>
    CHORALE_CODE void write(const Stretches& some, u64 target, u64 unit, const Way* ways) {
        char* at = place(some, target, unit * 8 * width);
        if constexpr (width == 2) {
            *reinterpret_cast<Vector*>(at) = Vector{{ways[0].word(), ways[1].word()}};
        } else if (target < some.reads + some.takes + some.writes) {
            *reinterpret_cast<u64*>(at) = ways[0].word();
        } else {
            const u64 value = ways[0].word(), flag = call_ << 32;
            const u64 two[2] = {(value & 0xffffffffu) | flag, value >> 32 | flag};
            m_.store_packets(reinterpret_cast<u64*>(at), two);
        }
    }

    const Binding& b_;
    Machine& m_;
    const i64* words_;
    u64 block_, lane_, lanes_;
    i64 at_, end_, pipeline_ = 0;
    u64 *mine_, *heard_, *semaphores_, *barriers_;
    u64 call_, changes_, part_ = 0, progress_ = 0, ticket_ = 0, absent_ = 0;
    bool begun_ = false, entered_ = false, gave_up_ = false, is_outside_ = false;
};

}  // namespace chorale::plans
