// Chooses arcs and gateways for the trees of a forest: node by node along hops, and block by block along symmetries.
#include "modules.hpp"
#include "splitmix.hpp"

namespace chorale {
namespace {

// A transportation problem with many rows and few places: distributes what each row needs over places that it may use.
//
// Rows with the fewest places come first; each uses the place with most capacity left. If no place has capacity left,
// other rows are moved. A move takes O(rows * places), but few moves are needed.
class Transport {
public:
    Transport(Span<Int> needs, Span<Int> capacity)
        : allowed(zeros<bool>(needs.size(), capacity.size())), amounts(zeros<Int>(needs.size(), capacity.size())),
          needs_(needs), capacity_(capacity), holds_(zeros<bool>(capacity.size(), needs.size())) {}

    // Place as much as possible; return whether everything is placed. If not, more places may be allowed afterwards.
    bool run() {
        auto choices = zeros<Int>(rows());
        for (Int row = 0; row < rows(); ++row) choices[row] = sum(allowed.row(row));
        closed_.assign(places(), false);
        bool is_placed = true;
        for (const Int row : sorting_order(choices)) {
            while (needs_[row] > 0) {
                Int amount = place(row);
                if (amount == 0) amount = make_room(row);
                needs_[row] -= amount;
                is_placed = is_placed && amount > 0;
                if (amount == 0) break;
            }
        }
        return is_placed;
    }

    Array<bool, 2> allowed;
    Array<Int, 2> amounts;  // by row and place

private:
    Int rows() const { return needs_.size(); }
    Int places() const { return capacity_.size(); }

    // Use the place with most capacity left; return the amount.
    Int place(Int row) {
        const auto may = allowed.row(row);
        Int best = -1;
        for (Int other = 0; other < places(); ++other)
            if (may[other] && (best < 0 || capacity_[other] > capacity_[best])) best = other;
        if (best < 0) return 0;
        const Int amount = std::min(needs_[row], capacity_[best]);
        capacity_[best] -= amount;
        change(row, best, amount);
        return amount;
    }

    void change(Int row, Int place, Int amount) {
        amounts(row, place) += amount;
        holds_(place, row) = amounts(row, place) > 0;
    }

    // Place units of `row` by moving other rows along a shortest chain; return how many.
    Int make_room(Int row) {
        chain_.assign(places(), {-1, -1});
        queue_.clear();
        open_.clear();
        for (Int place = 0; place < places(); ++place)
            if (!closed_[place]) open_.push_back(place);
        std::vector<char> is_unmoved(rows(), true);
        // A chain ends at the first reached place with capacity left, so the search stops there.
        Int end = reach(row, -1);
        for (std::size_t head = 0; head < queue_.size() && end < 0; ++head) {
            const Int full_place = queue_[head];
            const auto holders = holds_.row(full_place);
            for (Int other = 0; other < rows() && end < 0; ++other) {
                if (!holders[other] || !is_unmoved[other]) continue;
                is_unmoved[other] = false;
                end = reach(other, full_place);
            }
        }
        if (end >= 0) return move(end, needs_[row]);
        for (const Int place : queue_) closed_[place] = true;
        return 0;
    }

    // Queue the open places to which `row` may move from `full_place`; return the first with capacity left, or -1.
    Int reach(Int row, Int full_place) {
        Int found = -1;
        std::size_t kept = 0;
        for (const Int place : open_) {
            if (!allowed(row, place)) {
                open_[kept++] = place;
                continue;
            }
            chain_[place] = {full_place, row};
            queue_.push_back(place);
            if (found < 0 && capacity_[place] > 0) found = place;
        }
        open_.resize(kept);
        return found;
    }

    // Move up to `need` units along the chain that ends at `last`; return how many.
    Int move(Int last, Int need) {
        Int amount = std::min(need, capacity_[last]);
        for (Int place = last; chain_[place].before >= 0; place = chain_[place].before)
            amount = std::min(amount, amounts(chain_[place].mover, chain_[place].before));
        capacity_[last] -= amount;
        for (Int place = last; place >= 0; place = chain_[place].before) {
            const auto [before, mover] = chain_[place];
            change(mover, place, amount);
            if (before >= 0) change(mover, before, -amount);
        }
        return amount;
    }

    // The row that moves to a place, and its previous place; -1 for the row that is being placed.
    struct Step {
        Int before, mover;
    };

