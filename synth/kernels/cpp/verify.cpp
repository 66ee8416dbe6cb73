// Replays a schedule for all cells together, with rows in any order.
//
// For collectives that copy, the step after which each (rank, cell) has arrived is stored. For collectives that reduce,
// the step in which a rank sends its partial sum is stored: if every rank except one sends once, to a rank that sends
// later, then every contribution reaches the last rank exactly once, because times increase along the path.
//
// Times are stored as step + 1; in tables of arrivals, 0 means from the start, and `NEVER` means not at all. Actors are
// ranks, then switches that multicast or add, if any. A switch stores nothing: it forwards data in the step in which it
// receives them. So times do not increase at switches, and chains of switches are followed to their ends.
#include "modules.hpp"

namespace chorale {
namespace {

constexpr Hops NEVER = 65535;

// In the order of the table in `chorale.synth.verify.verify`.
enum Fault : Int {
    FINE,
    HANDED_ON_TWICE,
    RESULT_TWICE,
    TOO_EARLY,
    TOO_LATE,
    SENT_ANOTHER_TIME,
    INCOMPLETE,
    STORED,
    EMPTY,
    CANNOT_ADD,
    IN_A_CIRCLE,
    TURNED_TWICE,
    LEADS_NOWHERE,
    CANNOT_COPY
};

// Rows of a schedule, [7, rows]: step, src, dst, shard, first and last + 1 cell within the shard, reduce. Tables
// contain the cells of shards `first` to `last - 1`.
struct Window {
    Span<const Rank, 2> rows;
    Int first, last;
    Span<const Int> offsets;

    Int step(Int row) const { return rows(0, row); }
    Int src(Int row) const { return rows(1, row); }
    Int dst(Int row) const { return rows(2, row); }
    bool reduces(Int row) const { return rows(6, row); }

    // Calls function(row, cell) for each cell of each row until it returns a fault; returns the fault and its row.
    template <class Function>
    std::tuple<Int, Int> each(Function function) const {
        for (Int row = 0; row < rows.shape[1]; ++row) {
            const Int shard = rows(3, row);
            if (shard < first || shard >= last) continue;
            const Int base = offsets[shard] - offsets[first];
            for (Int cell = base + rows(4, row); cell < base + rows(5, row); ++cell)
                if (const Int fault = function(row, cell)) return {fault, row};
        }
        return {FINE, -1};
    }
};

struct ActorTables {
    Span<Hops, 2> arrival, handed_on, fed, first_fed;
    Span<Rank, 2> inputs, goes_to, comes_from, copies;

    auto fields() { return std::tie(arrival, handed_on, fed, first_fed, inputs, goes_to, comes_from, copies); }

    // Record that `src` sends a partial sum to `dst`; return a fault or 0.
    Int note_sum(Int ranks, Int src, Int dst, Int cell, Hops time) const {
        const Int fault = handed_on(src, cell) != 0 ? HANDED_ON_TWICE : FINE;
        handed_on(src, cell) = time;
        fed(dst, cell) = std::max(fed(dst, cell), time);
        if (src >= ranks) goes_to(src - ranks, cell) = dst;
        if (dst >= ranks) {
            Hops& earliest = first_fed(dst - ranks, cell);
            earliest = earliest == 0 ? time : std::min(earliest, time);
            ++inputs(dst - ranks, cell);
        }
        return fault;
    }

    // Record that `dst` receives a result from `src`; return whether `dst` already had the result.
    bool note_result(Int ranks, Int src, Int dst, Int cell, Hops time) const {
        const bool again = arrival(dst, cell) != NEVER;
        arrival(dst, cell) = std::min(arrival(dst, cell), time);
        if (dst >= ranks) comes_from(dst - ranks, cell) = src;
        if (src >= ranks) ++copies(src - ranks, cell);
        return again;
    }

