#include "memory.hpp"

#include <algorithm>

#include "elements.hpp"

namespace chorale {
namespace {

constexpr int64_t untouched = -1;  // in outputs before a run; no datum and no sum has this value

// Where the data of a collective come from: position x of rank r's vector, or the sum of all ranks' at x.
class Data {
public:
    explicit Data(const Run& run) : pattern_(run.pattern), ranks_(static_cast<int64_t>(run.pattern.weights.size())) {
        for (auto weight : pattern_.weights) total_weight_ += weight;
    }

    int64_t datum(int rank, size_t position) const {
        const auto [base, slope] = at(position);
        return base + pattern_.weights[rank] * slope;
    }

    int64_t total(size_t position) const {
        const auto [base, slope] = at(position);
        return ranks_ * base + total_weight_ * slope;
    }

private:
    std::pair<int64_t, int64_t> at(size_t position) const {
        uint32_t hashed = static_cast<uint32_t>(position) + pattern_.offset;
        hashed *= 0x9E3779B1U;
        hashed ^= hashed >> 15;
        hashed *= 0x85EBCA77U;
        hashed ^= hashed >> 13;
        return {hashed % pattern_.half, std::max<int64_t>((hashed >> 11) % pattern_.slope_limit, 1)};
    }

    const Pattern& pattern_;
    int64_t ranks_, total_weight_ = 0;
};

// Calls `visit(index, value)` for every element of the input of this rank.
template <class Visit>
void each_input(const Task& task, const Run& run, size_t elements, Visit visit) {
    const Data data(run);
    const size_t start = task.collective == "allgather" ? task.rank * elements : 0;
    for (size_t i = 0; i < elements; i++) visit(i, data.datum(task.rank, start + i));
}

// The same for what the collective leaves in the output; nothing where it leaves that open.
template <class Visit>
void each_output(const Task& task, const Run& run, size_t elements, Visit visit) {
    const Data data(run);
    const size_t shard = run.elements / task.ranks;
    const size_t own = task.rank * shard;
    const auto each = [&](auto value) {
        for (size_t i = 0; i < elements; i++) visit(i, value(i));
    };
    if (task.collective == "allreduce" || (task.collective == "reduce" && task.rank == task.root))
        each([&](size_t i) { return data.total(i); });
    else if (task.collective == "reduce_scatter")
        each([&](size_t i) { return data.total(own + i); });
    else if (task.collective == "broadcast")
        each([&](size_t i) { return data.datum(task.root, i); });
    else if (task.collective == "allgather")
        each([&](size_t i) { return data.datum(static_cast<int>(i / shard), i); });
    else if (task.collective == "alltoall")
        each([&](size_t i) { return data.datum(static_cast<int>(i / shard), own + i % shard); });
}

}  // namespace

Memory::Memory(const Task& task, const Run& run) : task_(task), run_(run) {
    const size_t shard = run.elements / task.ranks;
    input_elements_ = task.collective == "allgather" ? shard : run.elements;
    output_elements_ = task.collective == "reduce_scatter" ? shard : run.elements;
    lay_out();
    with_type(task.type, [&](auto zero) {
        using Element = decltype(zero);
        auto* all = reinterpret_cast<Element*>(bytes_.data());
        std::fill(all, all + bytes_.size() / sizeof zero, Element(untouched));
        auto* input = reinterpret_cast<Element*>(input_);
        each_input(task_, run_, input_elements_, [&](size_t i, int64_t value) { input[i] = Element(value); });
    });
}

void Memory::lay_out() {
    const size_t element_bytes = with_type(task_.type, [](auto zero) { return sizeof zero; });
    const size_t smaller = std::min(input_elements_, output_elements_) * element_bytes;
    const size_t larger = std::max(input_elements_, output_elements_) * element_bytes;
    bytes_.resize(run_.is_in_place ? larger : smaller + larger);
    input_ = output_ = bytes_.data();
    if (!run_.is_in_place)
        output_ += input_elements_ * element_bytes;
    else if (smaller < larger)
        (input_elements_ < output_elements_ ? input_ : output_) += task_.rank * smaller;
}

std::string Memory::complaint() const {
    return with_type(task_.type, [&](auto zero) {
        using Element = decltype(zero);
        size_t wrong = 0;
        std::string first;
        const Element* found = nullptr;
        auto compare = [&](size_t i, int64_t value) {
            if (static_cast<double>(found[i]) == static_cast<double>(value)) return;
            if (wrong++ == 0)
                first = "the first is element " + std::to_string(i) + ": " +
                        std::to_string(static_cast<double>(found[i])) + " instead of " + std::to_string(value);
        };
        const auto report = [&](const char* what, size_t of) {
            return std::to_string(wrong) + " of " + std::to_string(of) + " elements of the " + what + " are wrong, " +
                   first;
        };
        found = reinterpret_cast<const Element*>(output_);
        each_output(task_, run_, output_elements_, compare);
        if (wrong > 0) return report("output", output_elements_);
        if (run_.is_in_place) return std::string();
        found = reinterpret_cast<const Element*>(input_);
        each_input(task_, run_, input_elements_, compare);
        return wrong > 0 ? report("input, which must stay as it was,", input_elements_) : std::string();
    });
}

void Memory::spoil() {
    with_type(task_.type, [&](auto zero) {
        using Element = decltype(zero);
        reinterpret_cast<Element*>(output_)[output_elements_ / 2] = Element(untouched);
    });
}

}  // namespace chorale
