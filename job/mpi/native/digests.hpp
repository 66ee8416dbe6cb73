// SHA-256 and CRC-32, for the checks of a table's file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace chorale::job {

std::string sha256_hex(std::string_view data);

// The checksum that zlib calls crc32.
uint32_t crc32(std::string_view data);

}  // namespace chorale::job
