// Executes a program symbolically, on sets of contributions.
//
// Blocks are strictly sequential. A message is the part of an instruction's data that is sent as one unit; a connection
// holds at most `depth` messages that have been sent and not yet received. A step starts when all its waits are over; a
// receiving step also needs an arrived message, a sending step a free slot, and a fused step both.
//
// A single loop iteration is sufficient. Real runtimes loop over parts of long chunks, each block at its own pace.
// Blocks have no branches, so the order in which they advance does not change the result: one iteration can finish
// before the next begins, and then all queues are empty again. Iterations access different elements.
#include <deque>

#include "modules.hpp"

namespace chorale {
namespace {

// Numbers from `chorale.synth.programs.check_execution`: flags of instructions, columns of tables, faults.
constexpr Int RECEIVES = 1, SENDS = 2, READS_SRC = 4, WRITES_DST = 8, READS_DST = 16;
constexpr Int FLAGS = 0, SRC = 1, DST = 2, COUNT = 3, SAVED = 4, FIRST_WAIT = 5;
constexpr Int FIRST = 0, INCOMING = 1, OUTGOING = 2, BASE = 3, FIRST_NEIGHBOUR = 4;
constexpr Int PC = 0, MOVED = 1;
constexpr Int QUEUE = 0, SPAN = 1, SENT = 2, RECEIVED = 3;
constexpr Int NO_CLOCKS = 0, CLOCKS_OF_ALL_RANKS = 2;
constexpr Int OTHER_CHUNK = 1, TWICE = 2, RACE = 3;
constexpr Int NOTHING = -1, FIRST_MARK = -2;
constexpr Int SPARE_CELLS = 2;    // after the memory: the chunk in transit, and the chunk to which it is added

struct Code {
    Span<const Int, 2> items, waits, blocks;
    Span<const Int> neighbours;

    auto fields() { return std::tie(items, waits, blocks, neighbours); }
};

struct ChunkValues {
    Span<Int> identity;
    Span<Word, 2> members;

    void copy(Int source, Int target) const {
        identity[target] = identity[source];
        assign(members.row(target), members.row(source));
    }

    // Add `cell` to `value`. If they cannot be added, copy `cell` to the cell after `value` and return the fault.
    //
    // If one of them was never written, the sum counts as never written.
    Int add(Int cell, Int value, Int item) const {
        if (identity[value] < 0) return 0;
        if (identity[cell] < 0) {
            identity[value] = identity[cell] != NOTHING ? identity[cell] : FIRST_MARK - item;
            return 0;
        }
        const auto added = members.row(cell), sum = members.row(value);
        Word shared = added.size() == 0;
        for (Int word = 0; word < added.size(); ++word) shared |= added[word] & sum[word];
        if (identity[cell] != identity[value] || shared != 0) {
            copy(cell, value + 1);
            return identity[cell] == identity[value] ? TWICE : OTHER_CHUNK;
        }
        for (Int word = 0; word < added.size(); ++word) sum[word] |= added[word];
        return 0;
    }

    // Execute instruction `item` for one chunk in cell `value`; return the fault, or 0.
    Int work(Int flags, Int item, Int value, Int src, Int dst, Int arrived, Int left) const {
        Int fault = 0;
        if (flags & RECEIVES) copy(arrived, value);
        if (flags & READS_SRC && flags & RECEIVES) {
            fault = add(src, value, item);
        } else if (flags & READS_SRC) {
            copy(src, value);
            if (identity[value] == NOTHING) identity[value] = FIRST_MARK - item;
        }
        if (flags & READS_DST && fault == 0) fault = add(dst, value, item);
        if (flags & WRITES_DST && fault == 0) copy(value, dst);
        if (flags & SENDS && fault == 0) copy(value, left);
        return fault;
    }
};

// Detects races (unordered accesses to a cell) by vector clocks over the blocks.
//
// A program has no branches, so the order of accesses does not depend on the execution: one execution finds a race if
// there is one. Order comes from the sequence within a block, from waits, and from messages (what a rank did before it
// sent precedes what the receiver does after it received). Free slots of a queue do not imply an order.
//
// The clock per block and the last accesses per cell follow C. Flanagan, S. Freund, "FastTrack" (PLDI 2009): a read
// that precedes a later read of the same cell is not stored.
struct Clocks {
    Array<Rank, 2> rows;  // clocks of blocks, of awaited instructions, and of messages if their order counts

