// Converts schedules to fragments: the places of chunks, and the order in which links carry them.
#include "heap.hpp"
#include "modules.hpp"

namespace chorale {
namespace {

constexpr Int SHIFT = 28, OFFSET_MASK = (Int{1} << SHIFT) - 1, BUFFER_COUNT = 3;
constexpr Int NOWHERE = -1;

// Messages of a step: chunks `first` to `end - 1` travel from `sender` to `receiver`.
struct Messages {
    Span<const Rank> sender, receiver, channel, first, end, reduces;

    auto fields() { return std::tie(sender, receiver, channel, first, end, reduces); }
    bool is_same_connection(Int one, Int other) const {
        return sender[one] == sender[other] && receiver[one] == receiver[other] && channel[one] == channel[other];
    }
    // Calls function(row, chunk) for each chunk of each message.
    template <class Function>
    void each(Function function) const {
        for (Int row = 0; row < first.size(); ++row)
            for (Int chunk = first[row]; chunk < end[row]; ++chunk) function(row, chunk);
    }
};

// Flags of cells, one bit each; all are 0 between calls.
struct Marks {
    Span<std::uint8_t> bytes;

    bool has(Int bit) const { return (bytes[bit >> 3] >> (bit & 7)) & 1; }
    void set(Int bit) const { bytes[bit >> 3] |= 1 << (bit & 7); }
    void clear_around(Int bit) const { bytes[bit >> 3] = 0; }
};

struct Cells {
    Int ordered;
    Span<Rank, 2> current;
    Span<const Rank, 2> arrival;
    Int stride;

    auto fields() { return std::tie(ordered, current, arrival, stride); }
    bool is_ordered() const { return ordered != NOWHERE; }
    Int now(Int rank, Int chunk) const { return is_ordered() ? ordered + chunk : current(rank, chunk); }
    Int later(Int rank, Int chunk) const { return is_ordered() ? ordered + chunk : arrival(rank, chunk); }
    // Return the number of a cell among all cells of all ranks.
    Int bit(Int rank, Int code) const {
        const Int buffer = is_ordered() ? rank : rank * BUFFER_COUNT + (code >> SHIFT);
        return buffer * stride + (code & OFFSET_MASK);
    }
};

void moments(Span<const Rank> rank, Span<const Rank> step, Span<const Rank> first, Span<const Rank> end,
             Span<Rank, 2> result) {
    for (Int row = 0; row < rank.size(); ++row)
        for (Int chunk = first[row]; chunk < end[row]; ++chunk) result(rank[row], chunk) = step[row];
}

bool is_exchange(const Messages& messages, const Cells& cells, Span<std::uint8_t> bytes) {
    const Marks marks{bytes};
    const auto sent = [&](Int row, Int chunk) {
        return cells.bit(messages.sender[row], cells.now(messages.sender[row], chunk));
    };
    messages.each([&](Int row, Int chunk) { marks.set(sent(row, chunk)); });
    bool found = false;
    messages.each([&](Int row, Int chunk) {
        const Int receiver = messages.receiver[row];
        found = found || marks.has(cells.bit(receiver, cells.later(receiver, chunk)));
    });
    messages.each([&](Int row, Int chunk) { marks.clear_around(sent(row, chunk)); });
    return found;
}

// Return where the receiver has the chunk to add to (or the target, if it adds nothing), and mark the cell as reached.
Int operand_of(const Messages& messages, const Cells& cells, const Marks& marks, Int row, Int chunk) {
    const Int receiver = messages.receiver[row];
    if (cells.is_ordered()) return cells.ordered + chunk;
    const Int bit = receiver * cells.stride + chunk;
    const bool is_first = !marks.has(bit);
    marks.set(bit);
    const bool adds_to_what_lay_there = messages.reduces[row] == 1 && is_first;
    return adds_to_what_lay_there ? cells.current(receiver, chunk) : cells.arrival(receiver, chunk);
}

std::tuple<Array<Rank>, Array<Rank>, Array<Rank>, Array<Rank>, Array<Rank>> step_fragments(const Messages& messages,
                                                                                           const Cells& cells,
                                                                                           Span<std::uint8_t> bytes,
                                                                                           Int longest, bool across) {
    const Marks marks{bytes};
    std::vector<Rank> rows, sources, operands, targets, lengths;
    Int previous = -1;
    for (Int row = 0; row < messages.first.size(); ++row) {
        bool is_new = previous < 0 || !across || !messages.is_same_connection(previous, row);
        for (Int chunk = messages.first[row]; chunk < messages.end[row]; ++chunk) {
            const Int source = cells.now(messages.sender[row], chunk);
            const Int target = cells.later(messages.receiver[row], chunk);
            const Int operand = operand_of(messages, cells, marks, row, chunk);
            if (!is_new) {
                const Int length = lengths.back();
                is_new = length == longest || source != sources.back() + length ||
                         operand != operands.back() + length || target != targets.back() + length;
            }
            if (is_new) {
                rows.push_back(row);
                sources.push_back(source);
                operands.push_back(operand);
                targets.push_back(target);
                lengths.push_back(0);
            }
            ++lengths.back();
            is_new = false;
        }
        if (messages.end[row] > messages.first[row]) previous = row;
    }
    if (!cells.is_ordered()) {  // senders read chunks at the place where they arrived
        messages.each([&](Int row, Int chunk) {
            const Int receiver = messages.receiver[row];
            cells.current(receiver, chunk) = cells.arrival(receiver, chunk);
            marks.clear_around(receiver * cells.stride + chunk);
        });
    }
    return {std::move(rows), std::move(sources), std::move(operands), std::move(targets), std::move(lengths)};
}

// List scheduling of transfers over links: each free link takes the transfer with the longest remaining path first.

constexpr Int NO_ROW = -1;

// Link usage: row i occupies each of links[first[i]] to links[end[i] - 1] for chunks[i] times the weight of the link.
struct Moves {
    Span<const Int> chunks, first, end;
    Span<const Rank> links;
    Span<const Int> weight;

