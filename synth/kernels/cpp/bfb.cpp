// Breadth-first broadcast: solves the problem of each node and step exactly, in integers.
//
// One problem: node u must receive in step t every shard v at distance t. Shard v may come over the in-links k of
// u whose tail is at distance t - 1 from v; they are its mask f(v). Shards are divisible jobs, and links are processors
// with integer capacity c_k. By max-flow / min-cut (full paper, theorem 19), the minimum time is
//
//     U(u, t) = max over non-empty link sets S of n(S) / c(S),    n(S) = number of v with f(v) inside S.
//
// It is found by Newton's method on the parametric flow: start from a lower bound p/q, give job v q units and
// link k p * c_k units, and search for a flow that places everything. If there is none, the links reached from a
// stuck job form a set S with larger n(S) / c(S), which is the next bound. Shards with equal masks form one class.
//
// If link k also has a delay a_k, the method stays the same (full paper, appendix E.3): time is counted in ticks, and
// the link carries c_k * max(0, T - a_k) / grain shards until T. A link with a longer delay carries nothing and costs
// nothing, so it need not be excluded. A set S of links has carried n shards when the sum of c * max(0, T - a) over
// S, a piecewise linear function of T, reaches n * grain.
#include "modules.hpp"

namespace chorale {
namespace {

// Sets of in-links of a node: rows of words, in which bit k % 64 of word k / 64 stands for in-link k.

Word bit_of(Int link) { return Word{1} << (link % 64); }

bool contains_link(Span<const Word> links, Int link) { return (links[link / 64] & bit_of(link)) != 0; }

// Add the set `links` to `all`; return whether `all` changed.
bool add_links(Span<const Word> links, Span<Word> all) {
    Word fresh = 0;
    for (Int word = 0; word < links.size(); ++word) {
        fresh |= links[word] & ~all[word];
        all[word] |= links[word];
    }
    return fresh != 0;
}

bool is_inside(Span<const Word> links, Span<const Word> others) {
    Word outside = 0;
    for (Int word = 0; word < links.size(); ++word) outside |= links[word] & ~others[word];
    return outside == 0;
}

struct Problems {
    Span<const Int> offsets;
    Span<const Rank> tails;
    Span<const Int> capacities, delays;
    Int grain;
    Span<const Hops, 2> rows;
    Int words;

    auto fields() { return std::tie(offsets, tails, capacities, delays, grain, rows, words); }
};

struct Time {
    Int top, bottom;

    bool operator>(const Time& other) const { return top * other.bottom > other.top * bottom; }
};

// The in-links of a node. A tick for shards equals `chunks` ticks for chunks.
class InLinks {
public:
    InLinks(const Problems& problems, Int node, Int chunks)
        : grain(problems.grain), capacities_(problems.capacities.part(problems.offsets[node], problems.offsets[node + 1])),
          delays_(copy(problems.delays.part(problems.offsets[node], problems.offsets[node + 1]))) {
        for (Int& delay : delays_) delay *= chunks;
    }

    Int count() const { return capacities_.size(); }

    // Return what every link carries until the given time, in 1 / (bottom * grain) shards (or chunks).
    Array<Int> room_until(Time time) const {
        auto room = empty<Int>(count());
        for (Int link = 0; link < count(); ++link) room[link] = carried(link, time);
        return room;
    }

    // Return how many complete chunks every link carries until the given time.
    Array<Int> whole_chunks(Time time) const {
        auto room = room_until(time);
        for (Int& amount : room) amount /= time.bottom * grain;
        return room;
    }

    // Return, in lowest terms, the time at which the set `chosen` has carried `need` (at least 1) shards.
    //
    // With all links of the set, this takes some time r. Links with delays of r or more only increase r, so they are
    // dropped until every delay is below the time.
    Time least_time(Int need, Span<const Word> chosen) const {
        auto used = copy(chosen);
        while (true) {
            Int capacity = 0, ticks = need * grain;
            for (Int link = 0; link < count(); ++link) {
                if (!contains_link(used, link)) continue;
                capacity += capacities_[link];
                ticks += capacities_[link] * delays_[link];
            }
            bool dropped = false;
            for (Int link = 0; link < count(); ++link) {
                if (!contains_link(used, link) || delays_[link] * capacity < ticks) continue;
                used[link / 64] &= ~bit_of(link);
                dropped = true;
            }
            if (!dropped) return {ticks / std::gcd(ticks, capacity), capacity / std::gcd(ticks, capacity)};
        }
    }

