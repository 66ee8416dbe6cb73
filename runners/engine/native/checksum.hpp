// CRC-32C (Castagnoli), computed by the processor's instruction if it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chorale {

// Extends the checksum `previous` (0: of no bytes) by `size` bytes.
uint32_t crc32c(uint32_t previous, const void* bytes, size_t size);

}  // namespace chorale
