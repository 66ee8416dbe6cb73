// CRC-32C (Castagnoli), by the processor's own instruction where it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chorale {

// The checksum of what `previous` is the checksum of, followed by `size` bytes; 0 for none.
uint32_t crc32c(uint32_t previous, const void* bytes, size_t size);

}  // namespace chorale
