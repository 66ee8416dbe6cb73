// An oracle for tree packing: do all cuts of a network have capacity for the trees that still have to cross them?
//
// A state is a digraph with integer capacities c and a supply k_v of trees still to be rooted at each node. All
// trees can be packed (bandwidth-optimal pipeline, theorems 5, 8 and 12) if and only if
//
//     c(S -> V - S) >= sum of k_v over v in S        for every node set S that leaves out at least one sink,
//
// where every compute node is a sink. That is one maximum flow per sink w: with k_v units of supply at every
// node v, all of them must be able to reach w. Three facts make these flows cheap:
//
// - flows start at the sink and search backwards, so only the part of the network that matters is visited;
// - once w has passed, all cuts around w are known to suffice, so w counts as unlimited supply for the following sinks;
// - a sink with enough capacity from passed nodes passes without any flow, so the next flow is always for the sink with
//   most capacity from passed nodes (maximum adjacency order).
#include "modules.hpp"

namespace chorale {
namespace {

constexpr Int UNLIMITED = Int{1} << 61;

// Stores every arc with its reverse, so that flow can be pushed back. Half-arcs are grouped by the node they enter.
struct ResidualGraph {
    Span<const Int> offsets;
    Span<const Rank> tails;
    Span<const Int> mates;

    auto fields() { return std::tie(offsets, tails, mates); }
    Int nodes() const { return offsets.size() - 1; }
};

// The flow to one sink at a time. `restore` undoes its changes in time proportional to the visited part.
class FlowSearch {
public:
    FlowSearch(const ResidualGraph& graph, Span<const Int> capacity, Span<const Int> supply, Span<bool> settled)
        : graph_(graph), capacity_(capacity), supply_(supply), settled_(settled), residual_(copy(capacity)),
          room_(copy(supply)), level_(full<Rank>(-1, graph.nodes())), queue_(empty<Rank>(graph.nodes())),
          cursor_(empty<Int>(graph.nodes())), path_(empty<Int>(graph.nodes())), seen_(zeros<bool>(graph.nodes())) {
        for (Int node = 0; node < graph.nodes(); ++node) room_[node] = room_at_first(node);
    }

    // Give `node` unlimited supply from now on. slack: capacity of each node from such nodes
    void settle(Int node, Span<Int> slack) {
        settled_[node] = true;
        room_[node] = UNLIMITED;
        for (Int half = graph_.offsets[node]; half < graph_.offsets[node + 1]; ++half)
            slack[graph_.tails[half]] += capacity_[graph_.mates[half]];
    }

    // Return whether `need` units can reach `sink`; if not, write the sink side of the smallest violated cut.
    bool reaches(Int sink, Int need, Span<bool> cut) {
        Int sent = 0;
        bool is_open = true;
        while (sent < need && is_open) {
            const auto [levels, expanded, found] = find_levels(sink, need - sent);
            is_open = found > 0;
            if (is_open) {
                sent += blocking_flow(sink, need - sent);
            } else {
                fill(cut, false);
                for (const Rank node : queue_.first(levels)) cut[node] = true;
            }
            forget(levels, expanded);
        }
        restore();
        return sent >= need;
    }

private:
    Int room_at_first(Int node) const { return settled_[node] ? UNLIMITED : supply_[node]; }

    // Assign levels (hops to the sink) to nodes that can still send to `sink`, until their supply covers `need`.
    //
    // Returns the number of nodes with a level, the number of nodes whose half-arcs were visited, and the supply found.
    // A supply of 0 means that no node that can reach the sink has any supply left.
    std::tuple<Int, Int, Int> find_levels(Int sink, Int need) {
        level_[sink] = 0;
        queue_[0] = sink;
        cursor_[sink] = graph_.offsets[sink];
        Int head = 0, tail = 1, found = std::min(room_[sink], need), deepest = graph_.nodes() + 1;
        while (head < tail && level_[queue_[head]] < deepest) {
            const Int node = queue_[head++];
            for (Int half = graph_.offsets[node]; half < graph_.offsets[node + 1]; ++half) {
                const Rank before = graph_.tails[half];
                if (level_[before] >= 0 || residual_[half] <= 0) continue;
                level_[before] = level_[node] + 1;
                cursor_[before] = graph_.offsets[before];
                queue_[tail++] = before;
                found += std::min(room_[before], need);
                if (found >= need) deepest = std::min<Int>(deepest, level_[before]);
            }
        }
        return {tail, head, found};
    }

