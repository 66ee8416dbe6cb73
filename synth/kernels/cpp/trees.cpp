// Packings of spanning trees: trees grown under known cuts, trees of one root, and repaired trees of an older network.
#include "modules.hpp"
#include "splitmix.hpp"

namespace chorale {
namespace {

// Calls function(cut) for every cut that contains `tail` but not `head`. members: a bit per cut, by node
template <class Function>
void each_crossed(const Span<const Word, 2>& members, Int tail, Int head, Function function) {
    for (Int word = 0; word < members.shape[1]; ++word)
        each_bit(members(tail, word) & ~members(head, word), [&](Int bit) { function(64 * word + bit); });
}

bool has_member(const Span<const Word, 2>& members, Int node, Int cut) {
    return (members(node, cut / 64) >> (cut % 64)) & 1;
}

void add_crossings(const Span<const Word, 2>& members, Int tail, Int head, Int amount, Span<Int> total) {
    each_crossed(members, tail, head, [&](Int cut) { total[cut] += amount; });
}

// Add `amount` to the total of every cut that contains `node`.
void add_members(const Span<const Word, 2>& members, Int node, Int amount, Span<Int> total) {
    for (Int cut = 0; cut < total.size(); ++cut)
        if (has_member(members, node, cut)) total[cut] += amount;
}

Array<Int> cut_slacks(Int cuts, Span<const Word, 2> members, Span<const Rank> tails, Span<const Rank> heads,
                      Span<const Int> capacity, Span<const Int> supply) {
    auto slack = zeros<Int>(cuts);
    for (Int arc = 0; arc < tails.size(); ++arc)
        if (capacity[arc]) add_crossings(members, tails[arc], heads[arc], capacity[arc], slack);
    for (Int node = 0; node < supply.size(); ++node)
        if (supply[node]) add_members(members, node, -supply[node], slack);
    return slack;
}

Int feasible_trees(Span<const Word, 2> members, Span<const Int> slack, Span<const Rank> tails, Span<const Rank> root,
                   Span<const Int> weight, Span<const Rank, 2> parent_arc) {
    auto left = copy(slack);
    for (Int tree = 0; tree < root.size(); ++tree) {
        add_members(members, root[tree], weight[tree], left);
        for (Int node = 0; node < parent_arc.shape[1]; ++node)
            if (node != root[tree]) add_crossings(members, tails[parent_arc(tree, node)], node, -weight[tree], left);
        if (smallest(left) < 0) return tree;
    }
    return root.size();
}

Int feasible_arcs(Span<const Word, 2> members, Span<const Int> slack, Span<const Rank> tails, Span<const Rank> heads,
                  Span<const Rank> path, Int root, Int weight) {
    auto left = copy(slack);
    add_members(members, root, weight, left);
    for (Int index = 0; index < path.size(); ++index) {
        add_crossings(members, tails[path[index]], heads[path[index]], -weight, left);
        if (smallest(left) < 0) return index;
    }
    return path.size();
}

struct ArcTable {
    Span<const Rank> name, tails, heads;
    Span<const Int> capacity, by_tail, tail_offsets, plenty, head_offsets;
    Span<const bool> scarce;

    auto fields() {
        return std::tie(name, tails, heads, capacity, by_tail, tail_offsets, plenty, head_offsets, scarce);
    }
    Span<const Int> arcs_out_of(Int node) const { return by_tail.part(tail_offsets[node], tail_offsets[node + 1]); }
};

struct ResidualNetwork {
    Span<Int> capacity, supply, node_slack, cut_slack;
    Span<const Word, 2> members;

