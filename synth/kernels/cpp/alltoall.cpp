// All-to-all: flows that follow link prices, integral flows, cheapest paths, and equivalent rows of the linear program.
#include <map>
#include <unordered_map>

#include "heap.hpp"
#include "modules.hpp"
#include "relief.hpp"
#include "splitmix.hpp"

namespace chorale {
namespace {

constexpr double INFINITE = std::numeric_limits<double>::infinity();

// Removes cycles from flows, because they load links without delivering anything.

enum Visit : std::int8_t { UNSEEN, ON_PATH, DONE };

// Empty the cycle at the end of `path` that closes at `node`; return how much of the path is left.
Int cancel(Span<const Rank> path, Span<const Rank> src, Int node, double least, Span<double> flow,
           Span<std::int8_t> state) {
    const Int length = path.size();
    Int first = length - 1;
    while (src[path[first]] != node) --first;
    double amount = flow[path[first]];
    for (const Rank link : path.from(first)) amount = std::min(amount, flow[link]);
    Int left = length;
    for (Int index = length - 1; index >= first; --index) {
        flow[path[index]] -= amount;
        if (flow[path[index]] <= least) left = index;
    }
    for (const Rank link : path.from(left)) state[src[link]] = UNSEEN;
    return left;
}

void cancel_cycles(Span<const Int> outgoing, Span<const Rank> outgoing_links, Span<const Rank> src,
                   Span<const Rank> dst, double least, Span<double> flow) {
    const Int nodes = outgoing.size() - 1;
    auto state = zeros<std::int8_t>(nodes);
    auto next = copy(outgoing.first(nodes));  // next link to try, by node
    auto path = empty<Rank>(nodes);
    for (Int start = 0; start < nodes; ++start) {
        if (state[start] != UNSEEN) continue;
        for (Int node = start, length = 0;;) {
            state[node] = ON_PATH;
            const auto leads_on = [&](Int link) { return flow[link] > least && state[dst[link]] != DONE; };
            while (next[node] < outgoing[node + 1] && !leads_on(outgoing_links[next[node]])) ++next[node];
            if (next[node] == outgoing[node + 1]) {
                state[node] = DONE;
                if (length == 0) break;
                node = src[path[--length]];
                continue;
            }
            const Int link = outgoing_links[next[node]];
            path[length++] = link;
            node = dst[link];
            if (state[node] == ON_PATH) {
                length = cancel(path.first(length), src, node, least, flow, state);
                node = src[path[length]];
            }
        }
    }
}

// Flows that follow link prices: every node receives what it needs over the links on its cheapest paths.
//
// A node distributes its need over its links in proportion to exp(-extra / temperature), where `extra` is how much more
// a path over the link costs than the cheapest path. So flows change smoothly with prices, and only prices are stored.

constexpr double COLDEST = 30.0;

struct PricedNetwork {
    Span<const Int> incoming;
    Span<const Rank> src;
    Span<const Int> outgoing;
    Span<const Rank> outgoing_links, dst;
    Span<const Int, 2> demand;

