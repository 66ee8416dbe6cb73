// Splitting off: replaces paths through switches by arcs between their ends, which store the paths.
#include "modules.hpp"

namespace chorale {
namespace {

constexpr Int FAR = 65535;  // as in `chorale.synth.methods.forest.switch_groups`

struct SwitchGroups {
    Span<const Int> member_index, sizes, table_offsets;
    Span<const Hops> distance;
    Span<const Int> turn, port_offsets, cluster_of, group_clusters, cluster_ports, entry_offsets, entries, exit_offsets,
        exits, inner_offsets, inner, length;

    auto fields() {
        return std::tie(member_index, sizes, table_offsets, distance, turn, port_offsets, cluster_of, group_clusters,
                        cluster_ports, entry_offsets, entries, exit_offsets, exits, inner_offsets, inner, length);
    }
    Span<const Int> entries_of(Int port) const { return entries.part(entry_offsets[port], entry_offsets[port + 1]); }
    Span<const Int> exits_of(Int port) const { return exits.part(exit_offsets[port], exit_offsets[port + 1]); }
    Int between(Int group, Int source, Int target) const {
        return distance[table_offsets[group] + member_index[source] * sizes[group] + member_index[target]];
    }
};

struct CutTable {
    Span<const Word, 2> sides;
    Span<const Int> slack;

    auto fields() { return std::tie(sides, slack); }
};

struct Splits {
    Span<const Int> amount, offsets, arcs;

    auto fields() { return std::tie(amount, offsets, arcs); }
};

// The rounds in which pairs of ports of a group are connected. A share is the capacity of a port, divided evenly among
// its partners of the round.
enum Stage : Int {
    ALIGNED_UNIT,    // same position in another cluster: one unit of the share
    ALIGNED,         // same: the rest of the share
    CROSSING_SHARE,  // two different clusters: a share
    CROSSING,        // same: everything left
    WITHIN_SHARE,    // same cluster: a share
    WITHIN,
    RETURN,  // back to the same port: such capacity is dropped
    STAGES
};

// Splits capacity off at groups of switches, without making the slack of any known cut negative.
class Proposal {
public:
    Proposal(const SwitchGroups& groups, Span<const Rank> src, Span<const Rank> dst, Span<const Int> capacity,
             const CutTable& cuts)
        : groups_(groups), src_(src), dst_(dst), sides_(cuts.sides), residual_(copy(capacity)), slack_(copy(cuts.slack)),
          give_(zeros<Int>(groups.cluster_of.size())), take_(zeros<Int>(groups.cluster_of.size())),
          dead_(zeros<Int>(groups.member_index.size())) {
        for (Int port = 0; port < give_.size(); ++port) {
            for (const Int arc : groups.entries_of(port)) give_[port] += capacity[arc];
            for (const Int arc : groups.exits_of(port)) take_[port] += capacity[arc];
        }
        base_ = copy(give_);
    }

    // Connect the ports of a group in one round.
    void offer(Int group, Int stage) {
        const Int first = groups_.port_offsets[group], last = groups_.port_offsets[group + 1];
        if (!any(give_.part(first, last)) || !any(take_.part(first, last))) return;
        if (stage != ALIGNED) assign(base_.part(first, last), give_.part(first, last));
        const auto& around = stage <= ALIGNED ? groups_.group_clusters : groups_.port_offsets;
        const Int shifts = stage == RETURN ? 1 : around[group + 1] - around[group] - 1;
        for (Int shift = 1; shift <= shifts; ++shift) {
            for (Int port = first; port < last; ++port) {
                if (give_[port] == 0) continue;
                const Int partner = partner_of(group, stage, shift, port);
                if (partner < 0 || take_[partner] == 0) continue;
                Int wanted = wanted_units(stage, base_[port], shift, shifts, groups_.turn[group]);
                while (wanted > 0) {
                    find_path(group, port, partner);
                    const Int units = take_path(wanted);
                    if (units == 0) break;
                    amount.push_back(units);
                    arcs.insert(arcs.end(), path_.begin(), path_.end());
                    offsets.push_back(arcs.size());
                    wanted -= units;
                    give_[port] -= units;
                    take_[partner] -= units;
                }
            }
        }
    }