    auto fields() { return std::tie(capacity, supply, node_slack, cut_slack, members); }
    Int nodes() const { return node_slack.size(); }
};

// Grows one spanning tree at a time, level by level, without violating any known cut.
//
// A tree with root r and weight m takes m units of every arc that it uses, and m of the trees that r still has to root.
// The slack of a set S of nodes is the capacity out of S minus the trees still to be rooted in S. If r is in S, the
// first arc of the tree out of S does not change the slack; every other arc out of S costs m, and no known S may lose
// more than its slack. The sets {v} are always known, others come from the oracle. New nodes take the arc with most
// residual capacity, which keeps trees short.
class TreeGrowth {
public:
    TreeGrowth(const ArcTable& arcs, const ResidualNetwork& room)
        : arcs_(arcs), room_(room), nodes_(room.nodes()), parent(empty<Rank>(nodes_)), order(empty<Rank>(nodes_)),
          depth_(empty<Rank>(nodes_)), first_(empty<Rank>(nodes_ + 1)), last_(empty<Rank>(nodes_ + 1)),
          after_(empty<Rank>(nodes_)), missing_(empty<Rank>(nodes_)), place_(empty<Rank>(nodes_)),
          charges_(empty<Int>(nodes_)), paid_(empty<Int>(room.cut_slack.size())),
          tight_(empty<Word>(room.members.shape[1])), best_(empty<Rank>(nodes_)), awaited_(empty<Rank>(nodes_)) {}

    void start(Int root, Int tree_weight) {
        weight = tree_weight;
        missing = nodes_;
        fill(depth_, -1);
        fill(first_, -1);
        fill(charges_, 0);
        fill(best_, -1);
        fill(awaited_, -1);
        std::iota(missing_.begin(), missing_.end(), 0);
        std::iota(place_.begin(), place_.end(), 0);
        parent[root] = -1;
        charges_[root] = -1;
        for (Int cut = 0; cut < paid_.size(); ++cut) paid_[cut] = has_member(room_.members, root, cut) ? -1 : 0;
        tighten();
        reach(root, 0);
    }

    // Add `arc` to the tree, which then contains its head, and charge the cuts that the arc crosses.
    void attach(Int arc) {
        const Int tail = arcs_.tails[arc], head = arcs_.heads[arc];
        ++charges_[tail];
        each_crossed(room_.members, tail, head, [&](Int cut) {
            ++paid_[cut];
            tighten(cut);
        });
        parent[head] = arc;
        reach(head, depth_[tail] + 1);
    }

    // Extend the tree to all nodes, lowering its weight if necessary.
    //
    // If nodes are missing afterwards, it is stuck: an unknown cut is already violated.
    void finish() {
        bool patient = true;
        for (Int depth = 0; missing > 0;) {
            if (first_[depth] >= 0) {
                extend(depth++, patient);
                continue;
            }
            const Int lower = largest_weight();
            if (lower == 0) break;
            // If more would have fitted at this weight, waiting was useless.
            depth = 0;
            patient = lower < weight;
            fill(awaited_, -1);
            weight = lower;
            tighten();
        }
    }

    // Subtract a finished tree from arcs, root and slacks.
    void take() const {
        for (const Rank node : order.from(1)) room_.capacity[parent[node]] -= weight;
        room_.supply[order[0]] -= weight;
        for (Int node = 0; node < nodes_; ++node) room_.node_slack[node] -= charges_[node] * weight;
        for (Int cut = 0; cut < paid_.size(); ++cut) room_.cut_slack[cut] -= paid_[cut] * weight;
    }

private:
    // Estimated number of arcs that are visited to find the parent of one node. If a level has more arcs than this per
    // missing node, it is faster to search from the missing nodes.
    static constexpr Int PULL_COST = 16;

    const ArcTable& arcs_;
    const ResidualNetwork& room_;
    Int nodes_;

public:
    Int weight = 0, missing = 0;
    Array<Rank> parent, order;  // arc to each node of the tree; nodes in the order in which they were reached

private:
    // Mark the cuts that one more arc would violate.
    void tighten(Int cut) {
        if (room_.cut_slack[cut] < (paid_[cut] + 1) * weight) tight_[cut / 64] |= Word{1} << (cut % 64);
    }
    void tighten() {
        fill(tight_, 0);
        for (Int cut = 0; cut < paid_.size(); ++cut) tighten(cut);
    }

    // Record that the tree has reached `node`.
    void reach(Int node, Int depth) {
        depth_[node] = depth;
        after_[node] = -1;
        (first_[depth] < 0 ? first_[depth] : after_[last_[depth]]) = node;
        last_[depth] = node;
        order[nodes_ - missing] = node;
        const Int other = missing_[--missing];
        missing_[place_[node]] = other;
        place_[other] = place_[node];
    }

    bool has_node_slack(Int node) const { return room_.node_slack[node] >= (charges_[node] + 1) * weight; }

