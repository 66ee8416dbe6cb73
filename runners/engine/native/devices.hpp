// Lists the network devices of this machine, and chooses those through which other ranks reach this rank.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace chorale {

// An address of a device that is up. Link-local IPv6 addresses are left out.
struct DeviceAddress {
    std::string device, text;
    std::vector<unsigned char> bytes;
    int prefix;  // number of bits of the network's part of the address
    bool is_loopback;
};

std::vector<DeviceAddress> device_addresses();

// Returns the addresses at which other ranks can reach this rank: a list of alternative addresses for each link.
//
// chosen: list of devices, each given by its name (or a prefix of it), its address or its network. "^" before the list
//   means all devices except these; "=" means that names are not prefixes. If `chosen` is empty, the first environment
//   variable in `variables` whose list contains an existing device is used instead. Variables with names that end with
//   "exclude" list devices not to use.
// toward: a host. If no devices are chosen, use the device that routes to this host, else any device, containers' last.
//
// Failure (CHORALE_INVALID) if no device in `chosen` is up and has an address.
std::vector<std::vector<DeviceAddress>> links_for(const std::string& chosen, const std::string& variables,
                                                  const std::string& toward);

// Returns whether the address `other` is in the network of `own`.
bool is_near(const DeviceAddress& own, const std::vector<unsigned char>& other);

// Splits `text` into parts, without surrounding spaces and without empty parts.
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace chorale
