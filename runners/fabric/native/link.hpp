// One direction of a link: packets leave one end and come out at the other when the link has carried them.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>

#include "packets.hpp"

struct LinkFacts {
    int from_device = -1;
    int to_device = -1;
    uint64_t bits_per_s = 0;
    int64_t latency_ns = 0;
    uint64_t loss_per_2_32 = 0;
    uint64_t queue_bytes = 0;
    bool acknowledgements_only = false;
    uint64_t seed = 0;
};

class Link {
  public:
    explicit Link(const LinkFacts& facts) : facts_(facts), random_state_(facts.seed) {}

    int from_device() const { return facts_.from_device; }
    bool is_empty() const { return packets_.empty(); }

    // The last packet comes out on time. Those before it wait for a common tick, which spares the processors: a wake-up
    // serves many links, and the rate does not suffer, because the link goes on meanwhile.
    int64_t next_delivery_ns() const {
        const int64_t tick = (packets_.front().delivery_ns + kTickNs - 1) / kTickNs * kTickNs;
        return std::min(tick, packets_.back().delivery_ns);
    }

    // Takes a packet that arrived at `now_ns`. A link that was idle starts then: idle time is lost, as on a wire.
    void accept(const uint8_t* bytes, size_t size, int64_t now_ns) {
        const PacketView packet = view_packet(bytes, size);
        const size_t wire_bytes = bytes_on_wire(packet);
        if (facts_.acknowledgements_only && !is_acknowledgement(packet)) return;
        if (queued_bytes_ + wire_bytes > facts_.queue_bytes) return;
        free_at_ns_ = (free_at_ns_ > now_ns ? free_at_ns_ : now_ns) + serialization_ns(wire_bytes);
        if (is_lost()) return;  // it took its time on the wire all the same
        std::unique_ptr<uint8_t[]> copy(new uint8_t[size]);
        std::memcpy(copy.get(), bytes, size);
        queued_bytes_ += wire_bytes;
        packets_.push_back({free_at_ns_ + facts_.latency_ns, size, wire_bytes, std::move(copy)});
    }

    // Delivers what is due. A device that is down refuses: the packet is lost, as on a cut wire.
    void deliver(int64_t now_ns) {
        while (!packets_.empty() && packets_.front().delivery_ns <= now_ns) {
            const Packet& packet = packets_.front();
            if (write(facts_.to_device, packet.bytes.get(), packet.size) < 0) ++refused_;
            queued_bytes_ -= packet.wire_bytes;
            packets_.pop_front();
        }
    }

  private:
    static constexpr int64_t kTickNs = 500000;

    struct Packet {
        int64_t delivery_ns;
        size_t size;
        size_t wire_bytes;
        std::unique_ptr<uint8_t[]> bytes;
    };

    // Rounded up: never faster than the rate.
    int64_t serialization_ns(size_t wire_bytes) const {
        const uint64_t bit_ns = wire_bytes * 8ull * 1000000000ull;
        return static_cast<int64_t>((bit_ns + facts_.bits_per_s - 1) / facts_.bits_per_s);
    }

    bool is_lost() { return facts_.loss_per_2_32 != 0 && (next_random() >> 32) < facts_.loss_per_2_32; }

    uint64_t next_random() {  // splitmix64
        uint64_t z = (random_state_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }

    LinkFacts facts_;
    uint64_t random_state_;
    std::deque<Packet> packets_;
    uint64_t queued_bytes_ = 0;
    int64_t free_at_ns_ = 0;
    uint64_t refused_ = 0;
};