    bool fits(Int arc) const {
        const Int tail = arcs_.tails[arc], head = arcs_.heads[arc];
        if (room_.capacity[arc] < weight || !has_node_slack(tail)) return false;
        for (Int word = 0; word < tight_.size(); ++word)
            if (room_.members(tail, word) & ~room_.members(head, word) & tight_[word]) return false;
        return true;
    }

    // Return the arc with most room from a node at `depth` to `node`, or -1.
    Int best_into(Int node, Int depth) const {
        Int best = -1, most = weight - 1;
        for (Int arc = arcs_.head_offsets[node]; arc < arcs_.head_offsets[node + 1]; ++arc) {
            if (arcs_.capacity[arc] <= most) break;
            if (depth_[arcs_.tails[arc]] == depth && room_.capacity[arc] > most && fits(arc)) {
                best = arc;
                most = room_.capacity[arc];
            }
        }
        return best;
    }

    // Find the arc with most room to each node that a level can reach.
    void push(Int depth) {
        reachable_.clear();
        for (Int node = first_[depth]; node >= 0; node = after_[node]) {
            if (!has_node_slack(node)) continue;
            for (const Int arc : arcs_.arcs_out_of(node)) {
                const Int head = arcs_.heads[arc], best = best_[head];
                if (depth_[head] >= 0) continue;
                if ((best >= 0 && room_.capacity[arc] <= room_.capacity[best]) || !fits(arc)) continue;
                if (best < 0) reachable_.push_back(head);
                best_[head] = arc;
            }
        }
    }

    // Add all nodes that one level can reach, over the arcs with most room.
    //
    // patient: do not use scarce arcs to nodes for which the next level has plenty of room
    void extend(Int depth, bool patient) {
        Int cost = 0;
        for (Int node = first_[depth]; node >= 0; node = after_[node]) cost += arcs_.arcs_out_of(node).size();
        if (cost > missing * PULL_COST) {
            reachable_.assign(missing_.begin(), missing_.begin() + missing);
        } else {
            push(depth);
        }
        for (const Rank node : reachable_) {
            Int arc = best_[node];
            best_[node] = -1;
            if (arc < 0 || !fits(arc)) arc = best_into(node, depth);
            if (arc < 0 || (patient && arcs_.scarce[arc] && awaited_[node] == depth + 1)) continue;
            attach(arc);
            for (const Int onward : arcs_.arcs_out_of(node).first(arcs_.plenty[node]))
                awaited_[arcs_.heads[onward]] = depth + 1;
        }
    }

    Int weight_over(Int arc) const {
        const Int tail = arcs_.tails[arc];
        Int most = room_.capacity[arc];
        if (charges_[tail] >= 0) most = std::min(most, floor_div(room_.node_slack[tail], charges_[tail] + 1));
        each_crossed(room_.members, tail, arcs_.heads[arc], [&](Int cut) {
            if (paid_[cut] >= 0) most = std::min(most, floor_div(room_.cut_slack[cut], paid_[cut] + 1));
        });
        return most;
    }

    // Return the largest weight, up to the tree's weight, with which the tree could continue; 0 if there is none.
    Int largest_weight() const {
        Int most = 0;
        for (const Rank node : missing_.first(missing))
            for (Int arc = arcs_.head_offsets[node]; arc < arcs_.head_offsets[node + 1]; ++arc)
                if (depth_[arcs_.tails[arc]] >= 0 && room_.capacity[arc] > most) most = std::max(most, weight_over(arc));
        return std::min(most, weight);
    }

