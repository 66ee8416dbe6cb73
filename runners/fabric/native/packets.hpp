// What a packet is as a link sees it: how many bytes it is on the wire, and whether it carries data.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>

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

constexpr uint8_t kNotSegmented = 0;
constexpr size_t kVirtioBytes = sizeof(VirtioHeader);
constexpr size_t kLargestPacketBytes = 65535 + kVirtioBytes;

struct PacketView {
    const VirtioHeader* header;
    const uint8_t* ip;
    size_t ip_bytes;
};

inline PacketView view_packet(const uint8_t* bytes, size_t size) {
    return {reinterpret_cast<const VirtioHeader*>(bytes), bytes + kVirtioBytes, size - kVirtioBytes};
}

// Bytes of the IP and TCP headers; 0 for what is not TCP over IPv4.
inline size_t tcp_header_bytes(const PacketView& packet) {
    if (packet.ip_bytes < 20 || packet.ip[0] >> 4 != 4 || packet.ip[9] != IPPROTO_TCP) return 0;
    const size_t ip_header = (packet.ip[0] & 15) * 4u;
    if (packet.ip_bytes < ip_header + 20) return 0;
    return ip_header + (packet.ip[ip_header + 12] >> 4) * 4u;
}

inline bool is_acknowledgement(const PacketView& packet) {
    const size_t headers = tcp_header_bytes(packet);
    return headers != 0 && headers == packet.ip_bytes;
}

// A packet that the kernel has not cut up yet counts as the segments it stands for, each with its headers.
inline size_t bytes_on_wire(const PacketView& packet) {
    const size_t segment = packet.header->gso_size;
    if (packet.header->gso_type == kNotSegmented || segment == 0) return packet.ip_bytes;
    const size_t headers = tcp_header_bytes(packet);
    const size_t payload = packet.ip_bytes > headers ? packet.ip_bytes - headers : 0;
    const size_t segments = (payload + segment - 1) / segment;
    return packet.ip_bytes + (segments > 1 ? (segments - 1) * headers : 0);
}