    auto fields() { return std::tie(incoming, src, outgoing, outgoing_links, dst, demand); }
};

// Find the price of the cheapest path from `source` to each node (Dijkstra's algorithm).
void find_distances(Span<const Int> outgoing, Span<const Rank> outgoing_links, Span<const Rank> dst,
                    Span<const double> prices, Rank source, Span<double> distance) {
    NodeHeap heap;
    fill(distance, INFINITE);
    distance[source] = 0.0;
    heap.emplace(0.0, source);
    while (!heap.empty()) {
        const auto [reached, node] = take_top(heap);
        if (reached > distance[node]) continue;
        for (const Rank link : outgoing_links.part(outgoing[node], outgoing[node + 1])) {
            const double candidate = reached + prices[link];
            if (candidate >= distance[dst[link]]) continue;
            distance[dst[link]] = candidate;
            heap.emplace(candidate, dst[link]);
        }
    }
}

void price_distances(Span<const Int> outgoing, Span<const Rank> outgoing_links, Span<const Rank> dst,
                     Span<const double> prices, Span<const Rank> sources, Span<double, 2> distances) {
    for (Int index = 0; index < sources.size(); ++index)
        find_distances(outgoing, outgoing_links, dst, prices, sources[index], distances.row(index));
}

// Find the weight of each link, 0 if it does not lead to a farther node, and the sum of the weights into each node.
// order: nodes by distance
//
// A price may be too small to change a distance, so that a node and its predecessor on the cheapest path are equally
// far. Such nodes are sorted along these paths, and the link between them gets a weight. So each node has a link
// without extra cost, and no sum is below 1.
void weigh(const PricedNetwork& network, Span<const double> prices, double temperature, Span<const double> distance,
           Span<Int> order, Span<double> weight, Span<double> total) {
    std::vector<char> comes_before(distance.size(), false);
    const auto cost = [&](Int link) { return distance[network.src[link]] + prices[link]; };
    const auto is_reached = [&](Int node) {
        for (Int link = network.incoming[node]; link < network.incoming[node + 1]; ++link)
            if (comes_before[network.src[link]] && cost(link) == distance[node]) return true;
        return false;
    };
    total[order[0]] = 1.0;
    comes_before[order[0]] = true;
    for (auto rest = order.from(1); rest.size() > 0; rest = rest.from(1)) {
        if (rest.size() > 1 && distance[rest[0]] == distance[rest[1]]) {
            const auto next = std::find_if(rest.begin(), rest.end(), is_reached);
            if (next != rest.end()) std::rotate(rest.begin(), next, next + 1);
        }
        const Int node = rest[0];
        const double here = distance[node];
        double sum_of_weights = 0.0;
        for (Int link = network.incoming[node]; link < network.incoming[node + 1]; ++link) {
            const Int tail = network.src[link];
            const double extra = cost(link) - here;
            weight[link] = 0.0;
            const bool leads_on = distance[tail] < here || (comes_before[tail] && extra == 0.0);
            if (leads_on && extra <= COLDEST * temperature) {
                weight[link] = total[tail] * std::exp(-extra / temperature);
                sum_of_weights += weight[link];
            }
        }
        total[node] = sum_of_weights;
        comes_before[node] = true;
    }
}

// A node takes what it needs only from earlier nodes, so that data have arrived before they are forwarded.
std::tuple<double, double> add_priced_loads(const PricedNetwork& network, Span<const Rank> sources,
                                            Span<const Int> weights, Span<const double> prices, double temperature,
                                            Int units, Span<Int> loads) {
    const Int nodes = network.demand.shape[1];
    auto distance = empty<double>(nodes), total = empty<double>(nodes), weight = zeros<double>(prices.size());
    auto need = empty<Int>(nodes);
    double smooth = 0.0, paid = 0.0;
    for (Int index = 0; index < sources.size(); ++index) {
        const Int times = weights[index];
        const auto demand = network.demand.row(index % network.demand.shape[0]);
        find_distances(network.outgoing, network.outgoing_links, network.dst, prices, sources[index], distance);
        const auto order = sorting_order(distance);
        weigh(network, prices, temperature, distance, order, weight, total);
        for (Int node = 0; node < nodes; ++node) {
            need[node] = demand[node] * units;
            const double wanted = times * demand[node];
            paid += wanted * distance[node];
            smooth += wanted * (distance[node] - temperature * std::log(total[node]));
        }
        for (Int step = nodes - 1; step > 0; --step) {
            const Int node = order[step];
            Int missing = need[node], heaviest = -1;
            const double share = missing / total[node];
            for (Int link = network.incoming[node]; link < network.incoming[node + 1]; ++link) {
                if (weight[link] <= 0.0) continue;
                const Int flow = std::min(missing, static_cast<Int>(share * weight[link]));
                missing -= flow;
                loads[link] += times * flow;
                need[network.src[link]] += flow;
                if (heaviest < 0 || weight[link] > weight[heaviest]) heaviest = link;
            }
            if (missing > 0) {  // lost by rounding down
                if (heaviest < 0) throw std::invalid_argument("no path leads to node " + std::to_string(node));
                loads[heaviest] += times * missing;
                need[network.src[heaviest]] += missing;
            }
        }
    }
    return {paid, smooth};
}

// Moves parts of paths from busy links to the cheapest paths, and writes the flow of each source on each link.
void relieve_flows(Span<const Int> incoming, Span<const Int> outgoing, Span<const Rank> outgoing_links,
                   Span<const Rank> src, Span<const Rank> dst, Span<const Int> source, Span<const Int> target,
                   Span<const Int> amount, Span<const Int> offsets, Span<const Rank> links, Span<const double> room,
                   Int rounds, Span<double, 2> flows) {
    using Path = std::vector<Rank>;
    std::vector<std::map<std::pair<Int, Path>, Int>> amounts(flows.shape[0]);  // by source: amount per (target, path)
    LinkLoads loads({room.begin(), room.end()});
    for (Int i = 0; i < source.size(); ++i) {
        const auto path = links.part(offsets[i], offsets[i + 1]);
        amounts[source[i]][{target[i], Path(path.begin(), path.end())}] += amount[i];
        loads.add(path, static_cast<double>(amount[i]));
    }
    auto prices = zeros<double>(src.size());
    auto distance = zeros<double>(outgoing.size() - 1);
    const auto cost = [&](Int link) { return distance[src[link]] + prices[link]; };
    loads.relieve(rounds, [&](Int) {
        for (Rank from = 0; from < flows.shape[0]; ++from) {
            std::vector<std::pair<Int, Path>> busy;
            for (const auto& [piece, units] : amounts[from])
                if (units > 0 && loads.is_busy(piece.second)) busy.push_back(piece);
            if (busy.empty()) continue;
            for (Int link = 0; link < src.size(); ++link) prices[link] = loads.price(link) + 1e-6;
            find_distances(outgoing, outgoing_links, dst, prices, from, distance);
            for (const auto& piece : busy) {
                Path path;
                for (Int node = piece.first; node != from; node = src[path.back()]) {
                    Int best = incoming[node];
                    for (Int link = best; link < incoming[node + 1]; ++link)
                        if (cost(link) < cost(best)) best = link;
                    path.push_back(static_cast<Rank>(best));
                }
                std::reverse(path.begin(), path.end());
                if (loads.price_of(path) >= loads.price_of(piece.second)) continue;
                const Int part = loads.move(piece.second, path, amounts[from][piece]);
                amounts[from][piece] -= part;
                amounts[from][{piece.first, path}] += part;
            }
        }
    });
    for (Int row = 0; row < flows.shape[0]; ++row)
        for (const auto& [piece, units] : amounts[row])
            for (const Rank link : piece.second) flows(row, link) += static_cast<double>(units);
}

// Trees along which ranks copy data. Each path leads from a rank that has the data to the nearest target.
class Trees {
public:
    struct Edge {
        Int sender, receiver, depth;
        std::vector<Rank> links;
    };
    using Tree = std::vector<Edge>;