    Array<Rank> depth_;                 // by node, -1 if the tree has not reached it
    Array<Rank> first_, last_, after_;  // linked lists of nodes of equal depth, by depth and by node
    Array<Rank> missing_, place_;       // nodes that are not reached yet, and the position of each in that list
    Array<Int> charges_, paid_;  // by node v, and by known cut S: arcs out of {v} or S that cost slack,
                                 // starting at -1 if the root is inside, because its first arc is free
    Array<Word> tight_;          // bits of the cuts that one more arc would violate
    Array<Rank> best_;           // by node: best arc to it
    Array<Rank> awaited_;        // by node: depth of a tree node with plenty of room to it, or -1
    std::vector<Rank> reachable_;
};

Int grow_trees(const ArcTable& arcs, const ResidualNetwork& room, Span<const Rank> roots, Span<Rank> root,
               Span<Int> weight, Span<Rank, 2> parent_arc) {
    TreeGrowth growth(arcs, room);
    Int tree = 0;
    for (const Rank start : roots) {
        while (room.supply[start] > 0 && tree < root.size()) {
            growth.start(start, room.supply[start]);
            growth.finish();
            if (growth.missing) return tree;
            growth.take();
            root[tree] = start;
            weight[tree] = growth.weight;
            assign(parent_arc.row(tree++), growth.parent);
        }
    }
    return tree;
}

std::tuple<Int, Int> continue_tree(const ArcTable& arcs, const ResidualNetwork& room, Int root, Int weight,
                                   Span<const Rank> path, Span<Rank> order, Span<Rank> parent) {
    TreeGrowth growth(arcs, room);
    growth.start(root, weight);
    for (const Rank arc : path) growth.attach(arc);
    growth.finish();
    const Int reached = room.nodes() - growth.missing;
    for (Int position = 0; position < reached; ++position) {
        const Rank node = growth.order[position];
        order[position] = node;
        parent[node] = growth.parent[node];
    }
    return {growth.weight, reached};
}

// Grows the trees of one root arc by arc.
//
// A tree may take an arc if the flow from the root to the head of the arc still has one unit for each further tree. By
// Lovász' proof of Edmonds' theorem, every partial tree can be extended by such an arc, so that no tree is ever undone.
// An arc that has been refused is refused again later, so each arc is tried once per tree.
class WaySearch {
public:
    WaySearch(const ArcTable& arcs, Span<const Int> capacity, Int root)
        : arcs_(arcs), capacity_(capacity), root_(root), flow_(zeros<Int>(capacity.size())),
          queue_(empty<Rank>(arcs.plenty.size())), via_(empty<Rank>(queue_.size())), seen_(zeros<Int>(queue_.size())) {}

    // Return whether `wanted` units can flow from the root to `target`.
    bool has_ways(Int target, Int wanted) {
        bool found = true;
        for (Int count = 0; found && count < wanted; ++count) {
            found = find_way(target);
            if (found) send(target);
        }
        for (const Rank arc : used_) flow_[arc] = 0;
        used_.clear();
        return found;
    }

private:
    // Search for a path with room, backwards from the target.
    bool find_way(Int target) {
        ++number_;
        Int length = 0;
        const auto see = [&](Int node, Int via) {
            if (seen_[node] == number_) return;
            seen_[node] = number_;
            via_[node] = via;
            queue_[length++] = node;
        };
        see(target, -1);
        for (Int position = 0; position < length && seen_[root_] != number_; ++position) {
            const Int node = queue_[position];
            for (Int arc = arcs_.head_offsets[node]; arc < arcs_.head_offsets[node + 1]; ++arc)
                if (flow_[arc] < capacity_[arc]) see(arcs_.tails[arc], arc);
            for (const Int arc : arcs_.arcs_out_of(node))
                if (flow_[arc] > 0) see(arcs_.heads[arc], -2 - arc);
        }
        return seen_[root_] == number_;
    }

    // Send a unit along the path that was found.
    void send(Int target) {
        for (Int node = root_; node != target;) {
            const Int arc = via_[node];
            if (arc >= 0) {
                if (flow_[arc]++ == 0) used_.push_back(arc);
                node = arcs_.heads[arc];
            } else {
                --flow_[-2 - arc];
                node = arcs_.tails[-2 - arc];
            }
        }
    }

