#include "digests.hpp"

#include <array>

namespace chorale::job {

namespace {

constexpr std::array<uint32_t, 64> ROUND_CONSTANTS = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

uint32_t rotated(uint32_t value, int bits) { return value >> bits | value << (32 - bits); }

std::array<uint32_t, 64> schedule_of(const unsigned char* block) {
    std::array<uint32_t, 64> words{};
    for (int i = 0; i < 16; i++)
        words[i] = uint32_t(block[4 * i]) << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = words[i - 15], b = words[i - 2];
        words[i] = words[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + words[i - 7] +
                   (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    return words;
}

void add_block(State& state, const unsigned char* block) {
    const auto words = schedule_of(block);
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; i++) {
        const uint32_t first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) +
                               ROUND_CONSTANTS[i] + words[i];
        const uint32_t second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const State added = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) state[i] += added[i];
}

std::string last_blocks(std::string_view data) {
    std::string rest(data.substr(data.size() / 64 * 64));
    rest += '\x80';
    while (rest.size() % 64 != 56) rest += '\0';
    for (int shift = 56; shift >= 0; shift -= 8) rest += char(uint64_t(data.size()) * 8 >> shift & 0xff);
    return rest;
}

void add_blocks(State& state, std::string_view data) {
    for (size_t at = 0; at + 64 <= data.size(); at += 64)
        add_block(state, reinterpret_cast<const unsigned char*>(data.data()) + at);
}

}  // namespace

std::string sha256_hex(std::string_view data) {
    State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    add_blocks(state, data);
    add_blocks(state, last_blocks(data));
    std::string text;
    for (const uint32_t word : state)
        for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
    return text;
}

uint32_t crc32(std::string_view data) {
    uint32_t value = ~uint32_t(0);
    for (const unsigned char byte : data) {
        value ^= byte;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xedb88320 : 0);
    }
    return ~value;
}

}  // namespace chorale::job
