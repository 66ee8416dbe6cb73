// Costs of breadth-first broadcast (BFB) on candidates for a network: built ones, Cayley graphs, Kautz graphs.
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

// Networks of low diameter and degree, with sets of nodes as bits. A node has "heard" another one if it has its shard.
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

    // Return whether the load of `node` may exceed `limit` (whole shards), because no assignment of shards to links
    // within it was found.
    //
    // newly: number of shards that each node first heard in the previous step, which are all that it can send now. The
    // link with the fewest comes first; shards are assigned 64 at a time.
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
            if (load <= bound) limit = steps - 1;  // others with as many steps cannot be better
        }
    }
    return {loads, found};
}

// BFB loads of generalized Kautz graphs, computed arithmetically in time roughly proportional to the number of nodes.
//
// Walks of t links from v, each from x to -d x - a with a = 1, ..., d modulo N, end in d^t consecutive nodes, each
// reached once: first(t, v) to first(t, v) + d^t - 1, where first(t, v) = (-d)^t v, minus d^t if t is odd. So the set
// of nodes whose walks of t links reach u changes by few nodes from u to u + 1. One pass over all u updates these sets
// and counts which shards are heard in which step over which links.
//
// Source of the graphs: Imase, Itoh, "A design for directed graphs with minimum diameter" (1983).

// Walks by length t, at most T.
//
// order:  [T + 1, N]: nodes v by the first node that their walks of t links reach
// starts: [T + 1, N + 1]: start of the nodes with each such first node in `order`
// width:  d^t;  factor: (-d)^t mod N;  offset: first(t, 0) mod N
// solution: for b = 0, ..., d - 1 the smallest w with -d w = b modulo N, if any
// common: the greatest common divisor of d and N
class KautzWalks {
public:
    KautzWalks(Int degree, Int nodes, Int common) : nodes(nodes), degree(degree), common(common) {
        for (Int reach = 1; reach < nodes; reach *= degree) ++last;
        order = empty<Rank>(last + 1, nodes);
        starts = zeros<Int>(last + 1, nodes + 1);
        width = full<Int>(1, last + 1);
        factor = full<Int>(1, last + 1);
        offset = zeros<Int>(last + 1);
        solution = full<Int>(-1, degree);
        for (Int tail = 0; tail < nodes; ++tail) {
            const Int residue = floor_mod(-degree * tail, nodes);
            if (residue < degree && solution[residue] < 0) solution[residue] = tail;
        }
        for (Int step = 0; step <= last; ++step) {
            if (step > 0) {
                width[step] = width[step - 1] * degree;
                factor[step] = floor_mod(factor[step - 1] * -degree, nodes);
                offset[step] = floor_mod(-width[step] * (step & 1), nodes);
            }
            sort_by_first(step);
        }
    }

    // Return the number of the link on which a walk of `step` links from `node` arrives, 0 to d - 1.
    //
    // begin: the first u in which the walk ended, not reduced modulo N. The number stays the same for all following u
    // in which the walk ends: a link into u from w with -d w = u + a is numbered by u + a modulo d and by the index of
    // w among the nodes with that property, starting at one that decreases by 1 when u + a increases by d.
    Int link_number(Int step, Int node, Int begin) const {
        const Int residue = floor_mod(begin, degree);
        const Int counted = solution[residue] - (begin - residue) / degree - 1;
        const Int tail = factor[step - 1] * node + offset[step - 1] + width[step - 1] - 1;
        return residue / common * common + floor_mod(tail - counted, nodes) / (nodes / common);
    }

    // Calls function(node) for the nodes whose walks of `step` links first end in `begin`.
    template <class Function>
    void each(Int step, Int begin, Function function) const {
        const Int place = floor_mod(begin, nodes);
        for (Int position = starts(step, place); position < starts(step, place + 1); ++position)
            function(order(step, position));
    }

    Int nodes, degree, common, last = 0;
    Array<Rank, 2> order;
    Array<Int, 2> starts;
    Array<Int> width, factor, offset, solution;

private:
    void sort_by_first(Int step) {
        const auto row = starts.row(step);
        const auto first_of = [&](Int node) { return (factor[step] * node + offset[step]) % nodes; };
        for (Int node = 0; node < nodes; ++node) ++row[first_of(node) + 1];
        add_up(row);
        auto next = copy(row);
        for (Int node = 0; node < nodes; ++node) order(step, next[first_of(node)]++) = node;
    }
};

