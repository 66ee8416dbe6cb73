// Traffic over boxes with rails: distributes it over NICs, and computes the load of every lane and NIC.
#include "modules.hpp"

namespace chorale {
namespace {

// Loads of lanes inside boxes (from a rank to the place of another in its box) and of NICs (out and in).
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
        if (sender != source) inside(source, place[sender]) += amount;
        out[sender] += amount;
        in[receiver] += amount;
        if (receiver != target) inside(receiver, place[target]) += amount;
    }
};

void add_relayed_loads(Span<const Int, 2> amounts, Span<const Rank, 2> senders, Span<const Rank, 2> receivers,
                       RailLoads loads) {
    for (Int source = 0; source < amounts.shape[0]; ++source)
        for (Int target = 0; target < amounts.shape[1]; ++target)
            if (const Int amount = amounts(source, target); amount > 0 && source != target)
                loads.add(source, target, senders(source, target), receivers(source, target), amount);
}

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
    // A share of an amount in whole units; the remainder is added to the next share.
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
    return std::make_tuple(Array<Rank>(std::move(pieces.source)), Array<Rank>(std::move(pieces.target)),
                           Array<Rank>(std::move(pieces.sender)), Array<Rank>(std::move(pieces.receiver)),
                           Array<Int>(std::move(pieces.amount)));
}

}  // namespace

void bind_rails(nanobind::module_& module) {
    define(module, "add_relayed_loads", add_relayed_loads);
    define(module, "add_piece_loads", add_piece_loads);
    define(module, "split_over_rails", split_over_rails);
}

}  // namespace chorale
