// Finds out which instructions of a rank have to wait for others, and when transfers can begin.
#include "heap.hpp"
#include "modules.hpp"

namespace chorale {
namespace {

// Dependences: instruction i depends on earlier[offsets[i]] to earlier[offsets[i + 1] - 1].
struct Earlier {
    Array<Int> offsets, earlier;

    auto fields() { return std::tie(offsets, earlier); }
};

Earlier dependences(Span<const Int> src, Span<const Int> dst, Span<const Int> count, Int cells) {
    const Int length = src.size();
    auto writer = full<Int>(-1, cells), newest = full<Int>(-1, cells);  // newest: head of the list of readers
    auto seen = full<Int>(-1, length);
    auto offsets = zeros<Int>(length + 1);
    std::vector<Int> reader, older, earlier;
    for (Int index = 0; index < length; ++index) {
        const auto note = [&](Int other) {
            if (other < 0 || other >= index || seen[other] == index) return;
            seen[other] = index;
            earlier.push_back(other);
        };
        for (Int cell = src[index]; src[index] >= 0 && cell < src[index] + count[index]; ++cell) {
            note(writer[cell]);
            reader.push_back(index);
            older.push_back(newest[cell]);
            newest[cell] = reader.size() - 1;
        }
        for (Int cell = dst[index]; dst[index] >= 0 && cell < dst[index] + count[index]; ++cell) {
            note(writer[cell]);
            for (Int entry = newest[cell]; entry >= 0; entry = older[entry]) note(reader[entry]);
            writer[cell] = index;
            newest[cell] = -1;
        }
        std::sort(earlier.begin() + offsets[index], earlier.end(), std::greater<>());
        offsets[index + 1] = earlier.size();
    }
    return {offsets, std::move(earlier)};
}

// Return the dependences that need a wait: all except those within a block and those that other waits imply. The latter
// are found with vector clocks over the blocks. There is a current clock for each block, and a clock at the end of each
// instruction on which others depend.
Earlier necessary_waits(Span<const Int> src, Span<const Int> dst, Span<const Int> count, Int cells,
                        Span<const Int> block, Int blocks) {
    const auto [first, all] = dependences(src, dst, count, cells);
    const Int length = block.size();
    auto now = zeros<Rank>(blocks, blocks);  // now(a, b): number of steps of b that are done at the current step of a
    auto step = zeros<Int>(length), done = zeros<Int>(blocks);
    auto clock = full<Int>(-1, length);  // each instruction's index into `clocks`
    Int noted = 0;
    for (const Int other : all)
        if (clock[other] < 0) clock[other] = noted++;
    auto clocks = empty<Rank>(noted, blocks);
    auto offsets = zeros<Int>(length + 1);
    std::vector<Int> kept;
    for (Int index = 0; index < length; ++index) {
        const auto own = now.row(block[index]);
        step[index] = done[block[index]];
        // Later dependences come first, because they may imply earlier ones, but not vice versa.
        for (const Int other : all.part(first[index], first[index + 1])) {
            if (block[other] == block[index] || own[block[other]] > step[other]) continue;
            for (Int each = 0; each < blocks; ++each) own[each] = std::max(own[each], clocks(clock[other], each));
            kept.push_back(other);
        }
        own[block[index]] = ++done[block[index]];
        if (clock[index] >= 0) assign(clocks.row(clock[index]), own);
        offsets[index + 1] = kept.size();
    }
    return {offsets, std::move(kept)};
}

Array<bool> is_needed(Span<const Int> src, Span<const Int> dst, Span<const Int> count,
                      Span<const bool> needed_cells) {
    auto needed = copy(needed_cells);
    auto result = zeros<bool>(src.size());
    for (Int index = src.size() - 1; index >= 0; --index) {
        if (dst[index] >= 0) {
            const auto cells = needed.part(dst[index], dst[index] + count[index]);
            result[index] = any(cells);
            fill(cells, false);
        }
        if (src[index] >= 0) fill(needed.part(src[index], src[index] + count[index]), true);
    }
    return result;
}

// List scheduling of transfers over links: each free link takes the transfer with the longest remaining path first.

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
          waiting_(moves.weight.size()) {
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
                waiting_[link].push(node);
                note(std::max(time, free_[link]), rows + link);
                continue;
            }
            const Int link = node - rows;
            if (waiting_[link].empty()) continue;
            if (free_[link] > time) {  // the link is now occupied as a further link of another row
                note(free_[link], node);
                continue;
            }
            const Int row = row_at_[waiting_[link].top()];
            waiting_[link].pop();
            const Int end = occupy(row, time);
            note(free_[link], rows + link);
            finish(row, time, end);
        }
    }

    Array<Int> start, before;

private:
    void note(Int time, Int node) { events_.emplace(static_cast<double>(time), node); }

    // Start `row` on its first link at `time` and on each other link when this link is free; return the end of `row`.
    Int occupy(Int row, Int time) {
        Int end = time;
        for (const Rank link : moves_.links_of(row)) {
            free_[link] = std::max(free_[link], time) + moves_.weight[link] * moves_.chunks[row];
            end = std::max(end, free_[link]);
        }
        return end;
    }

    // Make rows ready that were only waiting for `row`, which runs from `time` to `end`; they are ready at its end.
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

    const Moves& moves_;
    const Visits& visits_;
    Span<const Int> row_at_, rank_;
    Array<Int> ready_, needs_;           // by row: when its inputs have finished, and the number of unfinished runs
    Array<Int> pending_, begun_, done_;  // by run: rows not yet started, start of the last one, and its end
    Array<Int> free_;                    // by link: when it is free
    std::vector<std::priority_queue<Int, std::vector<Int>, std::greater<>>> waiting_;  // by link: ranks of waiting rows
    NodeHeap events_;                    // times at which rows (rank) become ready or links (rows + link) free
};

std::tuple<Array<Int>, Array<Int>> timetable(const Moves& moves, const Visits& visits, Span<const Int> latest_first,
                                             Span<const Int> priority) {
    const auto tail = remaining_times(moves, visits, latest_first);
    auto row_at = numbered(tail.size()), rank = empty<Int>(tail.size());
    std::stable_sort(row_at.begin(), row_at.end(), [&](Int a, Int b) {
        return std::pair(priority[a], -tail[a]) < std::pair(priority[b], -tail[b]);
    });
    for (Int place = 0; place < rank.size(); ++place) rank[row_at[place]] = place;
    ListScheduling scheduling(moves, visits, row_at, rank);
    scheduling.run();
    const auto& start = scheduling.start;
    std::stable_sort(row_at.begin(), row_at.end(), [&](Int a, Int b) { return start[a] < start[b]; });
    auto stretch = zeros<Int>(start.size());
    Int number = 0, begin = 0;
    for (const Int row : row_at) {
        if (scheduling.before[row] >= begin) {
            ++number;
            begin = start[row];
        }
        stretch[row] = number;
    }
    return {start, stretch};
}

}  // namespace

void bind_lowering(nanobind::module_& module) {
    define(module, "timetable", timetable);
    define(module, "dependences", dependences);
    define(module, "is_needed", is_needed);
    define(module, "necessary_waits", necessary_waits);
}

}  // namespace chorale