    std::vector<Int> amount, offsets = {0}, arcs;

private:
    static constexpr Int PATIENCE = 32;

    // Return the port `shift` positions further around the group, or -1 if this round does not connect them.
    Int partner_of(Int group, Int stage, Int shift, Int port) const {
        if (stage == RETURN) return port;
        const auto further = [&](Span<const Int> offsets, Int position) {
            const Int after = position + shift;
            return after < offsets[group + 1] ? after : after - (offsets[group + 1] - offsets[group]);
        };
        const Int cluster = groups_.cluster_of[port];
        if (stage <= ALIGNED) {
            const Int other = further(groups_.group_clusters, cluster);
            const Int partner = groups_.cluster_ports[other] + port - groups_.cluster_ports[cluster];
            return partner < groups_.cluster_ports[other + 1] ? partner : -1;
        }
        const Int partner = further(groups_.port_offsets, port);
        const bool is_crossing = groups_.cluster_of[partner] != cluster;
        return is_crossing == (stage <= CROSSING) ? partner : -1;
    }

    static Int wanted_units(Int stage, Int base, Int shift, Int shifts, Int turn) {
        if (stage == CROSSING || stage == WITHIN || stage == RETURN) return base;
        const Int each = base / shifts, rest = base % shifts;
        // Groups with equal ports start at different shifts, so that they connect different pairs.
        const Int start = turn * rest % shifts;
        const Int share = each + (rest * shift + start) / shifts - (rest * (shift - 1) + start) / shifts;
        if (stage == ALIGNED_UNIT) return std::min<Int>(1, share);
        return stage == ALIGNED ? std::max<Int>(0, share - 1) : share;
    }

    // Find a shortest open path between two ports; empty if none is found.
    //
    // At every switch, the search continues over the arc with most capacity left. At a dead end, it turns back.
    void find_path(Int group, Int port, Int partner) {
        path_.clear();
        const auto [entry, leave] = nearest_ends(group, port, partner);
        if (entry < 0) return;
        path_.push_back(entry);
        ++search_;
        const Int start = dst_[entry], target = src_[leave];
        Int blind_ends = 0;
        for (Int node = start; node != target;) {
            const Int onward = next_arc(group, node, target);
            if (onward >= 0) {
                path_.push_back(onward);
                node = dst_[onward];
            } else if (node == start || ++blind_ends > PATIENCE) {
                path_.clear();
                return;
            } else {
                dead_[node] = search_;
                node = src_[path_.back()];
                path_.pop_back();
            }
        }
        path_.push_back(leave);
    }

    // Return the open arcs (into the group, out of it) with the shortest path between them, or (-1, -1).
    std::pair<Int, Int> nearest_ends(Int group, Int port, Int partner) const {
        Int fewest = FAR, widest = 0;
        std::pair<Int, Int> ends{-1, -1};
        for (const Int into : groups_.entries_of(port)) {
            for (const Int out : groups_.exits_of(partner)) {
                const Int length = groups_.between(group, dst_[into], src_[out]);
                const Int width = std::min(residual_[into], residual_[out]);
                if (width <= 0 || length >= FAR) continue;
                if (length < fewest || (length == fewest && width > widest)) {
                    fewest = length;
                    widest = width;
                    ends = {into, out};
                }
            }
        }
        return ends;
    }

