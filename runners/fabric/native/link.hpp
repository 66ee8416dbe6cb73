// Directed links: when what they carry comes out, and packets on their way over them.
#pragma once

#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>

namespace chorale {

// A link as a clock: nothing here waits or reads a clock. What it carries starts when what came before has ended, or
// when it arrived if that is later: so whoever looks late loses no rate, and what a link idles is lost, as on a wire.
class LinkClock {
public:
    void set_pace(double ns_per_byte) { ns_per_byte_ = ns_per_byte; }
    double ns_per_byte() const { return ns_per_byte_; }

    // Returns when `bytes` that arrived at `ready_ns` have been carried; rounded up, never faster than the rate.
    int64_t carry(size_t bytes, int64_t ready_ns) {
        const double duration_ns = std::ceil(static_cast<double>(bytes) * ns_per_byte_);
        return end_ns_ = std::max(end_ns_, ready_ns) + static_cast<int64_t>(duration_ns);
    }

    // When all that was carried so far ends.
    int64_t end_ns() const { return end_ns_; }

private:
    double ns_per_byte_ = 0;
    int64_t end_ns_ = 0;
};

// What TUN puts before a packet; the header of Linux that defines it is not C++.
struct VirtioHeader {
    uint8_t flags;
    uint8_t gso_type;
    uint16_t header_bytes;
    uint16_t gso_size;
    uint16_t checksum_start;
    uint16_t checksum_offset;
};
static_assert(sizeof(VirtioHeader) == 10);

constexpr size_t virtio_bytes = sizeof(VirtioHeader);
constexpr size_t largest_packet_bytes = 65535 + virtio_bytes;

// A packet as a link sees it: how many bytes it is on the wire, and whether it carries data.
struct PacketView {
    PacketView(const uint8_t* bytes, size_t size)
        : header(reinterpret_cast<const VirtioHeader*>(bytes)), ip(bytes + virtio_bytes), ip_bytes(size - virtio_bytes) {}

    bool is_acknowledgement() const {
        const size_t headers = tcp_header_bytes();
        return headers != 0 && headers == ip_bytes;
    }

    // A packet that the kernel has not cut up yet counts as the segments it stands for, each with its headers.
    size_t bytes_on_wire() const {
        const size_t segment = header->gso_size;
        if (header->gso_type == 0 || segment == 0) return ip_bytes;
        const size_t headers = tcp_header_bytes();
        const size_t payload = ip_bytes > headers ? ip_bytes - headers : 0;
        const size_t segments = (payload + segment - 1) / segment;
        return ip_bytes + (segments > 1 ? (segments - 1) * headers : 0);
    }

private:
    // Bytes of the IP and TCP headers; 0 for what is not TCP over IPv4.
    size_t tcp_header_bytes() const {
        if (ip_bytes < 20 || ip[0] >> 4 != 4 || ip[9] != IPPROTO_TCP) return 0;
        const size_t ip_header = (ip[0] & 15) * 4u;
        if (ip_bytes < ip_header + 20) return 0;
        return ip_header + (ip[ip_header + 12] >> 4) * 4u;
    }

    const VirtioHeader* header;
    const uint8_t* ip;
    size_t ip_bytes;
};

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

// One direction of a link: packets leave one device and come out of the other when the link has carried them.
class PacketLink {
public:
    explicit PacketLink(const LinkFacts& facts) : facts_(facts), random_state_(facts.seed) {
        clock_.set_pace(8e9 / static_cast<double>(facts.bits_per_s));
    }

    int from_device() const { return facts_.from_device; }
    bool is_empty() const { return packets_.empty(); }

    // The last packet comes out on time. Those before it wait for a common tick, which spares the processors: a wake-up
    // serves many links, and the rate does not suffer, because the link goes on meanwhile.
    int64_t next_delivery_ns() const {
        const int64_t tick = (packets_.front().delivery_ns + tick_ns - 1) / tick_ns * tick_ns;
        return std::min(tick, packets_.back().delivery_ns);
    }

    // Takes a packet that arrived at `now_ns`.
    void accept(const uint8_t* bytes, size_t size, int64_t now_ns) {
        const PacketView packet(bytes, size);
        const size_t wire_bytes = packet.bytes_on_wire();
        if (facts_.acknowledgements_only && !packet.is_acknowledgement()) return;
        if (queued_bytes_ + wire_bytes > facts_.queue_bytes) return;
        const int64_t end_ns = clock_.carry(wire_bytes, now_ns);
        if (is_lost()) return;  // it took its time on the wire all the same
        std::unique_ptr<uint8_t[]> copy(new uint8_t[size]);
        std::memcpy(copy.get(), bytes, size);
        queued_bytes_ += wire_bytes;
        packets_.push_back({end_ns + facts_.latency_ns, size, wire_bytes, std::move(copy)});
    }

    // Delivers what is due. A device that is down refuses: the packet is lost, as on a cut wire.
    void deliver(int64_t now_ns) {
        while (!packets_.empty() && packets_.front().delivery_ns <= now_ns) {
            const Packet& packet = packets_.front();
            if (write(facts_.to_device, packet.bytes.get(), packet.size) < 0) refused_++;
            queued_bytes_ -= packet.wire_bytes;
            packets_.pop_front();
        }
    }

private:
    static constexpr int64_t tick_ns = 500'000;

    struct Packet {
        int64_t delivery_ns;
        size_t size;
        size_t wire_bytes;
        std::unique_ptr<uint8_t[]> bytes;
    };

    bool is_lost() {
        if (facts_.loss_per_2_32 == 0) return false;
        uint64_t z = (random_state_ += 0x9e3779b97f4a7c15ull);  // splitmix64
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return ((z ^ (z >> 31)) >> 32) < facts_.loss_per_2_32;
    }

    const LinkFacts facts_;
    LinkClock clock_;
    uint64_t random_state_;
    std::deque<Packet> packets_;
    uint64_t queued_bytes_ = 0;
    uint64_t refused_ = 0;
};

}  // namespace chorale
