// The instructions of one rank: their order, their waits, and their columns.
#include "modules.hpp"

namespace chorale {
namespace {

// Numbers from `chorale.synth.programs`, and codes of cells.
constexpr Int SEND = 0, RECV = 1, RECV_COPY_SEND = 2, RECV_REDUCE_SEND = 3, REDUCE = 4;
constexpr Int RECEIVE_ROLE = 0, SEND_ROLE = 1;
constexpr Int SHIFT = 28, OFFSET_MASK = (Int{1} << SHIFT) - 1;

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

// Return which dependences need a wait.
//
// Dependences within a block need none, nor do those that other waits imply. The latter are found by vector clocks over
// the blocks: the current one of each block, and one at the end of each instruction on which others depend.
// O(dependences + (instructions on which others depend) * blocks).
Earlier necessary_waits(Span<const Int> block, Int blocks, const Earlier& dependences) {
    const Int length = block.size();
    auto now = zeros<Rank>(blocks, blocks);  // now(a, b): number of steps of b that are done at the current step of a
    auto step = zeros<Int>(length), done = zeros<Int>(blocks);
    auto clock = full<Int>(-1, length);  // index in `clocks` of each instruction
    Int noted = 0;
    for (const Int other : dependences.earlier)
        if (clock[other] < 0) clock[other] = noted++;
    auto clocks = empty<Rank>(noted, blocks);
    auto offsets = zeros<Int>(length + 1);
    std::vector<Int> kept;
    for (Int index = 0; index < length; ++index) {
        const auto own = now.row(block[index]);
        step[index] = done[block[index]];
        // Later dependences come first, because they may imply earlier ones, but not vice versa.
        for (const Int other : dependences.earlier.part(dependences.offsets[index], dependences.offsets[index + 1])) {
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

struct FragmentColumns {
    Span<const Rank> step, sender, receiver, channel, reduces, source, operand, target, chunks, exchanged, turn;

    auto fields() {
        return std::tie(step, sender, receiver, channel, reduces, source, operand, target, chunks, exchanged, turn);
    }
};

struct OpColumns {
    Array<Int> channel, role, peer, op, src, dst, chunks;

    auto fields() { return std::tie(channel, role, peer, op, src, dst, chunks); }
    void set(Int index, const FragmentColumns& fragments, Int fragment, bool receives) {
        channel[index] = fragments.channel[fragment];
        role[index] = receives ? RECEIVE_ROLE : SEND_ROLE;
        peer[index] = receives ? fragments.sender[fragment] : fragments.receiver[fragment];
        op[index] = !receives ? SEND : fragments.reduces[fragment] == 1 ? REDUCE : RECV;
        src[index] = receives ? fragments.operand[fragment] : fragments.source[fragment];
        dst[index] = receives ? fragments.target[fragment] : fragments.source[fragment];
        chunks[index] = fragments.chunks[fragment];
    }
};

OpColumns ordered_ops(const FragmentColumns& fragments, Span<const Int> sent, Span<const Int> received,
                      bool sends_first, Int extra) {
    const Int total = sent.size() + received.size();
    std::vector<Int> numbers;  // twice the number of the fragment, plus 1 if it is received
    for (Int out = 0, into = 0; out + into < total;) {
        const bool sends = into == received.size() || (out < sent.size() && sent[out] <= received[into]);
        numbers.push_back(sends ? 2 * sent[out++] : 2 * received[into++] + 1);
    }
    // Sort key of an instruction within its step: its turn, then whether it receives (after all sends).
    const auto urgency = [&](Int number) {
        const bool is_late = (number & 1) == 1 && (sends_first || fragments.exchanged[number >> 1] == 1);
        return 2 * fragments.turn[number >> 1] + is_late;
    };
    for (auto first = numbers.begin(), end = first; first != numbers.end(); first = end) {
        bool is_sorted = true;
        for (; end != numbers.end() && fragments.step[*end >> 1] == fragments.step[*first >> 1]; ++end)
            is_sorted = is_sorted && urgency(*end) == 0;
        if (!is_sorted) std::stable_sort(first, end, [&](Int a, Int b) { return urgency(a) < urgency(b); });
    }
    const auto column = [&] { return empty<Int>(total + extra); };
    OpColumns columns{column(), column(), column(), column(), column(), column(), column()};
    for (Int index = 0; index < total; ++index)
        columns.set(index, fragments, numbers[index] >> 1, (numbers[index] & 1) == 1);
    return columns;
}

// Start and size of each buffer in the row of cells of a rank.
struct MemoryBases {
    Span<const Int> base;
    Int cells;

    auto fields() { return std::tie(base, cells); }
    Int cell_of(Int code) const { return base[code >> SHIFT] + (code & OFFSET_MASK); }
};

std::tuple<Array<Int>, Array<Int, 2>, Array<Int>, Array<Int>, Array<Int>> columns_of_ops(const OpColumns& ops,
                                                                                         Span<const Int> blocks,
                                                                                         Int block_count,
                                                                                         const MemoryBases& memory) {
    const Int total = blocks.size();
    auto src = empty<Int>(total), dst = empty<Int>(total);
    for (Int op = 0; op < total; ++op) {
        const Int kind = ops.op[op];
        src[op] = kind == RECV || kind == RECV_COPY_SEND ? -1 : memory.cell_of(ops.src[op]);
        dst[op] = kind == SEND || kind == RECV_REDUCE_SEND ? -1 : memory.cell_of(ops.dst[op]);
    }
    const auto [offsets, waits] =
        necessary_waits(blocks, block_count, dependences(src, dst, ops.chunks, memory.cells));
    auto first = zeros<Int>(block_count + 1);  // first instruction of each block, and the end of the last block
    for (const Int block : blocks) ++first[block + 1];
    add_up(first);
    auto end = copy(first), order = empty<Int>(total), step = empty<Int>(total);
    for (Int op = 0; op < total; ++op) {
        step[op] = end[blocks[op]] - first[blocks[op]];
        order[end[blocks[op]]++] = op;
    }
    auto rows = empty<Int>(6, total);
    auto first_wait = zeros<Int>(total + 1), wait_block = empty<Int>(waits.size()), wait_step = empty<Int>(waits.size());
    Int count = 0;
    std::vector<Int> places;  // (block, step) of the instructions to wait for
    for (Int position = 0; position < total; ++position) {
        const Int op = order[position];
        const std::array<Int, 6> row = {ops.op[op],          ops.src[op] >> SHIFT,      ops.src[op] & OFFSET_MASK,
                                        ops.dst[op] >> SHIFT, ops.dst[op] & OFFSET_MASK, ops.chunks[op]};
        for (Int column = 0; column < 6; ++column) rows(column, position) = row[column];
        places.clear();
        for (const Int other : waits.part(offsets[op], offsets[op + 1]))
            places.push_back(first[blocks[other]] + step[other]);
        std::sort(places.begin(), places.end());
        for (const Int place : places) {
            wait_block[count] = blocks[order[place]];
            wait_step[count++] = step[order[place]];
        }
        first_wait[position + 1] = count;
    }
    return {first, rows, first_wait, wait_block, wait_step};
}

}  // namespace

void bind_lowering(nanobind::module_& module) {
    define(module, "dependences", dependences);
    define(module, "is_needed", is_needed);
    define(module, "ordered_ops", ordered_ops);
    define(module, "columns_of_ops", columns_of_ops);
}

}  // namespace chorale
