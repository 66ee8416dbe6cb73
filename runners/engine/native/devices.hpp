// Network devices of this machine, and which of them other ranks are to use.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace chorale {

// An address of a device that is up. IPv6 addresses that count on one link only are left out.
struct DeviceAddress {
    std::string device, text;
    std::vector<unsigned char> bytes;
    int prefix;  // bits of the network
    bool is_loopback;
};

std::vector<DeviceAddress> device_addresses();

// The addresses by which others reach this rank: one list for each link, any address of which will do.
//
// chosen: devices by name (a whole one, else how names begin), address or network; "^" before the list: all but these;
//   "=" before it: whole names only. Empty: the first of `variables`, names of environment variables with such
//   lists, that chooses a device which is there; those whose names end with "exclude" list what is not to be used.
// toward: a host. Where nothing is chosen, the device that routes to it; else any, those of containers last.
//
// Failure (CHORALE_INVALID) where `chosen` is none that is up and has an address.
std::vector<std::vector<DeviceAddress>> links_for(const std::string& chosen, const std::string& variables,
                                                  const std::string& toward);

// Whether `other` is in the network of `own`.
bool is_near(const DeviceAddress& own, const std::vector<unsigned char>& other);

// Parts of `text` between separators, those that are not empty, without spaces around them.
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace chorale