    Trees(Span<const Int> outgoing, Span<const Rank> outgoing_links, Span<const Rank> src, Span<const Rank> dst,
          Int ranks, Span<const double> room)
        : outgoing_(outgoing), outgoing_links_(outgoing_links), src_(src), dst_(dst), ranks_(ranks),
          loads({room.begin(), room.end()}), distance_(outgoing.size() - 1), reached_(distance_.size()),
          depth_(distance_.size()) {}

    Tree grow(Int source, Span<const Int> targets) {
        std::vector<double> prices(src_.size());
        for (Int link = 0; link < src_.size(); ++link) prices[link] = loads.price(link) + 1e-6;
        std::fill(distance_.begin(), distance_.end(), INFINITE);
        std::vector<char> is_missing(distance_.size());
        Int missing = 0;
        for (const Int target : targets)
            if (target != source) is_missing[target] = 1, ++missing;
        Tree tree;
        start(source, 0);
        while (missing > 0) {
            if (heap_.empty()) throw std::invalid_argument("a target cannot be reached");
            const auto [cost, node] = take_top(heap_);
            if (cost > distance_[node]) continue;
            if (is_missing[node]) {
                missing -= join(node, tree, is_missing);
                continue;
            }
            for (const Rank link : outgoing_links_.part(outgoing_[node], outgoing_[node + 1])) {
                const double candidate = cost + prices[link];
                if (candidate >= distance_[dst_[link]]) continue;
                distance_[dst_[link]] = candidate;
                reached_[dst_[link]] = link;
                heap_.emplace(candidate, dst_[link]);
            }
        }
        heap_ = {};
        return tree;
    }
    static std::vector<Rank> links_of(const Tree& tree) {
        std::vector<Rank> links;
        for (const Edge& edge : tree) links.insert(links.end(), edge.links.begin(), edge.links.end());
        return links;
    }

private:
    void start(Int rank, Int depth) {
        distance_[rank] = 0;
        reached_[rank] = -1;
        depth_[rank] = depth;
        heap_.emplace(0.0, static_cast<Rank>(rank));
    }
    // Adds the path to `node`; all ranks on it then have the data. Returns how many of them are targets.
    Int join(Int node, Tree& tree, std::vector<char>& is_missing) {
        std::vector<Rank> path;
        Int at = node, found = 0;
        for (; reached_[at] >= 0; at = src_[reached_[at]]) path.push_back(static_cast<Rank>(reached_[at]));
        Edge edge{at, -1, depth_[at], {}};
        for (auto link = path.rbegin(); link != path.rend(); ++link) {
            edge.links.push_back(*link);
            edge.receiver = dst_[*link];
            if (edge.receiver >= ranks_) continue;
            found += is_missing[edge.receiver];
            is_missing[edge.receiver] = 0;
            start(edge.receiver, edge.depth + 1);
            tree.push_back(edge);
            edge = {edge.receiver, -1, edge.depth + 1, {}};
        }
        return found;
    }