    Span<Int> needs_, capacity_;
    Array<bool, 2> holds_;       // by place and row: whether the amount is above 0
    std::vector<bool> closed_;   // places from which no chain leads to a place with capacity left
    std::vector<Step> chain_;
    std::vector<Int> queue_, open_;
};

// Placed amounts are subtracted from `left` and `needs`.
std::tuple<Array<Rank>, Array<Rank>, Array<Int>, Array<Int>> in_arc_shares(Span<const Rank> tails, Span<Int> left,
                                                                           Span<Int> needs, Span<const Hops, 2> hops,
                                                                           Int node, Int first_arc, bool beside) {
    const Int places = tails.size(), nodes = needs.size();
    Transport transport(needs, left);
    for (Int root = 0; root < nodes; ++root)
        for (Int place = 0; place < places; ++place)
            transport.allowed(root, place) = hops(place, root) + 1 == hops(places, root);
    if (!transport.run() && beside) {
        // Arcs between nodes of equal distance may only be used in one direction, drawn at random for each root.
        for (Int root = 0; root < nodes; ++root) {
            const Word own = mix(node * nodes + root);
            for (Int place = 0; place < places; ++place)
                if (hops(place, root) == hops(places, root) && mix(tails[place] * nodes + root) < own)
                    transport.allowed(root, place) = true;
        }
        transport.run();
    }
    std::vector<Rank> roots, arcs;
    std::vector<Int> lo, hi;
    for (Int root = 0; root < nodes; ++root) {
        Int begin = 0;
        for (Int place = 0; place <= places; ++place) {
            const Int amount = place == places ? needs[root] : transport.amounts(root, place);
            if (amount == 0) continue;
            roots.push_back(root);
            arcs.push_back(place == places ? -1 : first_arc + place);
            lo.push_back(begin);
            hi.push_back(begin += amount);
        }
    }
    return {std::move(roots), std::move(arcs), std::move(lo), std::move(hi)};
}

struct Capacities {
    Span<Int> room;
    Span<const Int> shared;
    Span<const Rank> orbit;

    auto fields() { return std::tie(room, shared, orbit); }
};

// Links by head, with their lengths.
struct LinkLengths {
    Span<const Int> offsets;
    Span<const Rank> src, length;
    Int compute_count;

    auto fields() { return std::tie(offsets, src, length, compute_count); }
};

// Return the length of a shortest path from `root` to each node through switches only; -1 if there is none.
void find_hops(const LinkLengths& network, Int root, Span<Rank> hops) {
    fill(hops, -1);
    hops[root] = 0;
    for (bool is_shorter = true; is_shorter;) {
        is_shorter = false;
        for (Int node = 0; node < hops.size(); ++node) {
            for (Int link = network.offsets[node]; link < network.offsets[node + 1]; ++link) {
                const Rank before = network.src[link];
                if (hops[before] < 0 || (before < network.compute_count && before != root)) continue;
                const Rank total = hops[before] + network.length[link];
                if (hops[node] >= 0 && total >= hops[node]) continue;
                hops[node] = total;
                is_shorter = true;
            }
        }
    }
}

// Return the position of the rank of `block` with the fewest entries among the nearest. The root's own position is
// preferred until it reaches its limit.
Int nearest(Int number, Span<const Rank> hops, Span<const Rank, 2> ranks, Int block, Span<const Int> entered) {
    const Int positions = ranks.shape[0], part = ranks.shape[1] - 1;
    Int least = -1, best = -1;
    for (Int position = 0; position < positions; ++position) {
        const Int distance = hops[ranks(position, block)];
        if (distance >= 0 && (least < 0 || distance < least)) least = distance;
    }
    for (Int position = 0; position < positions; ++position) {
        if (least < 0 || hops[ranks(position, block)] != least) continue;
        if (position == number && entered[position] < part) return position;
        if (best < 0 || entered[position] < entered[best]) best = position;
    }
    return best;
}

// Return the last link of a shortest path to `node`, the one with most room; -1 if no such link can carry k trees.
Int roomiest(Int node, Int k, const LinkLengths& network, Span<const Rank> hops, const Capacities& capacities) {
    Int best = -1, most = k - 1;
    for (Int link = network.offsets[node]; link < network.offsets[node + 1]; ++link) {
        const Rank before = network.src[link];
        if (hops[before] < 0 || (before < network.compute_count && hops[before] != 0)) continue;
        if (hops[before] + network.length[link] != hops[node]) continue;
        const Int orbit = capacities.orbit[link], room = floor_div(capacities.room[orbit], capacities.shared[orbit]);
        if (room > most) {
            best = link;
            most = room;
        }
    }
    return best;
}

// Return (gateways, offsets of paths, links of paths) of all entries, root by root; incomplete if one does not fit.
std::tuple<Array<Rank>, Array<Int>, Array<Rank>> enter_blocks(Int k, const LinkLengths& network, Span<const Rank> roots,
                                                              Span<const Rank, 2> ranks,
                                                              const Capacities& capacities) {
    std::vector<Rank> gateways, links;
    std::vector<Int> offsets = {0};
    auto entered = zeros<Int>(roots.size());
    auto hops = empty<Rank>(network.offsets.size() - 1);
    for (Int number = 0; number < roots.size(); ++number) {
        find_hops(network, roots[number], hops);
        for (Int block = 1; block < ranks.shape[1]; ++block) {
            const Int position = nearest(number, hops, ranks, block, entered);
            if (position < 0) return {std::move(gateways), std::move(offsets), std::move(links)};
            const Rank gateway = ranks(position, block);
            for (Int node = gateway; hops[node] > 0; node = network.src[links.back()]) {
                const Int link = roomiest(node, k, network, hops, capacities);
                if (link < 0) return {std::move(gateways), std::move(offsets), std::move(links)};
                const Int orbit = capacities.orbit[link];
                capacities.room[orbit] -= k * capacities.shared[orbit];
                links.push_back(link);
            }
            std::reverse(links.begin() + offsets.back(), links.end());
            ++entered[position];
            gateways.push_back(gateway);
            offsets.push_back(links.size());
        }
    }
    return {std::move(gateways), std::move(offsets), std::move(links)};
}

}  // namespace

void bind_forest(nanobind::module_& module) {
    define(module, "in_arc_shares", in_arc_shares);
    define(module, "enter_blocks", enter_blocks);
}

}  // namespace chorale