    // Return the earliest time, not before `time`, at which the set `chosen` has carried `need` whole chunks.
    Time next_time(Time time, Int need, Span<const Word> chosen) const {
        while (true) {
            Int total = 0;
            Time next{-1, 1};
            for (Int link = 0; link < count(); ++link) {
                if (!contains_link(chosen, link)) continue;
                const Int whole = carried(link, time) / (time.bottom * grain);
                total += whole;
                // The time when the link has carried one more chunk.
                const Time following{(whole + 1) * grain + capacities_[link] * delays_[link], capacities_[link]};
                if (next.top < 0 || next > following) next = following;
            }
            if (total >= need) return time;
            time = next;
        }
    }

    Int grain;

private:
    Int carried(Int link, Time time) const {
        return capacities_[link] * std::max<Int>(0, time.top - time.bottom * delays_[link]);
    }

    Span<const Int> capacities_;
    Array<Int> delays_;
};

// Memory for solving one node at a time. It is large enough for every node, to avoid allocations in the loops.
class Workspace {
public:
    Workspace(const Problems& problems, Int steps)
        : problems_(problems), shards_(problems.rows.shape[1]), masks_(zeros<Word>(shards_, problems.words)),
          order_(empty<Rank>(shards_)), starts_(empty<Int>(steps + 2)),
          class_masks_(zeros<Word>(shards_, problems.words)), sizes_(zeros<Int>(shards_)),
          member_(empty<Rank>(shards_)) {
        Int widest = 0, table_size = 4;
        for (Int node = 0; node + 1 < problems.offsets.size(); ++node)
            widest = std::max(widest, problems.offsets[node + 1] - problems.offsets[node]);
        while (table_size < 2 * shards_) table_size *= 2;
        table_ = full<Rank>(-1, table_size);
        flow_ = zeros<Int>(widest, shards_);
        via_.resize(widest);
    }

    // Find the masks of all shards for `node`, and sort the shards by distance, then by rank.
    void prepare(Int node) {
        const auto hops = problems_.rows.row(node);
        const Int first = problems_.offsets[node];
        fill(masks_, 0);
        for (Int link = 0; link < problems_.offsets[node + 1] - first; ++link) {
            const auto near = problems_.rows.row(problems_.tails[first + link]);
            for (Int shard = 0; shard < shards_; ++shard)
                if (near[shard] + 1 == hops[shard]) masks_(shard, link / 64) |= bit_of(link);
        }
        fill(starts_, 0);
        for (const Hops distance : hops) ++starts_[distance + 1];
        add_up(starts_);
        auto cursor = copy(starts_);
        for (Int shard = 0; shard < shards_; ++shard) order_[cursor[hops[shard]]++] = shard;
    }

    // Return the shards that arrive in `step` (0-based).
    Span<Rank> jobs_of(Int step) const { return order_.part(starts_[step + 1], starts_[step + 2]); }

    // Group `jobs` into classes by mask, numbered by first appearance.
    void find_classes(Span<const Rank> jobs) {
        const Word last = table_.size() - 1;
        auto used = empty<Int>(jobs.size());
        classes = 0;
        for (Int index = 0; index < jobs.size(); ++index) {
            const auto mask = masks_.row(jobs[index]);
            Word key = 1469598103934665603;
            for (const Word word : mask) key = (key ^ word) * 0x9E3779B97F4A7C15;
            Word slot = (key >> 20) & last;
            while (table_[slot] >= 0 && !std::equal(mask.begin(), mask.end(), class_masks_.row(table_[slot]).begin()))
                slot = (slot + 1) & last;
            if (table_[slot] < 0) {
                table_[slot] = classes;
                used[classes] = slot;
                assign(class_masks_.row(classes), mask);
                sizes_[classes++] = 0;
            }
            member_[index] = table_[slot];
            ++sizes_[table_[slot]];
        }
        for (const Int slot : used.first(classes)) table_[slot] = -1;
    }

    // Distribute `unit` units of every job over the links of its mask, at most `room[k]` on link k; return whether all
    // fit.
    //
    // Classes with few links come first, and complete jobs go to the link with most room, so that few jobs are split.
    // The remaining units fill gaps and are then placed along augmenting paths.
    bool assign_units(Int unit, const Array<Int>& room) {
        for (Int link = 0; link < room.size(); ++link) fill(flow_.row(link).first(classes), 0);
        auto slack = copy(room);
        for (const Int index : narrow_first()) {
            Int left = sizes_[index] * unit;
            while (left > 0) {
                const Int link = link_with_most_slack(class_masks_.row(index), slack);
                if (slack[link] <= 0) break;
                const Int amount = std::min({left, unit, slack[link]});
                flow_(link, index) += amount;
                slack[link] -= amount;
                left -= amount;
            }
            while (left > 0) {
                const Int moved = augment(index, left, slack);
                if (moved == 0) return false;
                left -= moved;
            }
        }
        return true;
    }