    Span<const Int> outgoing_;
    Span<const Rank> outgoing_links_, src_, dst_;
    Int ranks_;

public:
    LinkLoads loads;

private:
    std::vector<double> distance_;
    std::vector<Int> reached_, depth_;  // the link over which a node is reached, -1 if it has the data
    NodeHeap heap_;
};

// Grows a tree for each row, and grows it again while its links are too busy and another tree is better.
auto copy_trees(Span<const Int> outgoing, Span<const Rank> outgoing_links, Span<const Rank> src, Span<const Rank> dst,
                Int ranks, Span<const Int> source, Span<const Int> offsets, Span<const Int> targets,
                Span<const Int> amount, Span<const double> room, Int rounds) {
    Trees trees(outgoing, outgoing_links, src, dst, ranks, room);
    std::vector<Trees::Tree> of_row(source.size());
    const auto grown = [&](Int row) { return trees.grow(source[row], targets.part(offsets[row], offsets[row + 1])); };
    for (Int row = 0; row < source.size(); ++row) {
        of_row[row] = grown(row);
        trees.loads.add(Trees::links_of(of_row[row]), static_cast<double>(amount[row]));
    }
    trees.loads.relieve(rounds, [&](Int) {
        for (Int row = 0; row < source.size(); ++row) {
            const auto links = Trees::links_of(of_row[row]);
            const double units = static_cast<double>(amount[row]);
            if (!trees.loads.is_busy(links)) continue;
            const double price = trees.loads.price_of(links);
            trees.loads.add(links, -units);
            auto tree = grown(row);
            trees.loads.add(Trees::links_of(tree), units);
            if (trees.loads.price_of(Trees::links_of(tree)) < price) {
                of_row[row] = std::move(tree);
                continue;
            }
            trees.loads.add(Trees::links_of(tree), -units);
            trees.loads.add(links, units);
        }
    });
    std::vector<Int> rows, senders, receivers, depths, ends{0};
    std::vector<Rank> links;
    for (Int row = 0; row < source.size(); ++row)
        for (const auto& edge : of_row[row]) {
            rows.push_back(row);
            senders.push_back(edge.sender);
            receivers.push_back(edge.receiver);
            depths.push_back(edge.depth);
            links.insert(links.end(), edge.links.begin(), edge.links.end());
            ends.push_back(static_cast<Int>(links.size()));
        }
    return std::make_tuple(Array<Int>(std::move(rows)), Array<Int>(std::move(senders)), Array<Int>(std::move(receivers)),
                           Array<Int>(std::move(depths)), Array<Int>(std::move(ends)), Array<Rank>(std::move(links)));
}

// Converts approximate flows to integral flows that deliver every unit.

constexpr double TRACE = 1e-15;
constexpr double LEAST_SHARE = 1e-6;

struct Rounding {
    Span<const Int> incoming, outgoing;
    Span<const Rank> outgoing_links, src, dst;
    Span<const double> capacity;
    Span<double> debt;  // by link: total amount lost by rounding
    Array<Int> position, need;
    Array<Rank> order;
    Array<double> inflow, covered;