    // Return the open arc with most capacity left on a shortest path from `node` to `target`, or -1.
    Int next_arc(Int group, Int node, Int target) const {
        const Int away = groups_.between(group, node, target);
        Int best = -1, widest = 0;
        for (const Int arc : groups_.inner.part(groups_.inner_offsets[node], groups_.inner_offsets[node + 1])) {
            const Int after = dst_[arc];
            if (residual_[arc] <= widest || dead_[after] == search_) continue;
            if (groups_.between(group, after, target) + groups_.length[arc] == away) {
                best = arc;
                widest = residual_[arc];
            }
        }
        return best;
    }

    // Subtract up to `demand` units of the path from residuals and from the slack of cuts; return how many.
    Int take_path(Int demand) {
        if (path_.empty()) return 0;
        Int units = demand;
        for (const Int arc : path_) units = std::min(units, residual_[arc]);
        each_crossing([&](Int cut, Int times) { units = std::min(units, std::max<Int>(0, slack_[cut]) / times); });
        if (units == 0) return 0;
        for (const Int arc : path_) residual_[arc] -= units;
        each_crossing([&](Int cut, Int times) { slack_[cut] -= times * units; });
        return units;
    }

    // Calls function(cut, times) for each known cut that loses capacity when the path is split off. `times` is how many
    // units it loses per unit of the path.
    //
    // Splitting off (u, w), (w, t) reduces the cuts that have w on one side, and u and t on the other.
    template <class Function>
    void each_crossing(Function function) const {
        for (Int word = 0; word < sides_.shape[1]; ++word) {
            const Word start = sides_(src_[path_[0]], word);
            const auto lost_by = [&](std::size_t index) {
                const Word middle = sides_(dst_[path_[index]], word), after = sides_(dst_[path_[index + 1]], word);
                return ~(start ^ after) & (start ^ middle);
            };
            Word all = 0;
            for (std::size_t index = 0; index + 1 < path_.size(); ++index) all |= lost_by(index);
            each_bit(all, [&](Int bit) {
                Int times = 0;
                for (std::size_t index = 0; index + 1 < path_.size(); ++index) times += (lost_by(index) >> bit) & 1;
                function(64 * word + bit, times);
            });
        }
    }

    const SwitchGroups& groups_;
    Span<const Rank> src_, dst_;  // ends of arcs
    Span<const Word, 2> sides_;
    Array<Int> residual_, slack_;      // units left on arcs, and slack of known cuts
    Array<Int> give_, take_, base_;    // units left on the arcs of a port into and out of its group; give_ at the
                                       // start of the round
    Array<Int> dead_;                  // by node: the last search in which it was a dead end
    Int search_ = 0;
    std::vector<Int> path_;
};

std::tuple<Array<Int>, Array<Int>, Array<Int>> propose(const SwitchGroups& groups, Span<const Rank> src,
                                                       Span<const Rank> dst, Span<const Int> capacity,
                                                       const CutTable& cuts, bool aligned, bool returns) {
    Proposal proposal(groups, src, dst, capacity, cuts);
    for (Int group = 0; group < groups.sizes.size(); ++group)
        for (Int stage = aligned ? ALIGNED_UNIT : CROSSING_SHARE; stage < (returns ? STAGES : RETURN); ++stage)
            proposal.offer(group, stage);
    return {std::move(proposal.amount), std::move(proposal.offsets), std::move(proposal.arcs)};
}

// The composition of each arc's capacity: units that take the same path of original arcs.
struct PathPieces {
    Span<const Int> offsets, amount, start, length;
    Span<const Rank> hops;

    auto fields() { return std::tie(offsets, amount, start, length, hops); }
    Span<const Rank> path_of(Int piece) const { return hops.part(start[piece], start[piece] + length[piece]); }
};

// A path from which cycles are removed as it grows.
class SimplePath {
public:
    SimplePath(Span<const Rank> dst, Int nodes) : dst_(dst), place_(full<Rank>(-1, nodes)) {}

    void start(Int origin) {
        place_[origin] = 0;
        origin_ = origin;
    }

