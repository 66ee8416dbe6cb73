// Network devices of this machine, and the choice of those that other ranks should use.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace chorale {

// An address of a device that is up, except for link-local IPv6 addresses.
struct DeviceAddress {
    std::string device, text;
    std::vector<unsigned char> bytes;
    int prefix;  // number of bits of the network
    bool is_loopback;
};

std::vector<DeviceAddress> device_addresses();

// Returns the addresses by which other ranks can reach this rank: a list of alternatives for each link.
//
// chosen: list of devices, by name (or prefix of names), address or network. "^" before the list: all except these;
//   "=" before it: no prefixes. Empty: use the first environment variable in `variables` whose list contains an
//   existing device; variables with names that end with "exclude" list devices not to use.
// toward: a host. If nothing is chosen, use the device that routes to it, else any device, those of containers last.
//
// Failure (CHORALE_INVALID) if no device of `chosen` is up and has an address.
std::vector<std::vector<DeviceAddress>> links_for(const std::string& chosen, const std::string& variables,
                                                  const std::string& toward);

// Whether `other` is in the network of `own`.
bool is_near(const DeviceAddress& own, const std::vector<unsigned char>& other);

// Splits `text` into parts, without surrounding spaces and without empty parts.
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace chorale
