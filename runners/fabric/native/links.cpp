// The links of a fabric: TUN devices in its namespaces, and threads that carry packets between them.
//
// Usage: links NAME HOLDER. This process ends when the process HOLDER ends. Lines of standard input:
//   threads COUNT
//   namespace PATH                          the devices after it are in this namespace
//   device NUMBER NAME                      numbers count from 0
//   link FROM TO BITS_PER_S QUEUE_BYTES ACKNOWLEDGEMENTS_ONLY THREAD
//   go
// After "go", the process prints "ready PID" and closes its pipes.
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <malloc.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <queue>
#include <sstream>
#include <thread>

#include "system.hpp"

namespace chorale {
namespace {

// The header that TUN adds to packets; the Linux header file that defines it is not valid C++.
struct VirtioHeader {
    uint8_t flags;
    uint8_t gso_type;
    uint16_t header_bytes;
    uint16_t gso_size;
    uint16_t checksum_start;
    uint16_t checksum_offset;
};
static_assert(sizeof(VirtioHeader) == 10);

constexpr size_t virtio_bytes = sizeof(VirtioHeader);
constexpr size_t largest_packet_bytes = 65535 + virtio_bytes;

// Determines how many bytes a packet has on the wire, and whether it carries data.
struct PacketView {
    PacketView(const uint8_t* bytes, size_t size)
        : header(reinterpret_cast<const VirtioHeader*>(bytes)), ip(bytes + virtio_bytes), ip_bytes(size - virtio_bytes) {}

    bool is_acknowledgement() const {
        const size_t headers = tcp_header_bytes();
        return headers != 0 && headers == ip_bytes;
    }

    // A packet that the kernel has not segmented yet counts as much as its segments, each of which has headers.
    size_t bytes_on_wire() const {
        const size_t segment = header->gso_size;
        if (header->gso_type == 0 || segment == 0) return ip_bytes;
        const size_t headers = tcp_header_bytes();
        const size_t payload = ip_bytes > headers ? ip_bytes - headers : 0;
        const size_t segments = (payload + segment - 1) / segment;
        return ip_bytes + (segments > 1 ? (segments - 1) * headers : 0);
    }

private:
    // Returns the size of the IP and TCP headers in bytes; 0 if the packet is not TCP over IPv4.
    size_t tcp_header_bytes() const {
        if (ip_bytes < 20 || ip[0] >> 4 != 4 || ip[9] != IPPROTO_TCP) return 0;
        const size_t ip_header = (ip[0] & 15) * 4u;
        if (ip_bytes < ip_header + 20) return 0;
        return ip_header + (ip[ip_header + 12] >> 4) * 4u;
    }

    const VirtioHeader* header;
    const uint8_t* ip;
    size_t ip_bytes;
};

struct LinkFacts {
    int from_device = -1;
    int to_device = -1;
    uint64_t bits_per_s = 0;
    uint64_t queue_bytes = 0;
    bool acknowledgements_only = false;
};

// One direction of a link. Takes packets from one device and delivers them to the other when their transmission ends.
class PacketLink {
public:
    explicit PacketLink(const LinkFacts& facts) : facts_(facts) {
        clock_.set_pace(8e9 / static_cast<double>(facts.bits_per_s));
    }

    int from_device() const { return facts_.from_device; }
    bool is_empty() const { return packets_.empty(); }

    // Returns when to deliver packets next. The last packet is delivered on time. Packets before it are delivered at
    // ticks that all links share, so that one wake-up serves many links. This does not reduce the rate, because the
    // link continues to transmit.
    int64_t next_delivery_ns() const {
        const int64_t tick = (packets_.front().delivery_ns + tick_ns - 1) / tick_ns * tick_ns;
        return std::min(tick, packets_.back().delivery_ns);
    }

    // Accepts a packet that arrived at `now_ns`.
    void accept(const uint8_t* bytes, size_t size, int64_t now_ns) {
        const PacketView packet(bytes, size);
        const size_t wire_bytes = packet.bytes_on_wire();
        if (facts_.acknowledgements_only && !packet.is_acknowledgement()) return;
        if (queued_bytes_ + wire_bytes > facts_.queue_bytes) return;
        const int64_t end_ns = clock_.carry(wire_bytes, now_ns);
        std::unique_ptr<uint8_t[]> copy(new uint8_t[size]);
        std::memcpy(copy.get(), bytes, size);
        queued_bytes_ += wire_bytes;
        packets_.push_back({end_ns, size, wire_bytes, std::move(copy)});
    }

    // Delivers the packets that are due. If the device is down, it refuses them, and they are lost, as on a cut cable.
    void deliver(int64_t now_ns) {
        while (!packets_.empty() && packets_.front().delivery_ns <= now_ns) {
            const Packet& packet = packets_.front();
            if (write(facts_.to_device, packet.bytes.get(), packet.size) < 0) refused_++;
            queued_bytes_ -= packet.wire_bytes;
            packets_.pop_front();
        }
    }

private:
    static constexpr int64_t tick_ns = 500'000;

    struct Packet {
        int64_t delivery_ns;
        size_t size;
        size_t wire_bytes;
        std::unique_ptr<uint8_t[]> bytes;
    };

    const LinkFacts facts_;
    LinkClock clock_;
    std::deque<Packet> packets_;
    uint64_t queued_bytes_ = 0;
    uint64_t refused_ = 0;
};

// A thread that serves several links. It reads arriving packets, and sleeps until the next delivery.
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
    static constexpr int arrivals_at_once = 32;  // number of packets after which other devices get a turn

    struct Source : Watched {
        Source(Worker& worker, const LinkFacts& facts) : worker(worker), link(facts) {}

        void woken(bool has_hung_up) override {
            // Stops watching a deleted device, which would report an error forever.
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

// Watches the devices of a namespace. If one end of a link is set down, the other end loses its carrier.
class CarrierWatch : public Watched {
public:
    // Opens a netlink socket that reports changes of devices in the namespace of the calling thread.
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

int open_tun(const std::string& name) {
    const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) throw refused("open /dev/net/tun");
    ifreq request{};
    std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
    request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(device, TUNSETIFF, &request) != 0) throw refused("TUNSETIFF " + name);
    if (ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0) throw refused("TUNSETOFFLOAD " + name);
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
        words >> number >> text;
        if (number != fabric.devices.size()) throw std::runtime_error("devices must be numbered in order");
        fabric.devices.push_back({open_tun(text), text, &fabric.carriers.back()});
    } else if (verb == "link") {
        size_t from = 0, to = 0, thread = 0;
        LinkFacts facts;
        words >> from >> to >> facts.bits_per_s >> facts.queue_bytes >>
            facts.acknowledgements_only >> thread;
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

// Ends this process when the process that holds the namespaces ends.
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
    mallopt(M_TRIM_THRESHOLD, 1 << 28);  // keeps the memory of freed packets for later packets
    mallopt(M_MMAP_THRESHOLD, 1 << 28);
    Fabric fabric;
    // Devices are created in another thread, because a process in the namespaces would count as running in the fabric.
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