    bool are_kept() const { return rows.shape[0] > 0; }
    // Record that everything that precedes `other` also precedes what the owner of `row` does from now on.
    void merge(Int row, Int other) const {
        const auto own = rows.row(row), known = rows.row(other);
        for (Int component = 0; component < own.size(); ++component)
            own[component] = std::max(own[component], known[component]);
    }
    void copy(Int row, Int target) const { assign(rows.row(target), rows.row(row)); }
};

constexpr Int WRITER = 0, WRITTEN = 1, READ = 2;
constexpr Int NEXT = 0, READER = 1, WHEN = 2;

// The last accesses to each cell. Blocks are numbered from 1; 0 means none.
struct Accesses {
    Array<Rank, 2> last;  // by cell: block and time of the last write, first stored read since then
    Array<Rank, 2> read;  // next stored read of the cell, block, time; the first row has the number of rows in use

    // Record that `block` reads `cell`; return a block whose write races with it, or -1.
    //
    // Block b has row b and component b - base.
    Int note_read(const Clocks& clocks, Int block, Int base, Int cell) const {
        const auto clock = clocks.rows.row(block);
        Int entry = last(cell, READ);
        while (entry > 0 && clock[read(entry, READER) - 1 - base] < read(entry, WHEN)) entry = read(entry, NEXT);
        if (entry == 0) {
            entry = ++read(0, 0);
            read(entry, NEXT) = last(cell, READ);
            last(cell, READ) = entry;
        }
        read(entry, READER) = block + 1;
        read(entry, WHEN) = clock[block - base];
        const Int writer = last(cell, WRITER) - 1;
        return writer < 0 || clock[writer - base] >= last(cell, WRITTEN) ? -1 : writer;
    }

    // Record that `block` writes `cell`; return a block whose access races with it, or -1.
    Int note_write(const Clocks& clocks, Int block, Int base, Int cell) const {
        const auto clock = clocks.rows.row(block);
        Int other = -1;
        for (Int entry = last(cell, READ); entry > 0; entry = read(entry, NEXT)) {
            const Int reader = read(entry, READER) - 1;
            if (clock[reader - base] < read(entry, WHEN)) other = reader;
        }
        const Int writer = last(cell, WRITER) - 1;
        if (writer >= 0 && clock[writer - base] < last(cell, WRITTEN)) other = writer;
        last(cell, WRITER) = block + 1;
        last(cell, WRITTEN) = clock[block - base];
        last(cell, READ) = 0;
        return other;
    }
};

struct RunConditions {
    Int depth, message_chunks, clocks;

    auto fields() { return std::tie(depth, message_chunks, clocks); }
};

// Final state of a run: memory and spare cells; for each block, the next instruction and its finished chunks; for each
// connection, the first cell, cells per slot, and messages sent and received; kind and block of the fault, and the
// other block of a race.
struct RunResult {
    Array<Int> identity;
    Array<Word, 2> members;
    Array<Int, 2> progress, queues;
    Array<Int> fault;

