// Distributes traffic between boxes with rails over NICs, and computes the load of every lane and NIC.
#include <unordered_map>

#include "modules.hpp"
#include "relief.hpp"

namespace chorale {
namespace {

// Loads of lanes inside boxes (from a rank to the place of another rank in its box) and of NICs (out and in).
struct RailLoads {
    Span<const Rank> place;
    Span<Int, 2> inside;
    Span<Int> out, in;

    auto fields() { return std::tie(place, inside, out, in); }
    void add(Int source, Int target, Int sender, Int receiver, Int amount) const {
        if (sender < 0) {
            inside(source, place[target]) += amount;
            return;
        }
        if (sender == receiver) {
            inside(source, place[sender]) += amount;
            inside(sender, place[target]) += amount;
            return;
        }
        if (sender != source && place[sender] == place[source]) {  // both are in another box, which relays
            out[source] += amount;
            in[sender] += amount;
            inside(sender, place[receiver]) += amount;
            out[receiver] += amount;
            in[target] += amount;
            return;
        }
        if (sender != source) inside(source, place[sender]) += amount;
        out[sender] += amount;
        in[receiver] += amount;
        if (receiver != target) inside(receiver, place[target]) += amount;
    }
};

void add_piece_loads(Span<const Rank> source, Span<const Rank> target, Span<const Rank> sender,
                     Span<const Rank> receiver, Span<const Int> amount, RailLoads loads) {
    for (Int piece = 0; piece < amount.size(); ++piece)
        loads.add(source[piece], target[piece], sender[piece], receiver[piece], amount[piece]);
}

struct Pieces {
    std::vector<Rank> source, target, sender, receiver;
    std::vector<Int> amount;

    void add(Rank from, Rank to, Rank out, Rank in, Int count) {
        if (count == 0) return;
        source.push_back(from);
        target.push_back(to);
        sender.push_back(out);
        receiver.push_back(in);
        amount.push_back(count);
    }
    auto arrays() {
        return std::make_tuple(Array<Rank>(std::move(source)), Array<Rank>(std::move(target)),
                               Array<Rank>(std::move(sender)), Array<Rank>(std::move(receiver)),
                               Array<Int>(std::move(amount)));
    }
};

// The traffic from the ranks of one box to those of another, in shares per rail that balance the NICs.
class BoxPair {
public:
    BoxPair(Int places, Span<const Int, 2> amounts, Span<const double, 2> widths, Span<const double, 2> own)
        : amounts_(amounts), widths_(widths), own_(own), rest_(places * places), near_(places * places),
          far_(places * places), carry_(zeros<double>(2, widths.shape[1])), used_(places), quota_(places), order_(places), busy_(places) {}

    void split(Span<const Rank> from, Span<const Rank> to, std::vector<double>& busy_out, std::vector<double>& busy_in,
               Pieces& pieces) {
        const Int places = from.size();
        std::fill(used_.begin(), used_.end(), 0);
        Int total = 0;
        for (Int i = 0; i < places; ++i)
            for (Int j = 0; j < places; ++j) {
                const Int amount = amounts_(from[i], to[j]), cell = i * places + j;
                near_[cell] = whole(own_(0, from[i]), amount, amount, carry_(0, from[i]));
                far_[cell] = whole(own_(1, to[j]), amount, amount - near_[cell], carry_(1, to[j]));
                rest_[cell] = amount - near_[cell] - far_[cell];
                used_[i] += near_[cell];
                used_[j] += far_[cell];
                total += rest_[cell];
            }
        set_quotas(from, to, total, busy_out, busy_in);
        for (Int r = 0; r < places; ++r) {
            busy_out[from[r]] += static_cast<double>(used_[r] + quota_[r]) / widths_(0, from[r]);
            busy_in[to[r]] += static_cast<double>(used_[r] + quota_[r]) / widths_(1, to[r]);
        }
        for (Int shift = 0; shift < places; ++shift)
            for (Int i = 0; i < places; ++i) keep(i, i * places + (i + shift) % places, near_);
        for (Int shift = 0; shift < places; ++shift)
            for (Int j = 0; j < places; ++j) keep(j, (j + shift) % places * places + j, far_);
        Int rail = 0;
        for (Int i = 0; i < places; ++i)
            for (Int j = 0; j < places; ++j) {
                const Int cell = i * places + j;
                const Int both = i == j ? far_[cell] : 0;
                pieces.add(from[i], to[j], from[i], to[i], near_[cell] + both);
                pieces.add(from[i], to[j], from[j], to[j], far_[cell] - both);
                while (rest_[cell] > 0) {
                    while (quota_[rail] == 0) rail = rail + 1 == places ? 0 : rail + 1;
                    const Int part = std::min(quota_[rail], rest_[cell]);
                    pieces.add(from[i], to[j], from[rail], to[rail], part);
                    quota_[rail] -= part;
                    rest_[cell] -= part;
                }
            }
    }

private:
    // Return a share of an amount in whole units; the remainder is added to the next share.
    static Int whole(double share, Int amount, Int most, double& carry) {
        const double wanted = share * static_cast<double>(amount) + carry;
        const Int units = std::min(static_cast<Int>(wanted), most);
        carry = std::min(wanted - static_cast<double>(units), 1.0);
        return units;
    }
    // Fill the rails to the same level of time; single units go to the NICs with the smallest load.
    void set_quotas(Span<const Rank> from, Span<const Rank> to, Int total, const std::vector<double>& busy_out,
                    const std::vector<double>& busy_in) {
        const Int places = from.size();
        const auto width = [&](Int r) { return std::min(widths_(0, from[r]), widths_(1, to[r])); };
        const auto level_of = [&](Int r) { return static_cast<double>(used_[r]) / width(r); };
        std::iota(order_.begin(), order_.end(), Int{0});
        std::stable_sort(order_.begin(), order_.end(), [&](Int a, Int b) { return level_of(a) < level_of(b); });
        double level = 0, filled = static_cast<double>(total), widths = 0;
        for (Int place = 0; place < places; ++place) {
            const Int r = order_[place];
            if (place > 0 && level_of(r) >= level) break;
            filled += static_cast<double>(used_[r]);
            widths += width(r);
            level = filled / widths;
        }
        Int left = total;
        for (Int r = 0; r < places; ++r) {
            const Int room = static_cast<Int>(std::max(double{0}, level * width(r) - static_cast<double>(used_[r])));
            quota_[r] = std::min(room, left);
            left -= quota_[r];
        }
        if (left == 0) return;
        const auto busy = [&](Int r) { return std::max(busy_out[from[r]], busy_in[to[r]]); };
        for (Int r = 0; r < places; ++r) busy_[r] = busy(r);
        std::stable_sort(order_.begin(), order_.end(), [&](Int a, Int b) { return busy_[a] < busy_[b]; });
        for (Int place = 0; left > 0; place = place + 1 == places ? 0 : place + 1) {
            ++quota_[order_[place]];
            --left;
        }
    }
    void keep(Int rail, Int cell, std::vector<Int>& kept) {
        const Int part = std::min(quota_[rail], rest_[cell]);
        kept[cell] += part;
        quota_[rail] -= part;
        rest_[cell] -= part;
    }