    void append(Rank hop) {
        Rank& place = place_[dst_[hop]];
        if (place < 0) {
            hops.push_back(hop);
            place = hops.size();
        } else {
            cut(place);
        }
    }

    void clear() {
        cut(0);
        place_[origin_] = -1;
    }

    std::vector<Rank> hops;

private:
    void cut(std::size_t length) {
        for (; hops.size() > length; hops.pop_back()) place_[dst_[hops.back()]] = -1;
    }

    Span<const Rank> dst_;
    Array<Rank> place_;  // number of hops to each node, -1 if it is not on the path
    Int origin_ = 0;
};

std::tuple<Array<Int>, Array<Int>, Array<Int>, Array<Int>, Array<Rank>> join_pieces(const PathPieces& pieces,
                                                                                    Span<Int> left,
                                                                                    const Splits& splits,
                                                                                    Span<const Rank> src,
                                                                                    Span<const Rank> dst, Int nodes) {
    std::vector<Int> of_split, amounts, starts, lengths;
    std::vector<Rank> hops(pieces.hops.begin(), pieces.hops.end());
    SimplePath path(dst, nodes);
    auto cursor = copy(pieces.offsets);
    for (Int split = 0; split < splits.amount.size(); ++split) {
        const auto arcs = splits.arcs.part(splits.offsets[split], splits.offsets[split + 1]);
        for (Int wanted = splits.amount[split], amount; wanted > 0; wanted -= amount) {
            amount = wanted;
            for (const Int arc : arcs) {
                while (left[cursor[arc]] == 0) ++cursor[arc];
                amount = std::min(amount, left[cursor[arc]]);
            }
            path.start(src[pieces.path_of(cursor[arcs[0]])[0]]);
            for (const Int arc : arcs) {
                left[cursor[arc]] -= amount;
                for (const Rank hop : pieces.path_of(cursor[arc])) path.append(hop);
            }
            if (!path.hops.empty()) {
                of_split.push_back(split);
                amounts.push_back(amount);
                starts.push_back(hops.size());
                lengths.push_back(path.hops.size());
                hops.insert(hops.end(), path.hops.begin(), path.hops.end());
            }
            path.clear();
        }
    }
    return {std::move(of_split), std::move(amounts), std::move(starts), std::move(lengths), std::move(hops)};
}

std::tuple<Array<Int>, Array<Int>, Array<Int>, Array<Int>, Array<Rank>> pieces_over_links(
    const PathPieces& pieces, Span<const Int> link_offsets, Span<const Rank> links, Span<const Int> room) {
    const Int arcs = pieces.offsets.size() - 1;
    std::vector<Int> amounts, starts, lengths;
    std::vector<Rank> hops;
    auto offsets = zeros<Int>(arcs + 1), cursor = copy(link_offsets), left = copy(room);
    for (Int arc = 0; arc < arcs; ++arc) {
        for (Int piece = pieces.offsets[arc]; piece < pieces.offsets[arc + 1]; ++piece) {
            const auto path = pieces.path_of(piece);
            for (Int wanted = pieces.amount[piece], amount; wanted > 0; wanted -= amount) {
                amount = wanted;
                for (const Rank hop : path) {
                    while (left[cursor[hop]] == 0) ++cursor[hop];
                    amount = std::min(amount, left[cursor[hop]]);
                }
                amounts.push_back(amount);
                starts.push_back(hops.size());
                lengths.push_back(path.size());
                for (const Rank hop : path) {
                    hops.push_back(links[cursor[hop]]);
                    left[cursor[hop]] -= amount;
                }
            }
        }
        offsets[arc + 1] = amounts.size();
    }
    return {offsets, std::move(amounts), std::move(starts), std::move(lengths), std::move(hops)};
}

}  // namespace

void bind_splitting(nanobind::module_& module) {
    define(module, "propose", propose);
    define(module, "join_pieces", join_pieces);
    define(module, "pieces_over_links", pieces_over_links);
}

}  // namespace chorale
