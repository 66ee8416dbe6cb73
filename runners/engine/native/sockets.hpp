// Non-blocking sockets by address: "tcp:HOST:PORT", "unix:NAME" and "shm:NAME" (abstract names).
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>

namespace chorale {

enum class AddressKind { tcp, unix_domain, shared_memory, emulated };

struct Address {
    AddressKind kind;
    sockaddr_storage bytes;
    socklen_t size;
};

// Failure (CHORALE_INVALID) for invalid text. "net:unix:NAME" is the address of an emulated network.
Address parse_address(const std::string& text);

// Returns a listening socket; `bound` gets the address for connecting to it.
int listen_at(const std::string& text, std::string& bound);

// Returns a socket that is being connected, or -1 with errno.
int start_connecting(const Address& address);

// Sets options for TCP: small pieces are sent immediately, and buffers hold at least one segment. buffer_bytes: buffer
// size for each direction, 0 for the system's default
void prepare(int fd, size_t buffer_bytes);

// Types of the first messages on a connection between two ranks, or between a rank and the emulated network.
using Token = std::array<uint8_t, 16>;

constexpr char hello_text[8] = {'c', 'h', 'o', 'r', 'a', 'l', 'e', '1'};
constexpr char welcome_text[8] = {'w', 'e', 'l', 'c', 'o', 'm', 'e', '1'};

struct Hello {
    char text[8];
    Token token;
    int32_t from, to, channel, reserved;
};

}  // namespace chorale