    Span<const Int, 2> amounts_;
    Span<const double, 2> widths_, own_;
    std::vector<Int> rest_, near_, far_;
    Array<double, 2> carry_;
    std::vector<Int> used_, quota_, order_;
    std::vector<double> busy_;
};

auto split_over_rails(Span<const Int, 2> amounts, Span<const Rank, 2> members, Span<const double, 2> widths,
                      Span<const double, 2> own) {
    const Int boxes = members.shape[0], places = members.shape[1];
    Pieces pieces;
    BoxPair pair(places, amounts, widths, own);
    std::vector<double> busy_out(amounts.shape[0]), busy_in(amounts.shape[0]);
    for (Int a = 0; a < boxes; ++a)
        for (Int i = 0; i < places; ++i)
            for (Int j = 0; j < places; ++j) {
                const Rank from = members(a, i), to = members(a, j);
                if (i != j) pieces.add(from, to, -1, -1, amounts(from, to));
            }
    for (Int turn = 1; turn < boxes; ++turn)
        for (Int a = 0; a < boxes; ++a)
            pair.split(members.row(a), members.row((a + turn) % boxes), busy_out, busy_in, pieces);
    return pieces.arrays();
}

// Moves pieces from lanes and NICs that are busier than a limit to other paths, with one relay in each box.
class Relief {
public:
    Relief(Span<const Rank, 2> members, Span<const Rank> place, Span<const Rank> rail, Span<const Int, 2> lanes,
           Span<const Int, 2> nics, bool has_switch, double limit)
        : members_(members), place_(place), rail_(rail), box_(place.size()), ranks_(place.size()),
          places_(members.shape[1]), has_switch_(has_switch), nics_(has_switch ? 2 * ranks_ : ranks_ * places_),
          loads_(rooms(lanes, nics, limit)) {
        for (Int b = 0; b < members.shape[0]; ++b)
            for (const Rank rank : members.row(b)) box_[rank] = b;
    }

    void relieve(Pieces& pieces, Int rounds) {
        for (Int i = 0; i < count_of(pieces); ++i) loads_.add(path_of(pieces, i), static_cast<double>(pieces.amount[i]));
        loads_.relieve(rounds, [&](Int round) {
            for (Int i = 0, count = count_of(pieces); i < count; ++i)
                if (pieces.amount[i] > 0) move(pieces, i, round);
        });
    }

private:
    static std::vector<double> rooms(Span<const Int, 2> lanes, Span<const Int, 2> nics, double limit) {
        std::vector<double> result;
        for (const auto& table : {lanes, nics})
            for (Int row = 0; row < table.shape[0]; ++row)
                for (const Int width : table.row(row)) result.push_back(limit * static_cast<double>(width));
        return result;
    }
    // The lanes and NICs of a path.
    struct Path {
        std::array<Int, 6> links;
        Int size = 0;
        void add(Int link) { links[size++] = link; }
        const Int* begin() const { return links.data(); }
        const Int* end() const { return links.data() + size; }
    };