// What walks bring to the current node u.
//
// lengths: per v: bit t is set if a walk of t links from v ends in u
// number:  [T + 1, N]: the link on which that walk arrives, for lengths below T (at most one of each length ends here)
// lasts:   per v: the set of links on which its walks of T links arrive
// counts:  [T + 1, d]: nodes first heard in step t over each link
// in_last: nodes first heard in step T over each set of links
class HeardWalks {
public:
    explicit HeardWalks(const KautzWalks& walks)
        : walks_(walks), lengths_(zeros<Int>(walks.nodes)), number_(zeros<std::int8_t>(walks.last + 1, walks.nodes)),
          lasts_(zeros<Int>(walks.nodes)), counts_(zeros<Int>(walks.last + 1, walks.degree)),
          in_last_(zeros<Int>(Int{1} << walks.degree)) {
        for (Int step = 0; step <= walks.last; ++step)
            for (Int begin = 1 - walks.width[step]; begin < 1; ++begin)
                walks.each(step, begin, [&](Int node) { change(step, node, begin); });
        for (Int node = 0; node < walks.nodes; ++node) count(node, 1);
    }

    // Add or remove all walks of `step` links that first ended in `begin` to or from those that end in u.
    void move(Int step, Int begin) {
        walks_.each(step, begin, [&](Int node) {
            count(node, -1);
            change(step, node, begin);
            count(node, 1);
        });
    }

    // Increase top / bottom of every step to the load of the current node.
    void raise_loads(Span<Int> top, Span<Int> bottom) const {
        const Int last = walks_.last;
        for (Int step = 1; step < last; ++step) top[step] = std::max(top[step], largest(counts_.row(step)));
        const auto sums = copy(in_last_);
        add_subsets(sums, walks_.degree);
        for (Int chosen = 1; chosen < sums.size(); ++chosen) {
            if (sums[chosen] * bottom[last] > top[last] * ones(chosen)) {
                top[last] = sums[chosen];
                bottom[last] = ones(chosen);
            }
        }
    }

private:
    // Add `change` to the number of nodes that are first heard in the same step and over the same links as `node`.
    void count(Int node, Int change) {
        const Word earlier = lengths_[node];
        if (earlier != 0) {
            const Int step = __builtin_ctzll(earlier);
            counts_(step, number_(step, node)) += change;
        } else {
            in_last_[lasts_[node]] += change;
        }
    }

    void change(Int step, Int node, Int begin) {
        const Int number = step > 0 ? walks_.link_number(step, node, begin) : 0;
        if (step < walks_.last) {
            lengths_[node] ^= Int{1} << step;
            number_(step, node) = number;
        } else {
            lasts_[node] ^= Int{1} << number;
        }
    }

    const KautzWalks& walks_;
    Array<Int> lengths_;
    Array<std::int8_t, 2> number_;
    Array<Int> lasts_;
    Array<Int, 2> counts_;
    Array<Int> in_last_;
};

std::tuple<Array<Int>, Array<Int>> kautz_loads(Int degree, Int nodes, Int common) {
    const KautzWalks walks(degree, nodes, common);
    HeardWalks heard(walks);
    auto top = zeros<Int>(walks.last + 1), bottom = full<Int>(1, walks.last + 1);
    heard.raise_loads(top, bottom);
    for (Int node = 1; node < nodes; ++node) {
        for (Int step = 0; step <= walks.last; ++step) {
            heard.move(step, node - walks.width[step]);
            heard.move(step, node);
        }
        heard.raise_loads(top, bottom);
    }
    Int steps = walks.last;
    while (top[steps] == 0) --steps;
    const auto after_start = [steps](const Array<Int>& loads) { return Array<Int>(loads.part(1, steps + 1), loads.owner); };
    return {after_start(top), after_start(bottom)};
}

}  // namespace

void bind_finder(nanobind::module_& module) {
    define(module, "loads_of_low_diameter", loads_of_low_diameter);
    define(module, "best_generators", best_generators);
    define(module, "kautz_loads", kautz_loads);
}

}  // namespace chorale