    // Find an order of nodes and each node's position in it (-1: not reached); return the number of reached nodes.
    //
    // The next node is the one with the largest part of its inflow from ordered nodes: all of it, except for rounding.
    // Links against the order are dropped later, so the result is acyclic for any flow.
    Int order_along(Int source, Span<const double> flow) {
        for (Int node = 0; node < inflow.size(); ++node) inflow[node] = sum(flow.part(incoming[node], incoming[node + 1]));
        fill(position, -1);
        fill(covered, 0.0);
        NodeHeap heap;
        heap.emplace(-1.0, source);
        Int count = 0;
        while (!heap.empty()) {
            const Int node = take_top(heap).second;
            if (position[node] >= 0) continue;
            position[node] = count;
            order[count++] = node;
            for (const Rank link : outgoing_links.part(outgoing[node], outgoing[node + 1])) {
                const Int head = dst[link];
                if (position[head] >= 0) continue;
                covered[head] += flow[link];
                heap.emplace(-covered[head] / inflow[head], head);
            }
        }
        return count;
    }

    // Divide what the node at `step` needs among its in-links from earlier nodes, in proportion to their flows.
    void split(Int step, Span<const double> flow, Span<Int> whole) {
        const Int node = order[step], first = incoming[node], last = incoming[node + 1], needed = need[node];
        const auto is_earlier = [&](Int link) { return position[src[link]] < step; };
        double total = 0.0;
        for (Int link = first; link < last; ++link)
            if (is_earlier(link)) total += flow[link];
        Int left = needed;
        for (Int link = first; link < last; ++link) {
            if (!is_earlier(link)) continue;
            const double share = needed * (flow[link] / total);
            whole[link] = static_cast<Int>(share);
            debt[link] += share - whole[link];
            left -= whole[link];
        }
        for (; left > 0; --left) {
            Int best = -1;
            double least = 0.0;
            for (Int link = first; link < last; ++link) {
                const double beyond = (1.0 - debt[link]) / capacity[link];
                const bool is_eligible = is_earlier(link) && needed * flow[link] > LEAST_SHARE * total;
                if (is_eligible && (best < 0 || beyond < least)) {
                    best = link;
                    least = beyond;
                }
            }
            ++whole[best];
            debt[best] -= 1.0;
        }
        for (Int link = first; link < last; ++link) need[src[link]] += whole[link];
    }
};

// Remove cycles, order the nodes along the flow, and pass the nodes' needs back in reverse order.
void route(Span<const Int> incoming, Span<const Int> outgoing, Span<const Rank> outgoing_links, Span<const Rank> src,
           Span<const Rank> dst, Span<const Int, 2> demand, Span<const Rank> sources, Span<const double, 2> flows,
           Int units, Span<const double> capacity, Span<double> debt, Span<Int, 2> whole) {
    const Int nodes = demand.shape[1];
    Rounding rounding{incoming, outgoing, outgoing_links, src, dst, capacity, debt, empty<Int>(nodes), empty<Int>(nodes),
                      empty<Rank>(nodes), empty<double>(nodes), empty<double>(nodes)};
    for (Int index = 0; index < sources.size(); ++index) {
        auto flow = copy(flows.row(index));
        for (double& amount : flow) amount = std::max(amount, 0.0);
        cancel_cycles(outgoing, outgoing_links, src, dst, TRACE, flow);
        for (double& amount : flow) amount += TRACE;
        const Int count = rounding.order_along(sources[index], flow);
        for (Int node = 0; node < nodes; ++node) rounding.need[node] = demand(index % demand.shape[0], node) * units;
        for (Int step = count - 1; step > 0; --step)
            if (rounding.need[rounding.order[step]] > 0) rounding.split(step, flow, whole.row(index));
    }
}

std::tuple<Int, Int> peel(Span<const Int> incoming, Span<const Rank> src, Span<const Int> demand, Int source, Int units,
                          Span<Int> flow, Span<Int, 2> rows, Span<Rank> links) {
    Int used = 0, count = 0;
    for (Int target = 0; target < demand.size(); ++target) {
        Int missing = units * demand[target], first = 0;
        while (missing > 0) {
            const Int start = used;
            Int node = target, amount = missing;
            while (node != source) {
                Int widest = incoming[node];
                for (Int link = incoming[node]; link < incoming[node + 1]; ++link)
                    if (flow[link] > flow[widest]) widest = link;
                amount = std::min(amount, flow[widest]);
                links[used++] = widest;
                node = src[widest];
            }
            const auto path = links.part(start, used);
            std::reverse(path.begin(), path.end());
            for (const Rank link : path) flow[link] -= amount;
            assign(rows.row(count++), std::array<Int, 4>{start, target, first, amount});
            first += amount;
            missing -= amount;
        }
    }
    return {count, used};
}

// Colour refinement: finds rows and columns of the linear program that have equal values in some optimum.

constexpr Word OUT = 0x1D8E4E27C47D124F, IN = 0xEB44ACCAB455D165, LOAD = 0x632BE59BD9B4E019;

Word mixed(Word value) { return mix(value + STEP); }

Word column_colour(Word row_src, Word row_dst, Word capacity) {
    return mixed(row_src * OUT + row_dst * IN + capacity * LOAD);
}

void refine_colours(Span<const Rank> src, Span<const Rank> dst, Span<const Rank> link_class, Span<const Rank> sources,
                    Span<const Int> weights, Span<const Word, 2> rows, Span<const Word> capacities,
                    Span<Word, 2> next_rows, Span<Word> next_capacities) {
    for (Int source = 0; source < rows.shape[0]; ++source) {
        const auto old = rows.row(source);
        const auto fresh = next_rows.row(source);
        fill(fresh, 0);
        for (Int link = 0; link < src.size(); ++link) {
            const Int tail = src[link], head = dst[link], kind = link_class[link];
            if (head == sources[source]) continue;  // no flow returns to its source
            const Word colour = column_colour(old[tail], old[head], capacities[kind]);
            fresh[tail] += mixed(colour ^ OUT);
            fresh[head] += mixed(colour ^ IN);
            next_capacities[kind] += weights[source] * mixed(colour ^ LOAD);
        }
        for (Int node = 0; node < fresh.size(); ++node) fresh[node] = mixed(old[node] * FIRST_FACTOR + fresh[node]);
    }
    for (Int index = 0; index < capacities.size(); ++index)
        next_capacities[index] = mixed(capacities[index] * FIRST_FACTOR + next_capacities[index]);
}

// Numbers colours 0, 1, 2, ... in the order in which they are first seen.
class ColourTable {
public:
    Array<Rank> number(Span<const Word> colours) {
        auto result = empty<Rank>(colours.size());
        for (Int index = 0; index < colours.size(); ++index)
            result[index] = numbers_.try_emplace(colours[index], count()).first->second;
        return result;
    }
    Int count() const { return numbers_.size(); }

private:
    std::unordered_map<Word, Rank> numbers_;
};

}  // namespace

void bind_alltoall(nanobind::module_& module) {
    define(module, "add_priced_loads", add_priced_loads);
    define(module, "price_distances", price_distances);
    define(module, "copy_trees", copy_trees);
    define(module, "relieve_flows", relieve_flows);
    define(module, "route", route);
    define(module, "peel", peel);
    define(module, "refine_colours", refine_colours);
    nanobind::class_<ColourTable>(module, "ColourTable")
        .def(nanobind::init<>())
        .def("number", &ColourTable::number, nanobind::call_guard<nanobind::gil_scoped_release>())
        .def_prop_ro("count", &ColourTable::count);
}

}  // namespace chorale
