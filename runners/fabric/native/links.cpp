// The links of a fabric: TUN devices in its namespaces, and threads that carry packets between them.
//
// Usage: links NAME HOLDER, where HOLDER is the process whose end is also the end of this one. Standard input says what
// to make, a line each:
//   threads COUNT
//   namespace PATH                          the devices after it are in this namespace
//   device NUMBER NAME SEGMENTS_PASS_WHOLE  numbers count from 0
//   link FROM TO BITS_PER_S LATENCY_NS LOSS_PER_2_32 QUEUE_BYTES ACKNOWLEDGEMENTS_ONLY THREAD SEED
//   go
// It then answers "ready PID" and lets go of its pipes.
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <malloc.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <iostream>
#include <map>
#include <queue>
#include <sstream>
#include <thread>

#include "link.hpp"
#include "system.hpp"

namespace chorale {
namespace {

// A thread that delivers for its links: takes what arrives, sleeps until the earliest delivery, writes it out.
class Worker {
public:
    void add(const LinkFacts& facts) {
        sources_.emplace_back(*this, facts);
        watch_.add_reader(facts.from_device, sources_.back());
    }

    [[noreturn]] void run() {
        while (true) {
            const int64_t next_ns = deliveries_.empty() ? INT64_MAX : deliveries_.top().first;
            for (const Watch::Event& event : watch_.wait(next_ns)) event.watched->woken(event.has_hung_up);
            for (int64_t now; !deliveries_.empty() && deliveries_.top().first <= (now = monotonic_ns());) {
                PacketLink& link = *deliveries_.top().second;
                deliveries_.pop();
                link.deliver(now);
                if (!link.is_empty()) deliveries_.emplace(link.next_delivery_ns(), &link);
            }
        }
    }

private:
    static constexpr int arrivals_at_once = 32;  // then others get their turn

    struct Source : Watched {
        Source(Worker& worker, const LinkFacts& facts) : worker(worker), link(facts) {}

        void woken(bool has_hung_up) override {
            // A device that was deleted would report that for ever.
            if (has_hung_up) return worker.watch_.remove(link.from_device());
            for (int i = 0; i < arrivals_at_once; i++) {
                const ssize_t size = read(link.from_device(), worker.buffer_, sizeof worker.buffer_);
                if (size <= static_cast<ssize_t>(virtio_bytes)) return;
                const bool was_empty = link.is_empty();
                link.accept(worker.buffer_, static_cast<size_t>(size), monotonic_ns());
                if (was_empty && !link.is_empty()) worker.deliveries_.emplace(link.next_delivery_ns(), &link);
            }
        }

        Worker& worker;
        PacketLink link;
    };

    using Delivery = std::pair<int64_t, PacketLink*>;

    Watch watch_;
    std::deque<Source> sources_;
    std::priority_queue<Delivery, std::vector<Delivery>, std::greater<Delivery>> deliveries_;
    uint8_t buffer_[largest_packet_bytes];
};

// Watches the devices of a namespace: a link end that is set down takes the carrier from the other end.
class CarrierWatch : public Watched {
public:
    // Hears of all changes of devices in the namespace of the calling thread.
    CarrierWatch() : netlink_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
        if (netlink_ < 0) throw refused("netlink socket");
        sockaddr_nl address{};
        address.nl_family = AF_NETLINK;
        address.nl_groups = RTMGRP_LINK;
        if (bind(netlink_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) throw refused("netlink bind");
    }

    int descriptor() const { return netlink_; }
    void add(const std::string& device, int peer) { peers_[device] = peer; }