    // Return n(S): the number of jobs whose mask lies inside the link set `links`.
    Int count_inside(Span<const Word> links) const {
        Int total = 0;
        for (Int index = 0; index < classes; ++index)
            if (is_inside(class_masks_.row(index), links)) total += sizes_[index];
        return total;
    }

    // Write the set of links that at least one job may use.
    void usable_links(Span<Word> links) const {
        fill(links, 0);
        for (Int index = 0; index < classes; ++index) add_links(class_masks_.row(index), links);
    }

    // After `assign_units` has failed, write the violated set S that it reached, among the first `degree` links.
    void reached_links(Int degree, Span<Word> links) const {
        fill(links, 0);
        for (Int link = 0; link < degree; ++link)
            if (via_[link].before != UNREACHED) links[link / 64] |= bit_of(link);
    }

    // Add a row (in-link, shard, lo, hi) per piece to `rows`: each class distributes its jobs to its links in order.
    void cut(Span<const Rank> jobs, Int chunks, Int first_link, std::vector<Rank>& rows) {
        auto link_of = zeros<Int>(classes);
        for (Int index = 0; index < jobs.size(); ++index) {
            const Int group = member_[index];
            Int& link = link_of[group];
            for (Int position = 0; position < chunks;) {
                while (flow_(link, group) == 0) ++link;
                const Int amount = std::min(chunks - position, flow_(link, group));
                flow_(link, group) -= amount;
                for (const Int value : {first_link + link, Int{jobs[index]}, position, position + amount})
                    rows.push_back(static_cast<Rank>(value));
                position += amount;
            }
        }
    }

    Int classes = 0;

private:
    static constexpr Int UNREACHED = -2;

    Array<Int> narrow_first() const {
        auto widths = zeros<Int>(classes);
        for (Int index = 0; index < classes; ++index)
            for (const Word word : class_masks_.row(index)) each_bit(word, [&](Int) { ++widths[index]; });
        return sorting_order(widths);
    }

    static Int link_with_most_slack(Span<const Word> links, Span<const Int> slack) {
        Int best = -1;
        for (Int link = 0; link < slack.size(); ++link)
            if (contains_link(links, link) && (best < 0 || slack[link] > slack[best])) best = link;
        return best;
    }

    // Make room for units of class `start` by moving other classes along one shortest path of links.
    //
    // Returns the number of placed units. If it is 0, no link with room can be reached, and `via_` has the reached
    // links.
    Int augment(Int start, Int amount, Span<Int> slack) {
        const Int degree = slack.size();
        auto queue = empty<Rank>(degree);
        auto seen = copy(class_masks_.row(start));
        Int head = 0, tail = 0;
        for (Int link = 0; link < degree; ++link) {
            via_[link] = {UNREACHED, -1};
            if (!contains_link(seen, link)) continue;
            via_[link] = {-1, start};
            queue[tail++] = link;
        }
        while (head < tail) {
            const Int link = queue[head++];
            if (slack[link] > 0) return shift(link, amount, slack);
            for (Int other = 0; other < classes; ++other) {
                if (flow_(link, other) <= 0 || !add_links(class_masks_.row(other), seen)) continue;
                for (Int onward = 0; onward < degree; ++onward) {
                    if (via_[onward].before != UNREACHED || !contains_link(seen, onward)) continue;
                    via_[onward] = {link, other};
                    queue[tail++] = onward;
                }
            }
        }
        return 0;
    }

    // Move as many units as fit along the path that ends at link `last`, at most `amount`.
    Int shift(Int last, Int amount, Span<Int> slack) {
        Int moved = std::min(amount, slack[last]);
        for (Int link = last; via_[link].before >= 0; link = via_[link].before)
            moved = std::min(moved, flow_(via_[link].before, via_[link].group));
        slack[last] -= moved;
        for (Int link = last; link >= 0; link = via_[link].before) {
            const auto [before, group] = via_[link];
            flow_(link, group) += moved;
            if (before >= 0) flow_(before, group) -= moved;
        }
        return moved;
    }

    // How the search for room reached a link: from the link `before` (-1: none) by moving a class.
    struct Via {
        Int before, group;
    };

