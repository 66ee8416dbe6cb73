// Hop counts, symmetries (by refining partitions of nodes), and sorting of rows.
#include "modules.hpp"
#include "splitmix.hpp"

namespace chorale {
namespace {

template <class T>
void search_from(Span<const Int> offsets, Span<const Rank> neighbours, Span<const Int> starts, Int unreached,
                 Span<T, 2> distances) {
    auto queue = empty<Rank>(distances.shape[1]);
    for (Int index = 0; index < starts.size(); ++index) {
        const auto hops = distances.row(index);
        queue[0] = starts[index];
        hops[starts[index]] = 0;
        Int head = 0, tail = 1;
        while (head < tail) {
            const Int node = queue[head++];
            for (const Rank neighbour : neighbours.part(offsets[node], offsets[node + 1])) {
                if (hops[neighbour] != unreached) continue;
                hops[neighbour] = hops[node] + 1;
                queue[tail++] = neighbour;
            }
        }
    }
}

// Ordered partitions of nodes into cells, refined until links do not distinguish any two nodes of a cell.
//
// The cells and their order depend only on the network, not on the numbers of its nodes: the same choices in two copies
// of a network give the same cells. Sources: McKay, "Practical graph isomorphism" (1981); Hopcroft, "An n log n
// algorithm for minimizing states in a finite automaton" (1971): the largest part of a split cell need not split
// others.

struct MarkedLinks {
    Span<const Int> heads_offsets;
    Span<const Rank> heads;
    Span<const Word> heads_marks;
    Span<const Int> tails_offsets;
    Span<const Rank> tails;
    Span<const Word> tails_marks;

    auto fields() { return std::tie(heads_offsets, heads, heads_marks, tails_offsets, tails, tails_marks); }
};

struct OrderedCells {
    Span<Rank> order, position, cell, size;

    auto fields() { return std::tie(order, position, cell, size); }
    Span<Rank> members(Int start) const { return order.part(start, start + size[start]); }
    void put(Int place, Rank node) const {
        order[place] = node;
        position[node] = place;
    }
};

class Refinement {
public:
    Refinement(const OrderedCells& cells, Int first)
        : cells_(cells), sums_(zeros<Word>(nodes())), is_touched_(zeros<bool>(nodes())), hits_(zeros<Rank>(nodes())),
          waiting_(empty<Rank>(nodes())), is_waiting_(zeros<bool>(nodes())) {
        if (first >= 0) {
            wait(first);
        } else {
            for (Int start = 0; start < nodes(); start += cells.size[start]) wait(start);
        }
    }

    bool is_done() const { return count_ == 0; }

    // Split all cells by their nodes' links with the cell that has waited longest; return a digest of the result.
    Word step(const MarkedLinks& links) {
        const Int splitter = waiting_[first_];
        first_ = (first_ + 1) % nodes();
        --count_;
        is_waiting_[splitter] = false;
        const auto members = copy(cells_.members(splitter));
        Word digest = mix(splitter * STEP + members.size());
        digest = split_by(members, links.heads_offsets, links.heads, links.heads_marks, digest);
        return split_by(members, links.tails_offsets, links.tails, links.tails_marks, digest);
    }

private:
    Int nodes() const { return cells_.order.size(); }

    void wait(Int cell) {
        if (is_waiting_[cell]) return;
        is_waiting_[cell] = true;
        waiting_[(first_ + count_++) % nodes()] = cell;
    }

    Word split_by(Span<const Rank> members, Span<const Int> offsets, Span<const Rank> ends, Span<const Word> marks,
                  Word digest) {
        touch(members, offsets, ends, marks);
        gather();
        std::sort(hit_.begin(), hit_.end());
        for (const Rank cell : hit_) {
            digest = split(cell, digest);
            hits_[cell] = 0;
        }
        for (const Rank node : touched_) {
            sums_[node] = 0;
            is_touched_[node] = false;
        }
        return digest;
    }

    // Add the marks of the links of `members` to the nodes at their other ends, and mark these as touched.
    void touch(Span<const Rank> members, Span<const Int> offsets, Span<const Rank> ends, Span<const Word> marks) {
        touched_.clear();
        for (const Rank node : members) {
            for (Int link = offsets[node]; link < offsets[node + 1]; ++link) {
                const Rank other = ends[link];
                if (!is_touched_[other]) touched_.push_back(other);
                is_touched_[other] = true;
                sums_[other] += marks[link];
            }
        }
    }