    void woken(bool) override {
        alignas(nlmsghdr) char buffer[16384];
        for (ssize_t size; (size = recv(netlink_, buffer, sizeof buffer, 0)) > 0;) {
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

    int netlink_;
    std::map<std::string, int> peers_;
};

struct Device {
    int descriptor;
    std::string name;
    CarrierWatch* carriers;
};

struct Fabric {
    std::vector<Device> devices;
    std::deque<CarrierWatch> carriers;
    std::deque<Worker> workers;
};

int open_tun(const std::string& name, bool segments_pass_whole) {
    const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) throw refused("open /dev/net/tun");
    ifreq request{};
    std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
    request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(device, TUNSETIFF, &request) != 0) throw refused("TUNSETIFF " + name);
    const unsigned offload = segments_pass_whole ? TUN_F_CSUM | TUN_F_TSO4 : TUN_F_CSUM;
    if (ioctl(device, TUNSETOFFLOAD, offload) != 0) throw refused("TUNSETOFFLOAD " + name);
    return device;
}

void obey(Fabric& fabric, const std::string& verb, std::istringstream& words) {
    std::string text;
    if (verb == "threads") {
        size_t count = 0;
        words >> count;
        while (fabric.workers.size() < count) fabric.workers.emplace_back();
    } else if (verb == "namespace") {
        words >> text;
        enter_namespace(text);
        fabric.carriers.emplace_back();
    } else if (verb == "device") {
        size_t number = 0;
        bool segments_pass_whole = false;
        words >> number >> text >> segments_pass_whole;
        if (number != fabric.devices.size()) throw std::runtime_error("devices must be numbered in order");
        fabric.devices.push_back({open_tun(text, segments_pass_whole), text, &fabric.carriers.back()});
    } else if (verb == "link") {
        size_t from = 0, to = 0, thread = 0;
        LinkFacts facts;
        words >> from >> to >> facts.bits_per_s >> facts.latency_ns >> facts.loss_per_2_32 >> facts.queue_bytes >>
            facts.acknowledgements_only >> thread >> facts.seed;
        if (!words || facts.bits_per_s == 0) throw std::runtime_error("a link has a wrong number");
        const Device &sender = fabric.devices.at(from), &receiver = fabric.devices.at(to);
        facts.from_device = sender.descriptor;
        facts.to_device = receiver.descriptor;
        sender.carriers->add(sender.name, receiver.descriptor);
        fabric.workers.at(thread).add(facts);
    } else {
        throw std::runtime_error("unknown line: " + verb);
    }
}

void read_fabric(Fabric& fabric) {
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string verb;
        words >> verb;
        if (verb == "go") return;
        obey(fabric, verb, words);
    }
    throw std::runtime_error("the input ended early");
}

void let_go_of_pipes() {
    std::printf("ready %d\n", getpid());
    std::fflush(stdout);
    const int nothing = open("/dev/null", O_RDWR);
    for (int pipe = 0; pipe < 3; pipe++) dup2(nothing, pipe);
    close(nothing);
}

// The process that keeps the namespaces: its end is the end of this one.
struct Holder : Watched {
    explicit Holder(pid_t pid) : descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {
        if (descriptor < 0) throw refused("pidfd_open");
    }
    void woken(bool) override { _exit(0); }

    const int descriptor;
};

[[noreturn]] void run(pid_t holder_pid) {
    raise_descriptor_limit();
    Holder holder(holder_pid);
    mallopt(M_TRIM_THRESHOLD, 1 << 28);  // memory of packets is used again
    mallopt(M_MMAP_THRESHOLD, 1 << 28);
    Fabric fabric;
    // In a thread of its own: this one stays out of the namespaces, or it would count as what runs in the fabric.
    std::async(std::launch::async, [&fabric] { read_fabric(fabric); }).get();
    take_precedence(1, -15);
    for (Worker& worker : fabric.workers) std::thread([&worker] { worker.run(); }).detach();
    let_go_of_pipes();
    Watch watch;
    watch.add_reader(holder.descriptor, holder);
    for (CarrierWatch& carriers : fabric.carriers) watch.add_reader(carriers.descriptor(), carriers);
    while (true)
        for (const Watch::Event& event : watch.wait(INT64_MAX)) event.watched->woken(event.has_hung_up);
}

}  // namespace
}  // namespace chorale

int main(int count, char** arguments) {
    std::signal(SIGPIPE, SIG_IGN);
    try {
        if (count != 3) throw std::runtime_error("usage: links NAME HOLDER");
        chorale::run(std::atoi(arguments[2]));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