    auto fields() { return std::tie(chunks, first, end, links, weight); }
    Span<const Rank> links_of(Int row) const { return links.part(first[row], end[row]); }
};

struct Visits {
    Span<const Int> first, run, rows, run_first;
    Span<const std::int8_t> is_last;

    auto fields() { return std::tie(first, run, rows, run_first, is_last); }
    Span<const Int> runs_of(Int row) const { return run.part(first[row], first[row + 1]); }
};

Array<Int> remaining_times(const Moves& moves, const Visits& visits, Span<const Int> latest_first) {
    auto tail = zeros<Int>(moves.chunks.size());
    auto of_run = zeros<Int>(visits.run_first.size());
    for (const Int row : latest_first) {
        Int after = 0, slowest = 0;
        for (const Int run : visits.runs_of(row))
            if (!visits.is_last[run]) after = std::max(after, of_run[run + 1]);
        for (const Rank link : moves.links_of(row)) slowest = std::max(slowest, moves.weight[link]);
        tail[row] = after + slowest * moves.chunks[row];
        for (const Int run : visits.runs_of(row)) of_run[run] = std::max(of_run[run], tail[row]);
    }
    return tail;
}

class ListScheduling {
public:
    ListScheduling(const Moves& moves, const Visits& visits, Span<const Int> row_at, Span<const Int> rank)
        : start(full<Int>(-1, rank.size())), before(full<Int>(-1, rank.size())), moves_(moves), visits_(visits),
          row_at_(row_at), rank_(rank), ready_(zeros<Int>(rank.size())), needs_(zeros<Int>(rank.size())),
          pending_(empty<Int>(visits.run_first.size() - 1)), begun_(zeros<Int>(pending_.size())),
          done_(zeros<Int>(pending_.size())), free_(zeros<Int>(moves.weight.size())),
          waiting_(full<Int>(NO_ROW, moves.weight.size())), left_(full<Int>(NO_ROW, rank.size())),
          right_(full<Int>(NO_ROW, rank.size())) {
        for (Int run = 0; run < pending_.size(); ++run) pending_[run] = visits.run_first[run + 1] - visits.run_first[run];
        for (Int row = 0; row < rank.size(); ++row)
            for (const Int run : visits.runs_of(row)) needs_[row] += run > 0 && !visits.is_last[run - 1];
    }