    // Send up to `need` units to `sink` down the levels until all paths are blocked; return the amount.
    Int blocking_flow(Int sink, Int need) {
        Int sent = 0, depth = 0, node = sink;
        while (true) {
            if (room_[node] > 0) {
                const auto [amount, open_depth] = take(node, depth, need - sent);
                depth = open_depth;
                sent += amount;
                if (sent == need) return sent;
                node = depth == 0 ? sink : graph_.tails[path_[depth - 1]];
            }
            if (advance(node)) {
                path_[depth++] = cursor_[node];
                node = graph_.tails[cursor_[node]];
            } else if (depth == 0) {
                return sent;
            } else {
                node = graph_.tails[graph_.mates[path_[--depth]]];
                ++cursor_[node];
            }
        }
    }

    // Whether there is an open half-arc from the next level; the cursor of `node` then points to it.
    bool advance(Int node) {
        for (Int& half = cursor_[node]; half < graph_.offsets[node + 1]; ++half)
            if (residual_[half] > 0 && level_[graph_.tails[half]] == level_[node] + 1) return true;
        return false;
    }

    // Send supply of `node` along the current path; return the amount, and the length of the part that is still open.
    std::pair<Int, Int> take(Int node, Int depth, Int need) {
        Int amount = std::min(need, room_[node]);
        for (const Int half : path_.first(depth)) amount = std::min(amount, residual_[half]);
        room_[node] -= amount;
        Int open_depth = depth;
        for (Int index = depth - 1; index >= 0; --index) {
            const Int half = path_[index];
            residual_[half] -= amount;
            residual_[graph_.mates[half]] += amount;
            if (residual_[half] == 0) open_depth = index;
        }
        return {amount, open_depth};
    }

    // Clear the levels of a finished phase, and record the nodes whose half-arcs it visited.
    void forget(Int levels, Int expanded) {
        for (Int index = 0; index < levels; ++index) {
            const Int node = queue_[index];
            level_[node] = -1;
            if (index < expanded && !seen_[node]) {
                seen_[node] = true;
                visited_.push_back(node);
            }
        }
    }

    void restore() {
        for (const Int node : visited_) {
            seen_[node] = false;
            room_[node] = room_at_first(node);
            for (Int half = graph_.offsets[node]; half < graph_.offsets[node + 1]; ++half) {
                const Int mate = graph_.mates[half], before = graph_.tails[half];
                residual_[half] = capacity_[half];
                residual_[mate] = capacity_[mate];
                room_[before] = room_at_first(before);
            }
        }
        visited_.clear();
    }

    const ResidualGraph& graph_;
    Span<const Int> capacity_, supply_;
    Span<bool> settled_;
    Array<Int> residual_, room_;
    Array<Rank> level_, queue_;
    Array<Int> cursor_, path_;
    Array<bool> seen_;
    std::vector<Int> visited_;
};

Int next_sink(Span<const Int> slack, Span<const bool> sinks, Span<const bool> settled) {
    Int best = -1;
    for (Int node = 0; node < slack.size(); ++node)
        if (sinks[node] && !settled[node] && (best < 0 || slack[node] > slack[best])) best = node;
    return best;
}

Int violated_cuts(const ResidualGraph& graph, Span<const Int> capacity, Span<const Int> supply,
                  Span<const bool> sinks, Span<bool> settled, Span<bool, 2> cuts) {
    FlowSearch search(graph, capacity, supply, settled);
    const Int total = sum(supply);
    auto slack = copy(supply);
    for (Int& amount : slack) amount -= total;
    for (Int node = 0; node < graph.nodes(); ++node)
        if (settled[node]) search.settle(node, slack);
    Int found = 0;
    while (found < cuts.shape[0]) {
        const Int sink = next_sink(slack, sinks, settled);
        if (sink < 0) break;
        if (slack[sink] < 0 && !search.reaches(sink, total, cuts.row(found)) && ++found == cuts.shape[0]) break;
        search.settle(sink, slack);
    }
    return found;
}

}  // namespace

void bind_bounds(nanobind::module_& module) { define(module, "violated_cuts", violated_cuts); }

}  // namespace chorale
