// CRC-32C (Castagnoli), computed by the processor's instruction if it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chorale {

// Returns the checksum of earlier bytes and `size` more. previous: checksum of the earlier bytes; 0 if there are none
uint32_t crc32c(uint32_t previous, const void* bytes, size_t size);

}  // namespace chorale