    // Move the touched nodes to the ends of their cells, and count them per cell.
    void gather() {
        hit_.clear();
        for (const Rank node : touched_) {
            const Int cell = cells_.cell[node];
            if (hits_[cell]++ == 0) hit_.push_back(cell);
            const Int place = cells_.position[node], goal = cell + cells_.size[cell] - hits_[cell];
            cells_.put(place, cells_.order[goal]);
            cells_.put(goal, node);
        }
    }

    // Return the distinct sums of `members`, ascending.
    std::vector<Word> distinct_sums(Span<const Rank> members) const {
        std::vector<Word> values;
        for (const Rank node : members)
            if (values.empty() || values.back() != sums_[node]) values.push_back(sums_[node]);
        if (values.size() > 1) {
            std::sort(values.begin(), values.end());
            values.erase(std::unique(values.begin(), values.end()), values.end());
        }
        return values;
    }

    // Write `members` to the order, beginning at `start`, sorted by the positions of their sums in `values`, with a new
    // cell for each position; return the starts of these cells and the end of the last.
    Array<Int> sort_into_parts(Span<const Rank> members, Int start, const std::vector<Word>& values) {
        const auto part_of = [&](Rank node) {
            return std::lower_bound(values.begin(), values.end(), sums_[node]) - values.begin();
        };
        auto starts = zeros<Int>(values.size() + 1);
        for (const Rank node : members) ++starts[part_of(node) + 1];
        starts[0] = start;
        add_up(starts);
        auto next = copy(starts);
        for (const Rank node : members) {
            cells_.put(next[part_of(node)]++, node);
            cells_.cell[node] = starts[part_of(node)];
        }
        return starts;
    }

    // Split `cell` by the sums of its nodes (touched ones are at its end); return `digest`, extended by the result.
    Word split(Int cell, Word digest) {
        const Int size = cells_.size[cell], hits = hits_[cell];
        const auto members = copy(cells_.order.part(cell + size - hits, cell + size));
        const auto values = distinct_sums(members);
        const Int parts = values.size();
        digest = mix(digest ^ (cell * STEP + hits));
        if (parts == 1 && hits == size) return mix(digest ^ values[0]);
        const auto starts = sort_into_parts(members, cell + size - hits, values);
        Int widest = cell, most = size - hits;
        if (hits < size) cells_.size[cell] = size - hits;
        for (Int part = 0; part < parts; ++part) {
            const Int width = starts[part + 1] - starts[part];
            cells_.size[starts[part]] = width;
            digest = mix(digest ^ (values[part] + width));
            if (width > most) {
                widest = starts[part];
                most = width;
            }
        }
        const bool splits_all = is_waiting_[cell];
        if (hits < size && (splits_all || widest != cell)) wait(cell);
        for (Int part = 0; part < parts; ++part)
            if (splits_all || widest != starts[part]) wait(starts[part]);
        return digest;
    }

    const OrderedCells& cells_;
    Array<Word> sums_;         // by node: sum of the marks of its links with the splitting cell
    Array<bool> is_touched_;   // by node: whether there are such links
    Array<Rank> hits_;         // by cell: number of touched nodes
    Array<Rank> waiting_;      // ring buffer of cells that have yet to split others
    Array<bool> is_waiting_;   // by cell
    Int first_ = 0, count_ = 0;  // start and number of waiting cells
    std::vector<Rank> touched_, hit_;
};

Int refine_cells(const MarkedLinks& links, const OrderedCells& cells, Int first, Span<Word> trace, bool follows) {
    Refinement refinement(cells, first);
    Int used = 0;
    while (!refinement.is_done()) {
        const Word digest = refinement.step(links);
        if (used == trace.size() || (follows && trace[used] != digest)) return -1;
        trace[used++] = digest;
    }
    return used;
}

}  // namespace

void bind_topology(nanobind::module_& module) {
    define(module, "search_from", search_from<std::uint16_t>);
    define(module, "search_from", search_from<std::uint32_t>);
    define(module, "refine_cells", refine_cells);
}

}  // namespace chorale
