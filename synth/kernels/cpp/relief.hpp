// Loads of links. Amounts move to other paths if a link is busier than it may be.
#pragma once

#include "arrays.hpp"

namespace chorale {

// Each move lowers the sum over all links of (load in excess of the room)^2 / room. If loads that fit into the room
// exist, the moves approach them.
class LinkLoads {
public:
    // A link's load and room are in the same unit.
    explicit LinkLoads(std::vector<double> room) : room_(std::move(room)), load_(room_.size()) {
        for (const double each : room_) per_room_.push_back(1 / std::max(each, kSlight));
    }

    template <class Path>
    void add(const Path& path, double amount) {
        for (const auto link : path) load_[link] += amount;
    }
    template <class Path>
    bool is_busy(const Path& path) const {
        return std::any_of(path.begin(), path.end(), [&](auto link) { return load_[link] > room_[link]; });
    }
    double price(Int link) const { return excess(link, 0) + kSlight * load_[link] * per_room_[link]; }
    template <class Path>
    double price_of(const Path& path) const {
        double sum = 0;
        for (const auto link : path) sum += price(link);
        return sum;
    }
    // Moves the part of `amount` that makes the sums of relative excesses on both paths equal, found by bisection.
    // Returns this part.
    template <class Old, class New>
    Int move(const Old& old, const New& now, Int amount) {
        const double all = static_cast<double>(amount);
        add(old, -all);
        double low = 0, high = all;
        for (int step = 0; step < 12; ++step) {
            const double middle = (low + high) / 2;
            double gain = 0;
            for (const auto link : old) gain += excess(link, all - middle);
            for (const auto link : now) gain -= excess(link, middle);
            (gain > 0 ? low : high) = middle;
        }
        const Int part = std::min(static_cast<Int>(high + 0.5), amount);
        add(old, static_cast<double>(amount - part));
        add(now, static_cast<double>(part));
        return part;
    }
    // Calls function(round) until no link exceeds its room, or the sum of squares hardly decreases.
    template <class Function>
    void relieve(Int rounds, Function function) {
        double before = std::numeric_limits<double>::max();
        for (Int round = 0; round < rounds; ++round) {
            double squares = 0;
            for (std::size_t link = 0; link < room_.size(); ++link)
                if (const double more = excess(link, 0); more > 0) squares += room_[link] * more * more;
            if (squares == 0 || squares > kSlow * before) break;
            before = squares;
            function(round);
        }
    }

private:
    static constexpr double kSlight = 1e-4, kSlow = 0.98;
    double excess(Int link, double more) const { return std::max(0.0, (load_[link] + more) * per_room_[link] - 1); }
    std::vector<double> room_, load_, per_room_;
};

}  // namespace chorale