    auto fields() { return std::tie(identity, members, progress, queues, fault); }
};

class Execution {
public:
    Execution(const Code& code, Span<const Int> longest, Span<const Int> identity, Span<const Word, 2> members,
              const RunConditions& conditions)
        : code_(code), conditions_(conditions), value_(identity.size()), blocks_(code.blocks.shape[0] - 1),
          progress_(zeros<Int>(blocks_, 2)), queues_(zeros<Int>(longest.size(), 4)), fault_(zeros<Int>(3)) {
        Int cells = value_ + SPARE_CELLS;
        for (Int connection = 0; connection < longest.size(); ++connection) {
            queues_(connection, QUEUE) = cells;
            queues_(connection, SPAN) = std::min(longest[connection], conditions.message_chunks);
            cells += conditions.depth * queues_(connection, SPAN);
        }
        identity_ = full<Int>(NOTHING, cells);
        members_ = zeros<Word>(cells, members.shape[1]);
        assign(identity_, identity);
        for (Int cell = 0; cell < value_; ++cell) assign(members_.row(cell), members.row(cell));
        values_ = {identity_, members_};
        Int width = 1, waited = 0, reads = 0;
        for (Int block = 0; block < blocks_; ++block) {
            progress_(block, PC) = code.blocks(block, FIRST);
            width = std::max(width, block - base_of(block) + 1);
        }
        if (conditions.clocks == NO_CLOCKS) return;
        for (Int item = 0; item < code.items.shape[0]; ++item) {
            const Int flags = code.items(item, FLAGS);
            waited = std::max(waited, code.items(item, SAVED) + 1);
            reads += code.items(item, COUNT) * ((flags & READS_SRC ? 1 : 0) + (flags & READS_DST ? 1 : 0));
        }
        first_message_ = blocks_ + waited;
        clocks_ = {zeros<Rank>(first_message_ + (is_global() ? conditions.depth * longest.size() : 0), width)};
        accesses_ = {zeros<Rank>(value_, 3), zeros<Rank>(1 + reads, 3)};
    }

    void run() {
        std::deque<Int> ready(blocks_);
        std::iota(ready.begin(), ready.end(), Int{0});
        auto waiting = full<bool>(true, blocks_);
        while (!ready.empty() && fault_[0] == 0) {
            const Int block = ready.front();
            ready.pop_front();
            waiting[block] = false;
            bool went = false;
            while (can_go_on(block) && fault_[0] == 0) {
                advance(block);
                went = true;
            }
            const auto wake = [&](Int woken) {
                if (waiting[woken] || progress_(woken, PC) >= code_.blocks(woken + 1, FIRST)) return;
                waiting[woken] = true;
                ready.push_back(woken);
            };
            if (!went) continue;
            const Int first = code_.blocks(block, FIRST_NEIGHBOUR), last = code_.blocks(block + 1, FIRST_NEIGHBOUR);
            for (const Int neighbour : code_.neighbours.part(first, last)) wake(neighbour);
            wake(block);
        }
    }

    RunResult result() const {
        return {identity_.prefix(value_ + SPARE_CELLS), members_.prefix(value_ + SPARE_CELLS), progress_, queues_, fault_};
    }

private:
    bool is_global() const { return conditions_.clocks == CLOCKS_OF_ALL_RANKS; }
    // Return the block whose time is component 0 of the clock of `block`.
    Int base_of(Int block) const { return is_global() ? 0 : code_.blocks(block, BASE); }

    bool can_go_on(Int block) const {
        const Int item = progress_(block, PC), flags = code_.items(item, FLAGS);
        if (item == code_.blocks(block + 1, FIRST)) return false;
        if (progress_(block, MOVED) == 0) {
            for (Int wait = code_.items(item, FIRST_WAIT); wait < code_.items(item + 1, FIRST_WAIT); ++wait)
                if (progress_(code_.waits(wait, 1), PC) <= code_.waits(wait, 0)) return false;
        }
        const Int source = code_.blocks(block, INCOMING), target = code_.blocks(block, OUTGOING);
        if (flags & RECEIVES && queues_(source, SENT) == queues_(source, RECEIVED)) return false;
        return !(flags & SENDS) || queues_(target, SENT) - queues_(target, RECEIVED) < conditions_.depth;
    }