    const Problems& problems_;
    Int shards_;
    Array<Word, 2> masks_;  // by shard: usable in-links
    Array<Rank> order_;     // shards by distance; those of distance t are starts_[t] to starts_[t + 1] - 1
    Array<Int> starts_;
    Array<Rank> table_;  // hash table from mask to class, 2^n entries, all -1 between uses
    Array<Word, 2> class_masks_;
    Array<Int> sizes_;    // jobs by class
    Array<Rank> member_;  // the class of each job
    Array<Int, 2> flow_;  // units by link and class; loops visit all classes of a link
    std::vector<Via> via_;
};

// The largest U(u, t) of each step, with its node and critical link set.
struct Loads {
    Array<Int> top, bottom, witness;
    Array<Word, 2> links;

    auto fields() { return std::tie(top, bottom, witness, links); }
    Time time(Int step) const { return {top[step], bottom[step]}; }
    void set(Int step, Time time, Int node, Span<const Word> set_of_links) {
        top[step] = time.top;
        bottom[step] = time.bottom;
        witness[step] = node;
        assign(links.row(step), set_of_links);
    }
};

Loads least_loads(Int first, Int last, const Problems& problems, Int steps) {
    Loads loads{zeros<Int>(steps), zeros<Int>(steps), zeros<Int>(steps), zeros<Word>(steps, problems.words)};
    Workspace work(problems, steps);
    auto links = zeros<Word>(problems.words);
    for (Int node = first; node < last; ++node) {
        const InLinks incoming(problems, node, 1);
        work.prepare(node);
        for (Int step = 0; step < steps; ++step) {
            const auto jobs = work.jobs_of(step);
            if (jobs.size() == 0) continue;
            work.find_classes(jobs);
            work.usable_links(links);
            // Start from the largest load so far, which suffices for most nodes.
            while (true) {
                const Time time = incoming.least_time(work.count_inside(links), links);
                if (loads.bottom[step] == 0 || time > loads.time(step)) loads.set(step, time, node, links);
                if (work.assign_units(loads.bottom[step] * problems.grain, incoming.room_until(loads.time(step)))) break;
                work.reached_links(incoming.count(), links);
            }
        }
    }
    return loads;
}

// The times are exact, because with whole chunks this is a transportation problem, whose polytope is integral.
Loads integral_chunk_times(Int first, Int last, const Problems& problems, Int chunks, Span<const Int> least_top,
                           Span<const Int> least_bottom) {
    const Int steps = least_top.size();
    Loads loads{copy(least_top), copy(least_bottom), full<Int>(-1, steps), zeros<Word>(steps, problems.words)};
    Workspace work(problems, steps);
    auto links = zeros<Word>(problems.words);
    for (Int node = first; node < last; ++node) {
        const InLinks incoming(problems, node, chunks);
        work.prepare(node);
        for (Int step = 0; step < steps; ++step) {
            const auto jobs = work.jobs_of(step);
            if (jobs.size() == 0) continue;
            work.find_classes(jobs);
            while (!work.assign_units(chunks, incoming.whole_chunks(loads.time(step)))) {
                work.reached_links(incoming.count(), links);
                const Int need = chunks * work.count_inside(links);
                loads.set(step, incoming.next_time(loads.time(step), need, links), node, links);
            }
        }
    }
    return loads;
}

std::tuple<Array<Rank>, Array<Rank>> assign_chunks(Int first, Int last, const Problems& problems, Int chunks,
                                                   Span<const Int> top, Span<const Int> bottom) {
    const Int steps = top.size();
    Workspace work(problems, steps);
    std::vector<Rank> rows, step_of;
    for (Int node = first; node < last; ++node) {
        const InLinks incoming(problems, node, chunks);
        work.prepare(node);
        for (Int step = 0; step < steps; ++step) {
            const auto jobs = work.jobs_of(step);
            if (jobs.size() == 0) continue;
            work.find_classes(jobs);
            if (!work.assign_units(chunks, incoming.whole_chunks({top[step], bottom[step]})))
                throw std::invalid_argument("a step does not fit its time");
            work.cut(jobs, chunks, problems.offsets[node], rows);
            step_of.resize(rows.size() / 4, step);
        }
    }
    return {std::move(step_of), std::move(rows)};
}

}  // namespace

void bind_bfb(nanobind::module_& module) {
    define(module, "least_loads", least_loads);
    define(module, "integral_chunk_times", integral_chunk_times);
    define(module, "assign_chunks", assign_chunks);
}

}  // namespace chorale