    void run() {
        const Int rows = rank_.size();
        for (Int row = 0; row < rows; ++row)
            if (needs_[row] == 0) note(0, rank_[row]);
        while (!events_.empty()) {
            const auto [moment, node] = take_top(events_);
            const Int time = static_cast<Int>(moment);
            if (node < rows) {
                const Int link = moves_.links[moves_.first[row_at_[node]]];
                waiting_[link] = joined(waiting_[link], node);
                note(std::max(time, free_[link]), rows + link);
                continue;
            }
            const Int link = node - rows, top = waiting_[link];
            if (top != NO_ROW && free_[link] > time) {  // the link is now occupied as a further link of another row
                note(free_[link], node);
            } else if (top != NO_ROW) {
                waiting_[link] = joined(left_[top], right_[top]);
                const Int end = occupy(row_at_[top], time);
                note(free_[link], rows + link);
                finish(row_at_[top], time, end);
            }
        }
    }

    Array<Int> start, before;

private:
    void note(Int time, Int node) { events_.emplace(static_cast<double>(time), node); }

    // Start `row` on its first link at `time`, and on each further link when that is free; return when it has finished.
    Int occupy(Int row, Int time) {
        Int end = time;
        for (const Rank link : moves_.links_of(row)) {
            free_[link] = std::max(free_[link], time) + moves_.weight[link] * moves_.chunks[row];
            end = std::max(end, free_[link]);
        }
        return end;
    }

    // Make rows ready that were only waiting for `row`, which starts at `time`; they are ready when it ends.
    void finish(Int row, Int time, Int end) {
        start[row] = time;
        for (const Int run : visits_.runs_of(row)) {
            begun_[run] = std::max(begun_[run], time);
            done_[run] = std::max(done_[run], end);
            if (--pending_[run] || visits_.is_last[run]) continue;
            for (const Int other : visits_.rows.part(visits_.run_first[run + 1], visits_.run_first[run + 2])) {
                ready_[other] = std::max(ready_[other], done_[run]);
                before[other] = std::max(before[other], begun_[run]);
                if (--needs_[other] == 0) note(ready_[other], rank_[other]);
            }
        }
    }

    // Merge two skew heaps, smallest on top; return the new top. O(log(members)), amortised.
    //
    // Source: Sleator and Tarjan, "Self-adjusting heaps", 1986.
    Int joined(Int first, Int second) {
        if (std::min(first, second) == NO_ROW) return std::max(first, second);
        const Int top = std::min(first, second);
        Int node = top, other = std::max(first, second);
        while (true) {
            const Int below = right_[node];
            right_[node] = left_[node];
            if (below == NO_ROW) {
                left_[node] = other;
                return top;
            }
            left_[node] = std::min(below, other);
            node = std::min(below, other);
            other = std::max(below, other);
        }
    }

    const Moves& moves_;
    const Visits& visits_;
    Span<const Int> row_at_, rank_;
    Array<Int> ready_, needs_;           // by row: when its inputs have finished, and the number of unfinished runs
    Array<Int> pending_, begun_, done_;  // by run: rows not yet started, start of the last one, and its end
    Array<Int> free_, waiting_;          // by link: when it is free, and the top of its heap of waiting rows
    Array<Int> left_, right_;            // by rank of a waiting row: its children in the heap
    NodeHeap events_;                    // times at which rows (rank) become ready or links (rows + link) free
};

std::tuple<Array<Int>, Array<Int>> start_times(const Moves& moves, const Visits& visits, Span<const Int> row_at,
                                               Span<const Int> rank) {
    ListScheduling scheduling(moves, visits, row_at, rank);
    scheduling.run();
    return {scheduling.start, scheduling.before};
}

Array<Int> time_stretches(Span<const Int> start, Span<const Int> before, Span<const Int> order) {
    auto stretch = zeros<Int>(start.size());
    Int number = 0, begin = 0;
    for (const Int row : order) {
        if (before[row] >= begin) {
            ++number;
            begin = start[row];
        }
        stretch[row] = number;
    }
    return stretch;
}

}  // namespace

void bind_fragments(nanobind::module_& module) {
    define(module, "moments", moments);
    define(module, "is_exchange", is_exchange);
    define(module, "step_fragments", step_fragments);
    define(module, "remaining_times", remaining_times);
    define(module, "start_times", start_times);
    define(module, "time_stretches", time_stretches);
}

}  // namespace chorale
