#include "devices.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "chorale_engine.h"
#include "failure.hpp"

namespace chorale {
namespace {

using Addresses = std::vector<DeviceAddress>;

constexpr size_t most_alternatives = 8;
constexpr const char* of_containers[] = {"docker", "br-", "virbr", "veth", "cni", "flannel", "podman", "lxdbr", "cali"};

bool begins(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

std::vector<unsigned char> bytes_of(const sockaddr* address) {
    const bool is_four = address->sa_family == AF_INET;
    const void* at = is_four ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                             : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    const auto* bytes = static_cast<const unsigned char*>(at);
    return {bytes, bytes + (is_four ? 4 : 16)};
}

std::string text_of(const std::vector<unsigned char>& bytes) {
    char text[INET6_ADDRSTRLEN] = {};
    inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
    return text;
}

bool is_in(const std::vector<unsigned char>& address, const std::vector<unsigned char>& network, int bits) {
    if (address.size() != network.size()) return false;
    for (int bit = 0; bit < bits; bit++)
        if (((address[bit / 8] ^ network[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
    return true;
}

struct Choice {
    bool excludes = false, is_exact = false;
    std::vector<std::string> names;
};

Choice choice_of(std::string text) {
    Choice choice;
    for (; !text.empty() && (text[0] == '^' || text[0] == '='); text.erase(0, 1))
        (text[0] == '^' ? choice.excludes : choice.is_exact) = true;
    choice.names = split(text, ',');
    return choice;
}

// Returns whether `name` is the device, the address or the network of `address`, or a prefix of the device's name.
bool means(const std::string& name, const DeviceAddress& address, bool is_exact, const Addresses& all) {
    if (name == address.device || name == address.text) return true;
    const size_t slash = name.find('/');
    unsigned char bytes[16];
    const std::string host = name.substr(0, slash);
    const int family = host.find(':') == std::string::npos ? AF_INET : AF_INET6;
    if (slash != std::string::npos && inet_pton(family, host.c_str(), bytes) == 1) {
        const int size = family == AF_INET ? 4 : 16, bits = std::atoi(name.c_str() + slash + 1);
        return is_in(address.bytes, {bytes, bytes + size}, std::clamp(bits, 0, size * 8));
    }
    const bool is_whole = std::any_of(all.begin(), all.end(), [&](const auto& each) { return each.device == name; });
    return !is_exact && !is_whole && begins(address.device, name);
}

// Returns the addresses of each chosen device, in the order of the choice.
std::vector<Addresses> included(const Choice& choice, const Addresses& all) {
    std::vector<Addresses> links;
    for (const std::string& name : choice.names)
        for (const DeviceAddress& address : all) {
            if (!means(name, address, choice.is_exact, all)) continue;
            const auto same = std::find_if(links.begin(), links.end(),
                                           [&](const auto& link) { return link[0].device == address.device; });
            if (same == links.end()) links.push_back({address});
            else if (std::none_of(same->begin(), same->end(), [&](auto& each) { return each.text == address.text; }))
                same->push_back(address);
        }
    return links;
}

void exclude(const Choice& choice, Addresses& usable, const Addresses& all) {
    usable.erase(std::remove_if(usable.begin(), usable.end(),
                                [&](const DeviceAddress& address) {
                                    return std::any_of(choice.names.begin(), choice.names.end(), [&](auto& name) {
                                        return means(name, address, choice.is_exact, all);
                                    });
                                }),
                 usable.end());
}

// Returns the address from which this machine sends to `host`; empty if there is no route or the name is unknown.
std::string address_toward(const std::string& host) {
    addrinfo hints{}, *list = nullptr;
    hints.ai_socktype = SOCK_DGRAM;
    if (host.empty() || getaddrinfo(host.c_str(), "9", &hints, &list) != 0) return "";
    std::string found;
    for (const addrinfo* each = list; each != nullptr && found.empty(); each = each->ai_next) {
        const int fd = socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        sockaddr_storage own{};
        socklen_t size = sizeof own;
        if (fd >= 0 && connect(fd, each->ai_addr, each->ai_addrlen) == 0 &&
            getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0)
            found = text_of(bytes_of(reinterpret_cast<sockaddr*>(&own)));
        if (fd >= 0) close(fd);
    }
    freeaddrinfo(list);
    return found;
}

bool is_of_containers(const DeviceAddress& address) {
    return std::any_of(std::begin(of_containers), std::end(of_containers),
                       [&](const char* name) { return begins(address.device, name); });
}

Addresses by_default(Addresses usable, const std::string& toward) {
    Addresses outside;
    for (const DeviceAddress& address : usable)
        if (!address.is_loopback) outside.push_back(address);
    const std::string routed = outside.empty() ? "" : address_toward(toward);
    for (const DeviceAddress& address : outside)
        if (address.text == routed) return {address};
    std::stable_partition(outside.begin(), outside.end(), [](auto& each) { return !is_of_containers(each); });
    if (outside.size() > most_alternatives) outside.resize(most_alternatives);
    if (!outside.empty()) return outside;
    return usable.empty() ? Addresses{{"lo", "127.0.0.1", {127, 0, 0, 1}, 8, true}} : Addresses{usable.front()};
}

Failure no_such_device(const std::string& chosen, const Addresses& all) {
    std::string known;
    for (const DeviceAddress& address : all)
        if ((", " + known).find(", " + address.device + ",") == std::string::npos) known += address.device + ", ";
    known = known.empty() ? "none" : known.substr(0, known.size() - 2);
    return Failure(CHORALE_INVALID, "no network device that is up and has an address matches " + chosen +
                                        "; choose from " + known);
}

}  // namespace

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) {
        const size_t first = part.find_first_not_of(" \t"), last = part.find_last_not_of(" \t");
        if (first != std::string::npos) parts.push_back(part.substr(first, last - first + 1));
    }
    return parts;
}

Addresses device_addresses() {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) throw Failure(CHORALE_SYSTEM, "the network devices cannot be listed");
    Addresses found;
    for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
        const sockaddr* address = each->ifa_addr;
        if (address == nullptr || each->ifa_netmask == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
        if (address->sa_family != AF_INET && address->sa_family != AF_INET6) continue;
        const auto bytes = bytes_of(address);
        if (bytes.size() == 16 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80) continue;
        int bits = 0;
        for (const unsigned char byte : bytes_of(each->ifa_netmask)) bits += __builtin_popcount(byte);
        found.push_back({each->ifa_name, text_of(bytes), bytes, bits, (each->ifa_flags & IFF_LOOPBACK) != 0});
    }
    freeifaddrs(all);
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.bytes.size() < b.bytes.size(); });
    return found;
}

std::vector<Addresses> links_for(const std::string& chosen, const std::string& variables, const std::string& toward) {
    const Addresses all = device_addresses();
    Addresses usable = all;
    std::vector<std::string> texts = {chosen};
    if (chosen.empty()) texts = split(variables, ',');
    for (const std::string& name : texts) {
        const char* value = chosen.empty() ? std::getenv(name.c_str()) : chosen.c_str();
        if (value == nullptr || *value == '\0') continue;
        Choice choice = choice_of(value);
        if (chosen.empty() && name.size() > 7 && name.compare(name.size() - 7, 7, "exclude") == 0) choice.excludes = true;
        if (choice.excludes) {
            exclude(choice, usable, all);
            continue;
        }
        const auto links = included(choice, usable);
        if (!links.empty()) return links;
        if (!chosen.empty()) throw no_such_device(chosen, all);
    }
    return {by_default(usable, toward)};
}

bool is_near(const DeviceAddress& own, const std::vector<unsigned char>& other) {
    return is_in(other, own.bytes, own.prefix);
}

}  // namespace chorale
