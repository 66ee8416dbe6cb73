// Sockets by address: "tcp:HOST:PORT", "unix:NAME" and "shm:NAME" (abstract names); all of them never wait.
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

// Failure (CHORALE_INVALID) for text that is no address. "net:unix:NAME" is an emulated network.
Address parse_address(const std::string& text);

// A listening socket, and in `bound` the address where it is reached.
int listen_at(const std::string& text, std::string& bound);

// A socket that is being connected, or -1 with errno where nobody listens.
int start_connecting(const Address& address);

// TCP: small pieces leave at once, and buffers hold a segment at least. `buffer_bytes` for both directions, 0 for the
// system's choice.
void prepare(int fd, size_t buffer_bytes);

// What two ranks, or a rank and the emulated network, say first on a connection.
using Token = std::array<uint8_t, 16>;

constexpr char hello_text[8] = {'c', 'h', 'o', 'r', 'a', 'l', 'e', '1'};
constexpr char welcome_text[8] = {'w', 'e', 'l', 'c', 'o', 'm', 'e', '1'};

struct Hello {
    char text[8];
    Token token;
    int32_t from, to, channel, reserved;
};

}  // namespace chorale
