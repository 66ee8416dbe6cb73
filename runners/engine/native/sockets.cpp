#include "sockets.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "failure.hpp"

namespace chorale {
namespace {

constexpr int backlog = 4096;
constexpr size_t most_buffer_bytes = 1 << 30;

Failure refused(const std::string& text, const std::string& why) {
    return Failure(CHORALE_SYSTEM, "no connection at " + text + ": " + why);
}

Address abstract_name(AddressKind kind, const std::string& name) {
    Address address{kind, {}, 0};
    auto* un = reinterpret_cast<sockaddr_un*>(&address.bytes);
    if (name.empty() || name.size() >= sizeof un->sun_path) throw Failure(CHORALE_INVALID, "no such name: " + name);
    un->sun_family = AF_UNIX;
    std::memcpy(un->sun_path + 1, name.data(), name.size());
    address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return address;
}

// Parses HOST:PORT with a numeric host (IPv6 with or without brackets), optionally followed by @ and a device name.
Address tcp_address(const std::string& with_device) {
    const std::string text = with_device.substr(0, with_device.find('@'));
    const size_t colon = text.rfind(':');
    std::string host = text.substr(0, colon), port = colon == std::string::npos ? "0" : text.substr(colon + 1);
    if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    addrinfo hints{}, *list = nullptr;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), port.c_str(), &hints, &list) != 0)
        throw Failure(CHORALE_INVALID, "no address of a host and a port: " + text);
    Address address{AddressKind::tcp, {}, list->ai_addrlen};
    std::memcpy(&address.bytes, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return address;
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

int port_of(int fd) {
    sockaddr_storage bytes{};
    socklen_t size = sizeof bytes;
    getsockname(fd, reinterpret_cast<sockaddr*>(&bytes), &size);
    return ntohs(bytes.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&bytes)->sin_port);
}

int new_socket(const Address& address) {
    return socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

}  // namespace

Address parse_address(const std::string& text) {
    if (starts_with(text, "tcp:")) return tcp_address(text.substr(4));
    if (starts_with(text, "unix:")) return abstract_name(AddressKind::unix_domain, text.substr(5));
    if (starts_with(text, "shm:")) return abstract_name(AddressKind::shared_memory, text.substr(4));
    if (starts_with(text, "net:unix:")) return abstract_name(AddressKind::emulated, text.substr(9));
    throw Failure(CHORALE_INVALID, "an address begins with tcp:, unix:, shm: or net:unix:, not " + text);
}

int listen_at(const std::string& text, std::string& bound) {
    const Address address = parse_address(text + (starts_with(text, "tcp:") ? ":0" : ""));
    const int fd = new_socket(address);
    if (fd < 0) throw refused(text, std::strerror(errno));
    if (bind(fd, reinterpret_cast<const sockaddr*>(&address.bytes), address.size) != 0 || listen(fd, backlog) != 0) {
        const std::string why = std::strerror(errno);
        close(fd);
        throw refused(text, why);
    }
    bound = address.kind == AddressKind::tcp ? text + ":" + std::to_string(port_of(fd)) : text;
    return fd;
}

int start_connecting(const Address& address) {
    const int fd = new_socket(address);
    if (fd < 0) throw Failure(CHORALE_SYSTEM, std::string("no socket: ") + std::strerror(errno));
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address.bytes), address.size) == 0 || errno == EINPROGRESS)
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

void prepare(int fd, size_t asked_bytes) {
    const int one = 1;
    int buffer_bytes = static_cast<int>(std::min<size_t>(asked_bytes, most_buffer_bytes)), segment_bytes = 0;
    socklen_t size = sizeof segment_bytes;
    // The next two options fail for sockets other than TCP sockets. This is ignored.
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment_bytes, &size);
    if (asked_bytes == 0) return;
    buffer_bytes = std::max(buffer_bytes, segment_bytes);  // TCP is very slow if a segment does not fit
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
}

}  // namespace chorale