    // Return the fault, or 0, in what a switch does with partial sums.
    Int fault_of_sum(Int ranks, Int node, Int cell, Span<const bool> can_add) const {
        const Int actor = ranks + node, time = handed_on(actor, cell), count = inputs(node, cell);
        if (count == 0) return time != 0 ? EMPTY : FINE;
        const bool is_at_once = first_fed(node, cell) == fed(actor, cell);
        if (!is_at_once || (time != 0 && time != fed(actor, cell))) return STORED;
        if (count > 1 && !can_add[node]) return CANNOT_ADD;
        Int following = actor, hops = 0;
        while (following >= ranks && handed_on(following, cell) != 0) {
            following = goes_to(following - ranks, cell);
            if (++hops > can_add.size()) return IN_A_CIRCLE;
        }
        return FINE;
    }
};

std::tuple<Int, Int, Int> record_rows(Span<const Rank, 2> rows, Int first, Int last, Span<const Int> offsets, Int ranks,
                                      const ActorTables& tables) {
    const Window window{rows, first, last, offsets};
    Int duplicates = 0, fault = FINE, culprit = -1;
    window.each([&](Int row, Int cell) {
        const Int src = window.src(row), dst = window.dst(row);
        const Hops time = window.step(row) + 1;
        Int wrong = FINE;
        if (window.reduces(row)) {
            wrong = tables.note_sum(ranks, src, dst, cell, time);
        } else if (tables.note_result(ranks, src, dst, cell, time)) {
            if (dst >= ranks) {
                wrong = RESULT_TWICE;
            } else {
                ++duplicates;
            }
        }
        if (wrong != FINE) {
            fault = wrong;
            culprit = row;
        }
        return FINE;
    });
    return {duplicates, fault, culprit};
}

std::tuple<Int, Int, Int> settle_actors(Span<const Rank> ends, Span<const Int> size, Int ranks,
                                        Span<const bool> can_add, Span<Int> sums, const ActorTables& tables) {
    for (Int cell = 0; cell < tables.handed_on.shape[1]; ++cell) {
        Int holders = 0, holder = -1;
        for (Int actor = 0; actor < ranks + can_add.size(); ++actor) {
            if (actor >= ranks) {
                const Int node = actor - ranks, fault = tables.fault_of_sum(ranks, node, cell, can_add);
                if (fault != FINE) return {fault, actor, cell};
                if (tables.inputs(node, cell) == 0) continue;
                if (tables.inputs(node, cell) > 1) sums[node] += size.size() ? size[cell] : 1;
            }
            if (tables.handed_on(actor, cell) == 0) {
                ++holders;
                holder = actor;
            }
        }
        if (holders != 1 || (ends[cell] >= 0 && holder != ends[cell])) return {INCOMPLETE, holder, cell};
        Hops& arrival = tables.arrival(holder, cell);
        if (holder >= ranks && arrival != NEVER) return {TURNED_TWICE, holder, cell};
        arrival = std::min(arrival, tables.fed(holder, cell));
    }
    return {FINE, -1, -1};
}

std::tuple<Int, Int> check_actors(Span<const Rank, 2> rows, Int first, Int last, Span<const Int> offsets, Int ranks,
                                  const ActorTables& tables) {
    const Window window{rows, first, last, offsets};
    return window.each([&](Int row, Int cell) {
        const Int step = window.step(row), src = window.src(row), dst = window.dst(row);
        if (window.reduces(row)) {
            const Int handed_on = tables.handed_on(dst, cell);
            return dst < ranks && handed_on != 0 && handed_on <= step + 1 ? TOO_LATE : FINE;
        }
        if (src < ranks) return tables.arrival(src, cell) > step ? TOO_EARLY : FINE;
        return tables.arrival(src, cell) != step + 1 ? SENT_ANOTHER_TIME : FINE;
    });
}

std::tuple<Int, Int, Int> check_copies(Int ranks, Span<const bool> can_copy, const ActorTables& tables) {
    const Int switches = can_copy.size();
    for (Int cell = 0; cell < tables.arrival.shape[1]; ++cell) {
        for (Int node = 0; node < switches; ++node) {
            const Int actor = ranks + node;
            if (tables.arrival(actor, cell) == NEVER) continue;
            if (tables.copies(node, cell) == 0) return {LEADS_NOWHERE, actor, cell};
            if (tables.copies(node, cell) > 1 && !can_copy[node]) return {CANNOT_COPY, actor, cell};
            Int hops = 0;
            for (Int before = actor; before >= ranks; before = tables.comes_from(before - ranks, cell))
                if (hops++ > switches) return {IN_A_CIRCLE, actor, cell};
        }
    }
    return {FINE, -1, -1};
}

bool longest_paths(Span<const Rank, 2> rows, Span<const Int> latency, Int first, Int last, Span<const Int> offsets,
                   Int ranks, Span<Int, 2> upward, Span<Int, 2> downward, Span<Int> of_step) {
    const Window window{rows, first, last, offsets};
    bool is_longer = false;
    window.each([&](Int row, Int cell) {
        const auto& of_switch = window.reduces(row) ? upward : downward;
        const Int src = window.src(row), dst = window.dst(row);
        const Int path = latency[row] + (src >= ranks ? of_switch(src - ranks, cell) : 0);
        Int& longest = dst < ranks ? of_step[window.step(row)] : of_switch(dst - ranks, cell);
        is_longer = is_longer || (dst >= ranks && path > longest);
        longest = std::max(longest, path);
        return FINE;
    });
    return is_longer;
}

std::tuple<Int, Int, Int> replay_step(Span<const Rank, 2> rows, Span<Word, 3> held) {
    const auto each = [&](auto function) {
        for (Int index = 0; index < rows.shape[0]; ++index) {
            const auto row = rows.row(index);
            for (Int cell = row[2]; cell < row[3]; ++cell) function(index, row, cell);
        }
    };
    Int early = -1, hollow = -1, twice = -1;
    std::vector<Word> sent;
    each([&](Int index, Span<const Rank> row, Int cell) {
        const auto contribution = held.row(row[0]).row(cell);
        sent.insert(sent.end(), contribution.begin(), contribution.end());
        if (!any(contribution)) early = index;
    });
    const Word* contribution = sent.data();
    each([&](Int index, Span<const Rank> row, Int cell) {
        const auto present = held.row(row[1]).row(cell);
        Word all = 0, before = 0, shared = 0;
        for (Int word = 0; word < present.size(); ++word) {
            all |= contribution[word];
            before |= present[word];
            shared |= present[word] & contribution[word];
        }
        const bool adds = row[4] != 0;
        if (all != 0 && adds && before == 0) hollow = index;
        if (all != 0 && adds && shared != 0) twice = index;
        for (Int word = 0; all != 0 && word < present.size(); ++word)
            present[word] = contribution[word] | (adds ? present[word] : 0);
        contribution += present.size();
    });
    return {early, hollow, twice};
}

}  // namespace

void bind_verify(nanobind::module_& module) {
    define(module, "record_rows", record_rows);
    define(module, "settle_actors", settle_actors);
    define(module, "check_actors", check_actors);
    define(module, "check_copies", check_copies);
    define(module, "longest_paths", longest_paths);
    define(module, "replay_step", replay_step);
}

}  // namespace chorale
