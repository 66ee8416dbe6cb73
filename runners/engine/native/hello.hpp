// What two ranks, or a rank and the emulated network, say first on a connection.
#pragma once

#include <array>
#include <cstdint>

namespace chorale {

using Token = std::array<uint8_t, 16>;

constexpr char hello_text[8] = {'c', 'h', 'o', 'r', 'a', 'l', 'e', '1'};
constexpr char welcome_text[8] = {'w', 'e', 'l', 'c', 'o', 'm', 'e', '1'};

struct Hello {
    char text[8];
    Token token;
    int32_t from, to, channel, reserved;
};

}  // namespace chorale
