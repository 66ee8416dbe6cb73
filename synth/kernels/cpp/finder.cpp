// Costs of breadth-first broadcast (BFB) on candidate networks: built networks and Cayley graphs.
#include "modules.hpp"
#include "splitmix.hpp"

namespace chorale {
namespace {

// Returns the number of set bits. Not the builtin, for which compilers may call a library function.
inline Int ones(Word word) {
    word -= (word >> 1) & 0x5555555555555555;
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333);
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F;
    return (word * 0x0101010101010101) >> 56;
}

// Add to the entry of each set of elements (numbered by its bits) the entries of all its subsets.
template <class Counts>
void add_subsets(const Counts& counts, Int elements) {
    for (Int element = 0; element < elements; ++element)
        for (Int chosen = 0; chosen < Int{1} << elements; ++chosen)
            if ((chosen >> element) & 1) counts[chosen] += counts[chosen ^ (Int{1} << element)];
}

// Networks of low diameter and degree, with sets of nodes as bits. A node has "heard" another node if it has its shard.
struct LowDiameter {
    Span<const Rank, 2> tails;
    Array<Word, 2> heard, following;
    Array<Word, 2> left_out;  // by set of links: arriving shards that no link of the set can bring
    Array<Int> total, newly, arriving;

    Int nodes() const { return tails.shape[0]; }
    Int degree() const { return tails.shape[1]; }
    Int words() const { return heard.shape[1]; }

    // Compute what nodes have heard one step later: what they or the tails of their in-links have heard.
    void hear() {
        for (Int node = 0; node < nodes(); ++node) {
            const auto row = following.row(node);
            assign(row, heard.row(node));
            for (const Rank tail : tails.row(node)) {
                const auto other = heard.row(tail);
                for (Int word = 0; word < words(); ++word) row[word] |= other[word];
            }
            Int count = 0;
            for (const Word word : row) count += ones(word);
            arriving[node] = count - total[node];
            total[node] = count;
        }
    }

    // Return whether the load of `node` may exceed `limit` (in whole shards), because no assignment of shards to links
    // within this limit was found.
    //
    // newly: number of shards that each node first heard in the previous step, which are all that it can send now.
    // Shards are assigned 64 at a time, beginning with the link that has the fewest so far.
    bool may_take_longer(Int node, Int limit) const {
        Int most = 0;
        for (const Rank tail : tails.row(node)) most = std::max(most, newly[tail]);
        if (most <= limit) return false;
        auto counts = zeros<Int>(degree());
        for (Int word = 0; word < words(); ++word) {
            Word rest = following(node, word) & ~heard(node, word);
            if (rest == 0) continue;
            const Int first = std::min_element(counts.begin(), counts.end()) - counts.begin();
            for (Int turn = 0; turn < degree(); ++turn) {
                const Int link = (first + turn) % degree();
                Word part = rest & heard(tails(node, link), word);
                Int size = ones(part);
                for (; size > limit - counts[link]; --size) part &= part - 1;
                counts[link] += size;
                rest &= ~part;
            }
            if (rest != 0) return true;
        }
        return false;
    }

    // Increase top / bottom to the load of `node` if that is larger.
    void raise_load(Int node, Int& top, Int& bottom) const {
        const auto arrived = left_out.row(0);
        for (Int word = 0; word < words(); ++word) arrived[word] = following(node, word) & ~heard(node, word);
        for (Int others = 0; others < (Int{1} << degree()) - 1; ++others) {
            const auto row = left_out.row(others);
            if (others) {
                const auto before = left_out.row(others & (others - 1));
                const auto bringer = heard.row(tails(node, __builtin_ctzll(others)));
                for (Int word = 0; word < words(); ++word) row[word] = before[word] & ~bringer[word];
            }
            Int count = 0;
            for (const Word word : row) count += ones(word);
            const Int size = degree() - ones(others);
            if (count * bottom > top * size) {
                top = count;
                bottom = size;
            }
        }
    }
};

std::tuple<Array<Int>, Array<Int>> loads_of_low_diameter(Span<const Rank, 2> tails, Span<const Int> chosen,
                                                         Int max_steps) {
    const Int nodes = tails.shape[0], degree = tails.shape[1], words = (nodes + 63) / 64;
    LowDiameter state{tails, zeros<Word>(nodes, words), zeros<Word>(nodes, words),
                      zeros<Word>(Int{1} << degree, words), full<Int>(1, nodes), full<Int>(1, nodes),
                      full<Int>(1, nodes)};
    for (Int node = 0; node < nodes; ++node) state.heard(node, node / 64) = Word{1} << (node % 64);
    auto top = zeros<Int>(max_steps), bottom = full<Int>(1, max_steps);
    for (Int step = 0; step < max_steps; ++step) {
        state.hear();
        Int missing = 0;
        for (const Int node : chosen) {
            missing += nodes - state.total[node];
            if (state.arriving[node] * bottom[step] > top[step] * degree) {
                top[step] = state.arriving[node];
                bottom[step] = degree;
            }
        }
        for (const Int node : chosen)
            if (state.may_take_longer(node, top[step] / bottom[step])) state.raise_load(node, top[step], bottom[step]);
        if (missing == 0) return {top.prefix(step + 1), bottom.prefix(step + 1)};
        std::swap(state.heard, state.following);
        std::swap(state.newly, state.arriving);
    }
    return {top.prefix(0), bottom.prefix(0)};
}

// Random generator sets of a group, and the BFB loads of their Cayley graphs.

constexpr Int LOAD_UNIT = 840;  // loads are multiples of 1 / lcm(1, ..., 8), so that all are integers
constexpr Int NO_LOAD = std::numeric_limits<Int>::max();

struct CayleyTrial {
    Span<const Rank, 2> right;
    Array<Rank> inverse, generators, length, queue;
    Array<Int, 2> counts;
    Word state;  // state of a xorshift generator, never 0

