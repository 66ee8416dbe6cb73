#include "checksum.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace chorale {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ ((value & 1u) ? 0x82f63b78u : 0u);
        table[byte] = value;
    }
    return table;
}

constexpr auto table = make_table();

uint32_t by_table(uint32_t state, const unsigned char* bytes, size_t size) {
    for (; size > 0; size--) state = table[(state ^ *bytes++) & 0xffu] ^ (state >> 8);
    return state;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t state, const unsigned char* bytes, size_t size) {
    uint64_t wide = state;
    for (; size >= 8; size -= 8, bytes += 8) {
        uint64_t word;
        std::memcpy(&word, bytes, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    state = static_cast<uint32_t>(wide);
    for (; size > 0; size--) state = _mm_crc32_u8(state, *bytes++);
    return state;
}
#endif

}  // namespace

uint32_t crc32c(uint32_t previous, const void* bytes, size_t size) {
    const auto* data = static_cast<const unsigned char*>(bytes);
#if defined(__x86_64__)
    static const bool has_instruction = __builtin_cpu_supports("sse4.2");
    if (has_instruction) return ~by_instruction(~previous, data, size);
#endif
    return ~by_table(~previous, data, size);
}

}  // namespace chorale