    static Int count_of(const Pieces& pieces) { return static_cast<Int>(pieces.amount.size()); }
    void add_lane(Path& path, Int from, Int to) const {
        if (!has_switch_) return path.add(from * places_ + place_[to]);
        path.add(from);
        path.add(ranks_ + to);
    }
    void add_rail(Path& path, Int from, Int to) const {
        path.add(nics_ + from);
        path.add(nics_ + ranks_ + to);
    }
    Path path(Rank source, Rank target, Rank sender, Rank receiver) const {
        Path path;
        if (sender < 0) {
            add_lane(path, source, target);
        } else if (sender == receiver) {
            add_lane(path, source, sender);
            add_lane(path, sender, target);
        } else if (box_[source] == box_[target] && sender != source) {
            add_rail(path, source, sender);
            add_lane(path, sender, receiver);
            add_rail(path, receiver, target);
        } else {
            if (sender != source) add_lane(path, source, sender);
            add_rail(path, sender, receiver);
            if (receiver != target) add_lane(path, receiver, target);
        }
        return path;
    }
    Path path_of(const Pieces& pieces, Int i) const {
        return path(pieces.source[i], pieces.target[i], pieces.sender[i], pieces.receiver[i]);
    }

    // Calls function(sender, receiver) for the paths of a pair. If many boxes may relay, only a few of them are tried.
    template <class Function>
    void each_choice(Rank source, Rank target, Int round, Function function) const {
        const auto from = members_.row(box_[source]), to = members_.row(box_[target]);
        if (box_[source] != box_[target]) {
            for (Int r = 0; r < places_; ++r) function(from[r], to[r]);
            return;
        }
        function(-1, -1);
        for (const Rank relay : from)
            if (!has_switch_ && relay != source && relay != target) function(relay, relay);
        const Int boxes = members_.shape[0];
        if (boxes > 1 && rail_[source] == rail_[target]) function(source, target);
        for (Int turn = 0; turn < std::min(boxes - 1, kBoxes); ++turn) {
            const Int b = (box_[source] + 1 + (source + target + round * kBoxes + turn) % (boxes - 1)) % boxes;
            function(members_(b, place_[source]), members_(b, place_[target]));
        }
    }

    void move(Pieces& pieces, Int i, Int round) {
        const Path old = path_of(pieces, i);
        if (!loads_.is_busy(old)) return;
        const Rank source = pieces.source[i], target = pieces.target[i];
        Rank sender = -1, receiver = -1;
        const double before = loads_.price_of(old);
        double best = before;
        each_choice(source, target, round, [&](Rank out, Rank in) {
            const double price = loads_.price_of(path(source, target, out, in));
            if (price < best) std::tie(best, sender, receiver) = std::tie(price, out, in);
        });
        if (best >= before) return;
        const Int part = loads_.move(old, path(source, target, sender, receiver), pieces.amount[i]);
        if (part == 0) return;
        pieces.amount[i] -= part;
        Word key = 0;
        for (const Rank rank : {source, target, sender, receiver}) key = key << 16 | static_cast<Word>(rank + 1);
        const auto [entry, is_new] = moved_.try_emplace(key, count_of(pieces));
        if (is_new) pieces.add(source, target, sender, receiver, part);
        else pieces.amount[entry->second] += part;
    }

    static constexpr Int kBoxes = 4;
    Span<const Rank, 2> members_;
    Span<const Rank> place_, rail_;
    std::vector<Int> box_;
    Int ranks_, places_;
    bool has_switch_;
    Int nics_;
    LinkLoads loads_;
    std::unordered_map<Word, Int> moved_;
};

auto relieved(Span<const Rank> source, Span<const Rank> target, Span<const Rank> sender, Span<const Rank> receiver,
              Span<const Int> amount, Span<const Rank, 2> members, Span<const Rank> place, Span<const Rank> rail,
              Span<const Int, 2> lanes, Span<const Int, 2> nics, bool has_switch, double limit, Int rounds) {
    Pieces pieces, kept;
    for (Int i = 0; i < amount.size(); ++i) pieces.add(source[i], target[i], sender[i], receiver[i], amount[i]);
    Relief(members, place, rail, lanes, nics, has_switch, limit).relieve(pieces, rounds);
    for (std::size_t i = 0; i < pieces.amount.size(); ++i)
        kept.add(pieces.source[i], pieces.target[i], pieces.sender[i], pieces.receiver[i], pieces.amount[i]);
    return kept.arrays();
}

}  // namespace

void bind_rails(nanobind::module_& module) {
    define(module, "add_piece_loads", add_piece_loads);
    define(module, "relieved", relieved);
    define(module, "split_over_rails", split_over_rails);
}

}  // namespace chorale