    const ArcTable& arcs_;
    Span<const Int> capacity_;
    Int root_;
    Array<Int> flow_;           // by arc, zero between searches
    std::vector<Rank> used_;    // arcs that carry or carried flow
    Array<Rank> queue_, via_;   // reached nodes; by node: the next arc, or -2 - arc if used backwards
    Array<Int> seen_;           // by node: number of the last search that reached it
    Int number_ = 0;
};

bool grow_rooted_trees(const ArcTable& arcs, Span<Int> capacity, Int root, Span<Rank, 2> parent_arc) {
    const Int trees = parent_arc.shape[0], nodes = parent_arc.shape[1];
    WaySearch search(arcs, capacity, root);
    auto order = empty<Rank>(nodes);
    for (Int tree = 0; tree < trees; ++tree) {
        order[0] = root;
        Int reached = 1;
        for (Int position = 0; position < reached; ++position) {
            for (const Int arc : arcs.arcs_out_of(order[position])) {
                const Int head = arcs.heads[arc];
                if (capacity[arc] <= 0 || head == root || parent_arc(tree, head) >= 0) continue;
                --capacity[arc];
                if (search.has_ways(head, trees - tree - 1)) {
                    parent_arc(tree, head) = arc;
                    order[reached++] = head;
                } else {
                    ++capacity[arc];
                }
            }
        }
        if (reached < nodes) return false;
    }
    return true;
}

// Compute the depth of each node below `root`.
void find_depths(Int root, Span<const Rank> parent_arc, Span<const Rank> src, Span<Rank> depth) {
    fill(depth, -1);
    depth[root] = 0;
    std::vector<Int> climbed;
    for (Int start = 0; start < depth.size(); ++start) {
        Int node = start;
        for (; depth[node] < 0; node = src[parent_arc[node]]) climbed.push_back(node);
        for (Int above = depth[node]; !climbed.empty(); climbed.pop_back()) depth[climbed.back()] = ++above;
    }
}

void tree_heights(Span<const Rank> root, Span<const Rank, 2> parent_arc, Span<const Rank> src, Span<Rank> heights) {
    auto depth = empty<Rank>(parent_arc.shape[1]);
    for (Int tree = 0; tree < root.size(); ++tree) {
        find_depths(root[tree], parent_arc.row(tree), src, depth);
        heights[tree] = largest(depth);
    }
}

// Write the rows of transfers, tree by tree and node by node. Each arc uses its paths, which carry `amount` units each,
// in order.
std::tuple<Array<Rank>, Array<Rank>, Array<Rank>, Array<Rank>, Array<Rank>> send_trees(
    Span<const Rank> roots, Span<const Int> weights, Span<const Rank, 2> parent_arc, Span<const Int> first,
    Span<const Rank> src, Span<const Int> path_offsets, Span<const Int> path_amounts) {
    const Int ranks = parent_arc.shape[1];
    std::vector<Rank> depths, paths, row_roots, lo, hi;
    auto cursor = copy(path_offsets), left = copy(path_amounts);
    auto depth = empty<Rank>(ranks);
    for (Int tree = 0; tree < roots.size(); ++tree) {
        find_depths(roots[tree], parent_arc.row(tree), src, depth);
        for (Int node = 0; node < ranks; ++node) {
            const Int arc = parent_arc(tree, node);
            if (arc < 0) continue;
            const Int last = first[tree] + weights[tree];
            for (Int unit = first[tree], amount; unit < last; unit += amount) {
                Int& path = cursor[arc];
                while (left[path] == 0) ++path;
                amount = std::min(last - unit, left[path]);
                left[path] -= amount;
                depths.push_back(depth[node] - 1);
                paths.push_back(path);
                row_roots.push_back(roots[tree]);
                lo.push_back(unit);
                hi.push_back(unit + amount);
            }
        }
    }
    return {std::move(depths), std::move(paths), std::move(row_roots), std::move(lo), std::move(hi)};
}

// Reuses trees of an older schedule as far as they fit the changed network.

// Edges of old trees by root, each from the root outwards: those of root r are offsets[r] to offsets[r + 1] - 1.
struct OldEdges {
    Span<const Int> offsets;
    Span<const Rank> parent, child;
    Span<const Int> lo, hi;

    auto fields() { return std::tie(offsets, parent, child, lo, hi); }

    // Mark the units of `root` whose tree differs from that of the previous unit.
    //
    // Trees are compared by hashes of their edges; treating two trees as equal does no harm.
    Array<bool> starts_of(Int root, Int units) const {
        auto sums = zeros<Word>(units);
        for (Int edge = offsets[root]; edge < offsets[root + 1]; ++edge) {
            const Word ends = (Word(parent[edge] + 1) << 32) | Word(child[edge] + 1);
            const Word mixed = (ends ^ (ends >> 29)) * FIRST_FACTOR;
            for (Int unit = lo[edge]; unit < hi[edge]; ++unit) sums[unit] += mixed ^ (mixed >> 32);
        }
        auto starts = full<bool>(true, units);
        for (Int unit = 1; unit < units; ++unit) starts[unit] = sums[unit] != sums[unit - 1];
        return starts;
    }
};

// Arcs into node v are offsets[v] to offsets[v + 1] - 1; number(u, v) is the arc from u to v or -1.
struct ArcIndex {
    Span<const Int> offsets;
    Span<const Rank> src;
    Span<const Rank, 2> number;