    Word next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }

    // Draw distinct generators other than 0; if `two_way`, closed under inverses. Returns false if the drawing failed.
    bool draw(bool two_way) {
        Int count = 0;
        while (count < generators.size()) {
            const Rank element = next() % Word(inverse.size());
            if (element == 0) continue;
            const Rank partner = two_way ? inverse[element] : element;
            for (const Rank other : generators.first(count))
                if (other == element || other == partner) return false;
            generators[count++] = element;
            if (partner != element) {
                if (count == generators.size()) return false;
                generators[count++] = partner;
            }
        }
        return true;
    }

    // Write the word length of each element in the generators; return the largest, -1 if it exceeds the limit.
    Int find_lengths(Int most_steps) {
        fill(length, -1);
        length[0] = 0;
        queue[0] = 0;
        Int head = 0, tail = 1;
        while (head < tail) {
            const Rank element = queue[head++];
            for (const Rank generator : generators) {
                const Rank following = right(generator, element);
                if (length[following] >= 0) continue;
                if (length[element] == most_steps) return -1;
                length[following] = length[element] + 1;
                queue[tail++] = following;
            }
        }
        return tail == length.size() ? length[queue[tail - 1]] : -1;
    }

    // Return the sum over steps of the largest n(S) / |S| at the identity, in units of 1 / `LOAD_UNIT`.
    //
    // The shard of x can arrive over generator g (the last link of a shortest path) if x^-1 g^-1 is one shorter than
    // x^-1. The loop runs over x^-1 instead of x.
    Int total_load(Int steps) {
        const Int sets = Int{1} << generators.size();
        for (Int step = 0; step < steps; ++step) fill(counts.row(step), 0);
        for (Int element = 1; element < length.size(); ++element) {
            Int mask = 0;
            for (Int index = 0; index < generators.size(); ++index)
                mask |= Int{length[right(inverse[generators[index]], element)] == length[element] - 1} << index;
            ++counts(length[element] - 1, mask);
        }
        Int total = 0;
        for (Int step = 0; step < steps; ++step) {
            add_subsets(counts.row(step), generators.size());
            Int most = 0;
            for (Int chosen = 1; chosen < sets; ++chosen)
                most = std::max(most, counts(step, chosen) * (LOAD_UNIT / ones(chosen)));
            total += most;
        }
        return total;
    }
};

std::tuple<Array<Int>, Array<Rank, 2>> best_generators(Span<const Rank, 2> right, Int degree, bool two_way,
                                                       Int max_steps, Int trials, Int seed) {
    const Int order = right.shape[0];
    CayleyTrial trial{right, empty<Rank>(order), empty<Rank>(degree), empty<Rank>(order), empty<Rank>(order),
                      zeros<Int>(max_steps, Int{1} << degree), Word(seed) * STEP + 0x2545F4914F6CDD1D};
    for (Int element = 0; element < order; ++element)
        for (Int other = 0; other < order; ++other)
            if (right(other, element) == 0) trial.inverse[element] = other;
    const Int bound = (order - 1) * LOAD_UNIT / degree;
    auto loads = full<Int>(NO_LOAD, max_steps + 1);
    auto found = zeros<Rank>(max_steps + 1, degree);
    Int limit = max_steps;
    for (Int turn = 0; turn < trials; ++turn) {
        if (!trial.draw(two_way)) continue;
        const Int steps = trial.find_lengths(limit);
        if (steps < 1) continue;
        const Int load = trial.total_load(steps);
        if (load < smallest(loads.first(steps + 1))) {
            loads[steps] = load;
            assign(found.row(steps), trial.generators);
            if (load <= bound) limit = steps - 1;  // no other graph with this number of steps can be better
        }
    }
    return {loads, found};
}

}  // namespace

void bind_finder(nanobind::module_& module) {
    define(module, "loads_of_low_diameter", loads_of_low_diameter);
    define(module, "best_generators", best_generators);
}

}  // namespace chorale
