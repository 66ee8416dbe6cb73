// Watches the devices of namespaces: a link end that is set down takes the carrier from the other end.
#pragma once

#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <map>
#include <string>

#include "namespaces.hpp"

// Returns a socket that hears of all changes of devices in the namespace of the calling thread.
inline int open_device_watch() {
    const int watch = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (watch < 0) throw system_error("netlink socket");
    sockaddr_nl address{};
    address.nl_family = AF_NETLINK;
    address.nl_groups = RTMGRP_LINK;
    if (bind(watch, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) throw system_error("netlink bind");
    return watch;
}

class CarrierWatch {
  public:
    explicit CarrierWatch(int watch) : watch_(watch) {}

    int descriptor() const { return watch_; }
    void add(const std::string& device, int peer) { peers_[device] = peer; }

    void handle() {
        alignas(nlmsghdr) char buffer[16384];
        for (ssize_t size; (size = recv(watch_, buffer, sizeof buffer, 0)) > 0;) {
            auto left = static_cast<unsigned>(size);
            for (auto* message = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(message, left);
                 message = NLMSG_NEXT(message, left))
                if (message->nlmsg_type == RTM_NEWLINK) apply(message);
        }
    }

  private:
    void apply(nlmsghdr* message) {
        auto* device = static_cast<ifinfomsg*>(NLMSG_DATA(message));
        int left = static_cast<int>(IFLA_PAYLOAD(message));
        for (auto* attribute = IFLA_RTA(device); RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
            if (attribute->rta_type != IFLA_IFNAME) continue;
            const auto peer = peers_.find(static_cast<char*>(RTA_DATA(attribute)));
            if (peer == peers_.end()) return;
            int carrier = (device->ifi_flags & IFF_UP) != 0;
            ioctl(peer->second, TUNSETCARRIER, &carrier);
            return;
        }
    }

    int watch_;
    std::map<std::string, int> peers_;
};
