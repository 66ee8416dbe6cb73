// CRC-32C (Castagnoli), computed by the processor's instruction if it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chorale {

// Returns the checksum of the bytes with the checksum `previous` (0 if there are none), followed by `size` bytes.
uint32_t crc32c(uint32_t previous, const void* bytes, size_t size);

}  // namespace chorale