    auto fields() { return std::tie(offsets, src, number); }
};

// Write a tree that follows the old one where arcs have room for `weight`; if it spans all nodes, subtract that room.
bool mend_tree(const OldEdges& old, Int root, Int unit, Int weight, const ArcIndex& arcs, Span<Int> left,
               Span<Rank> parent_arc) {
    const Int nodes = parent_arc.size();
    auto reached = zeros<bool>(nodes);
    Int count = 1;
    reached[root] = true;
    fill(parent_arc, -1);
    const auto reach = [&](Int node, Int arc) {
        parent_arc[node] = arc;
        reached[node] = true;
        ++count;
    };
    for (Int edge = old.offsets[root]; edge < old.offsets[root + 1]; ++edge) {
        const Int parent = old.parent[edge], child = old.child[edge];
        if (unit < old.lo[edge] || unit >= old.hi[edge] || parent < 0 || child < 0) continue;
        const Int arc = arcs.number(parent, child);
        if (arc >= 0 && reached[parent] && !reached[child] && left[arc] >= weight) reach(child, arc);
    }
    const auto arc_of_most_capacity = [&](Int node) {
        Int best = -1;
        for (Int arc = arcs.offsets[node]; arc < arcs.offsets[node + 1]; ++arc)
            if (reached[arcs.src[arc]] && left[arc] >= weight && (best < 0 || left[arc] > left[best])) best = arc;
        return best;
    };
    for (bool progress = true; progress && count < nodes;) {
        progress = false;
        for (Int node = 0; node < nodes; ++node) {
            const Int arc = reached[node] ? -1 : arc_of_most_capacity(node);
            if (arc < 0) continue;
            reach(node, arc);
            progress = true;
        }
    }
    if (count < nodes) return false;
    for (const Rank arc : parent_arc)
        if (arc >= 0) left[arc] -= weight;
    return true;
}

std::tuple<Array<Rank>, Array<Int>, Array<Rank, 2>> mend(const OldEdges& old, Int old_units, const ArcIndex& arcs,
                                                         Span<const Int> supply, Span<Int> left) {
    const Int nodes = supply.size();
    Int most = 0;
    for (Int root = 0; root < nodes; ++root) most += sum(old.starts_of(root, old_units));
    auto roots = empty<Rank>(most);
    auto weights = empty<Int>(most);
    auto parent_arc = empty<Rank>(most, nodes);
    Int count = 0;
    for (Int root = 0; root < nodes; ++root) {
        const auto starts = old.starts_of(root, old_units);
        for (Int unit = 0, following; unit < old_units; unit = following) {
            following = unit + 1;
            while (following < old_units && !starts[following]) ++following;
            // The new units u with unit <= u * old_units / supply < following.
            const auto begin = [&](Int old_unit) { return -floor_div(-old_unit * supply[root], old_units); };
            const Int weight = begin(following) - begin(unit);
            if (weight > 0 && mend_tree(old, root, unit, weight, arcs, left, parent_arc.row(count))) {
                roots[count] = root;
                weights[count++] = weight;
            }
        }
    }
    return {roots.prefix(count), weights.prefix(count), parent_arc.prefix(count)};
}

}  // namespace

void bind_trees(nanobind::module_& module) {
    define(module, "cut_slacks", cut_slacks);
    define(module, "feasible_trees", feasible_trees);
    define(module, "feasible_arcs", feasible_arcs);
    define(module, "grow_trees", grow_trees);
    define(module, "continue_tree", continue_tree);
    define(module, "grow_rooted_trees", grow_rooted_trees);
    define(module, "tree_heights", tree_heights);
    define(module, "send_trees", send_trees);
    define(module, "mend", mend);
}

}  // namespace chorale
