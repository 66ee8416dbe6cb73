// The memory of all ranks during calls of a plan: for each rank counters of signals, chunks, and packets in scratch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "plan_words.hpp"

namespace chorale::plans {

// A packet: four bytes of data and the number of the call that wrote them, stored at once.
using PacketWord = std::atomic<uint64_t>;
constexpr size_t packet_data = 4;
static_assert(sizeof(PacketWord) == 8 && PacketWord::is_always_lock_free);

constexpr size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

class PlanMemory {
public:
    PlanMemory() = default;
    PlanMemory(const PlanOfRank& plan, size_t piece_bytes, void* memory)
        : piece_(piece_bytes),
          data_(rounded(plan.slots * sizeof(uint64_t))),
          packets_(data_ + rounded(plan.data_pieces * piece_bytes)),
          half_(plan.packet_pieces * piece_bytes * 2),
          halves_(plan.halves ? 2 : 1),
          stride_(rounded(packets_ + half_ * halves_)),
          memory_(static_cast<char*>(memory)) {}

    size_t piece_bytes() const { return piece_; }
    size_t bytes_of_a_rank() const { return stride_; }
    size_t data_offset() const { return data_; }

    std::atomic<uint64_t>& counter(Counter at) const {
        return reinterpret_cast<std::atomic<uint64_t>*>(memory_ + at.rank * stride_)[at.slot];
    }
    // Where a stretch begins, `skipped` bytes of data on.
    char* data(const Stretch& at, size_t skipped) const {
        return memory_ + at.rank * stride_ + data_ + at.first * piece_ + skipped;
    }
    char* packets(const Stretch& at, size_t skipped, uint64_t call) const {
        return memory_ + at.rank * stride_ + packets_ + call % halves_ * half_ + 2 * (at.first * piece_ + skipped);
    }

private:
    size_t piece_ = 0, data_ = 0, packets_ = 0, half_ = 0, halves_ = 1, stride_ = 0;
    char* memory_ = nullptr;
};

inline void write_packets(char* target, const char* data, size_t bytes, uint64_t call) {
    auto* words = reinterpret_cast<PacketWord*>(target);
    for (size_t at = 0; at < bytes; at += packet_data) {
        uint32_t value;
        std::memcpy(&value, data + at, sizeof value);
        words[at / packet_data].store(uint64_t{value} | call << 32, std::memory_order_relaxed);
    }
}

// How many of `bytes` of data have packets of `call`, from the first on.
inline size_t arrived(const char* source, size_t bytes, uint64_t call) {
    const auto* words = reinterpret_cast<const PacketWord*>(source);
    size_t at = 0;
    while (at < bytes && words[at / packet_data].load(std::memory_order_relaxed) >> 32 == (call & 0xffffffffu))
        at += packet_data;
    return at;
}

inline void read_packets(char* data, const char* source, size_t bytes) {
    const auto* words = reinterpret_cast<const PacketWord*>(source);
    for (size_t at = 0; at < bytes; at += packet_data) {
        const auto value = static_cast<uint32_t>(words[at / packet_data].load(std::memory_order_relaxed));
        std::memcpy(data + at, &value, sizeof value);
    }
}

inline void copy_packets(char* target, const char* source, size_t bytes) {
    for (size_t at = 0; at < bytes; at += sizeof(PacketWord)) {
        const uint64_t word = reinterpret_cast<const PacketWord*>(source + at)->load(std::memory_order_relaxed);
        reinterpret_cast<PacketWord*>(target + at)->store(word, std::memory_order_relaxed);
    }
}

}  // namespace chorale::plans