    // Execute the next message of `block`, or a complete instruction if it neither sends nor receives.
    void advance(Int block) {
        const Int item = progress_(block, PC), moved = progress_(block, MOVED);
        if (clocks_.are_kept()) {
            ++clocks_.rows(block, block - base_of(block));
            for (Int wait = code_.items(item, FIRST_WAIT); moved == 0 && wait < code_.items(item + 1, FIRST_WAIT); ++wait)
                clocks_.merge(block, blocks_ + code_.items(code_.waits(wait, 0), SAVED));
        }
        Int span = code_.items(item, COUNT) - moved;
        if (code_.items(item, FLAGS) & (RECEIVES | SENDS)) span = std::min(span, conditions_.message_chunks);
        move(block, item, moved, span);
        progress_(block, MOVED) += span;
        if (fault_[0] != 0 || progress_(block, MOVED) != code_.items(item, COUNT)) return;
        if (clocks_.are_kept() && code_.items(item, SAVED) >= 0)
            clocks_.copy(block, blocks_ + code_.items(item, SAVED));
        ++progress_(block, PC);
        progress_(block, MOVED) = 0;
    }

    // Move `span` chunks of instruction `item` of `block`.
    void move(Int block, Int item, Int moved, Int span) {
        const Int flags = code_.items(item, FLAGS), base = base_of(block);
        const Int source = code_.blocks(block, INCOMING), target = code_.blocks(block, OUTGOING);
        const bool orders_messages = is_global();
        Int left = -1, arrived = -1;
        if (flags & RECEIVES) {
            arrived = next_slot(source, RECEIVED);
            if (orders_messages) clocks_.merge(block, clock_row(source, RECEIVED));
        }
        if (flags & SENDS) {
            left = next_slot(target, SENT);
            if (orders_messages) clocks_.copy(block, clock_row(target, SENT));
        }
        const Int src = code_.items(item, SRC) + moved, dst = code_.items(item, DST) + moved;
        for (Int chunk = 0; chunk < span; ++chunk) {
            if (clocks_.are_kept() && races(flags, block, base, src + chunk, dst + chunk)) return;
            const Int fault = values_.work(flags, item, value_, src + chunk, dst + chunk, arrived + chunk, left + chunk);
            if (fault != 0) {
                fault_[0] = fault;
                fault_[1] = block;
                return;
            }
        }
        if (flags & RECEIVES) ++queues_(source, RECEIVED);
        if (flags & SENDS) ++queues_(target, SENT);
    }

    Int next_slot(Int connection, Int counter) const {
        return queues_(connection, QUEUE) + queues_(connection, counter) % conditions_.depth * queues_(connection, SPAN);
    }

    Int clock_row(Int connection, Int counter) const {
        return first_message_ + connection * conditions_.depth +
               queues_(connection, counter) % conditions_.depth;
    }

    // Record the accesses to one chunk; return whether one of them is in a race.
    bool races(Int flags, Int block, Int base, Int src, Int dst) {
        Int other = -1;
        if (flags & READS_SRC) other = accesses_.note_read(clocks_, block, base, src);
        if (other < 0 && flags & READS_DST) other = accesses_.note_read(clocks_, block, base, dst);
        if (other < 0 && flags & WRITES_DST) other = accesses_.note_write(clocks_, block, base, dst);
        if (other >= 0) assign(fault_, std::array<Int, 3>{RACE, block, other});
        return other >= 0;
    }

    const Code& code_;
    const RunConditions& conditions_;
    const Int value_, blocks_;  // the first cell after the memory; number of blocks
    Array<Int> identity_;
    Array<Word, 2> members_;
    ChunkValues values_;
    Array<Int, 2> progress_, queues_;
    Int first_message_ = 0;  // first row of the clocks of messages
    Clocks clocks_;
    Accesses accesses_;
    Array<Int> fault_;
};

RunResult execute(const Code& code, Span<const Int> longest, Span<const Int> identity, Span<const Word, 2> members,
                  const RunConditions& conditions) {
    Execution execution(code, longest, identity, members, conditions);
    execution.run();
    return execution.result();
}

}  // namespace

void bind_programs(nanobind::module_& module) { define(module, "execute", execute); }

}  // namespace chorale
