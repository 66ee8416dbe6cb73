// Names of network interfaces.
#pragma once

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <stdexcept>
#include <string>

namespace chorale {

// Returns the name of the interface of this machine that has the IP address `address`.
inline std::string interface_with(const std::string& address) {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) throw std::runtime_error("the network interfaces cannot be listed");
    std::string found;
    for (const ifaddrs* one = all; one != nullptr && found.empty(); one = one->ifa_next) {
        if (one->ifa_addr == nullptr) continue;
        const int family = one->ifa_addr->sa_family;
        const void* bytes = family == AF_INET ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr)
                            : family == AF_INET6 ? static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr)
                                                 : nullptr;
        char text[INET6_ADDRSTRLEN];
        if (bytes != nullptr && inet_ntop(family, bytes, text, sizeof text) != nullptr && address == text)
            found = one->ifa_name;
    }
    freeifaddrs(all);
    if (found.empty()) throw std::runtime_error("no network interface has the address " + address);
    return found;
}

}  // namespace chorale
