// The links of an emulated network: TUN devices in its namespaces, and threads that carry packets between them.
//
// Usage: links NAME HOLDER, where HOLDER is the process whose end is also the end of this one. Standard input says what
// to make, a line each:
//   threads COUNT
//   namespace PATH                          the devices after it are in this namespace
//   device NUMBER NAME SEGMENTS_PASS_WHOLE  numbers count from 0
//   link FROM TO BITS_PER_S LATENCY_NS LOSS_PER_2_32 QUEUE_BYTES ACKNOWLEDGEMENTS_ONLY THREAD SEED
//   go
// It then answers "ready PID" and lets go of its pipes.
#include <malloc.h>
#include <sys/syscall.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iostream>
#include <sstream>
#include <thread>

#include "carrier.hpp"
#include "precedence.hpp"
#include "worker.hpp"

namespace {

struct Device {
    int descriptor;
    std::string name;
    size_t watch;
};

struct Network {
    std::vector<Device> devices;
    std::vector<CarrierWatch> watches;
    std::vector<std::unique_ptr<Worker>> workers;
};

int open_tun(const std::string& name, bool segments_pass_whole) {
    const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) throw system_error("open /dev/net/tun");
    ifreq request{};
    std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
    request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(device, TUNSETIFF, &request) != 0) throw system_error("TUNSETIFF " + name);
    const unsigned offload = segments_pass_whole ? TUN_F_CSUM | TUN_F_TSO4 : TUN_F_CSUM;
    if (ioctl(device, TUNSETOFFLOAD, offload) != 0) throw system_error("TUNSETOFFLOAD " + name);
    return device;
}

void add_link(Network& network, std::istringstream& words) {
    size_t from = 0, to = 0, thread = 0;
    LinkFacts facts;
    words >> from >> to >> facts.bits_per_s >> facts.latency_ns >> facts.loss_per_2_32 >> facts.queue_bytes >>
        facts.acknowledgements_only >> thread >> facts.seed;
    if (!words || facts.bits_per_s == 0) throw std::runtime_error("a link has a wrong number");
    const Device& sender = network.devices.at(from);
    const Device& receiver = network.devices.at(to);
    facts.from_device = sender.descriptor;
    facts.to_device = receiver.descriptor;
    network.watches[sender.watch].add(sender.name, receiver.descriptor);
    network.workers.at(thread)->add(facts);
}

void obey(Network& network, const std::string& verb, std::istringstream& words) {
    std::string text;
    if (verb == "threads") {
        size_t count = 0;
        words >> count;
        for (size_t i = 0; i < count; ++i) network.workers.push_back(std::make_unique<Worker>());
    } else if (verb == "namespace") {
        words >> text;
        enter_namespace(text);
        network.watches.emplace_back(open_device_watch());
    } else if (verb == "device") {
        size_t number = 0;
        bool segments_pass_whole = false;
        words >> number >> text >> segments_pass_whole;
        if (number != network.devices.size()) throw std::runtime_error("devices must be numbered in order");
        network.devices.push_back({open_tun(text, segments_pass_whole), text, network.watches.size() - 1});
    } else if (verb == "link") {
        add_link(network, words);
    } else {
        throw std::runtime_error("unknown line: " + verb);
    }
}

Network read_network() {
    Network network;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string verb;
        words >> verb;
        if (verb == "go") return network;
        obey(network, verb, words);
    }
    throw std::runtime_error("the input ended early");
}

void let_go_of_pipes() {
    std::printf("ready %d\n", getpid());
    std::fflush(stdout);
    const int nothing = open("/dev/null", O_RDWR);
    for (int pipe = 0; pipe < 3; ++pipe) dup2(nothing, pipe);
    close(nothing);
}

int watch_process(pid_t pid) {
    const long watch = syscall(SYS_pidfd_open, pid, 0);
    if (watch < 0) throw system_error("pidfd_open");
    return static_cast<int>(watch);
}

// Returns when the holder has ended.
void watch_devices(Network& network, int holder) {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const auto add = [epoll](int descriptor, uint32_t index) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u32 = index;
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) throw system_error("epoll_ctl");
    };
    add(holder, UINT32_MAX);
    for (size_t i = 0; i < network.watches.size(); ++i) add(network.watches[i].descriptor(), static_cast<uint32_t>(i));
    while (true) {
        epoll_event event{};
        if (epoll_wait(epoll, &event, 1, -1) < 1) continue;
        if (event.data.u32 == UINT32_MAX) return;
        network.watches[event.data.u32].handle();
    }
}

void run(pid_t holder_pid) {
    raise_descriptor_limit();
    const int holder = watch_process(holder_pid);
    mallopt(M_TRIM_THRESHOLD, 1 << 28);  // memory of packets is used again
    mallopt(M_MMAP_THRESHOLD, 1 << 28);
    // In a thread of its own: this one stays out of the namespaces, or it would count as what runs in the fabric.
    std::promise<Network> reading;
    std::thread([&reading] {
        try {
            reading.set_value(read_network());
        } catch (...) {
            reading.set_exception(std::current_exception());
        }
    }).join();
    Network network = reading.get_future().get();
    if (!schedule_in_real_time(1)) take_precedence(-15);
    for (auto& worker : network.workers) std::thread([&worker] { worker->run(); }).detach();
    let_go_of_pipes();
    watch_devices(network, holder);
    _exit(0);
}

}  // namespace

int main(int count, char** arguments) {
    std::signal(SIGPIPE, SIG_IGN);
    try {
        if (count != 3) throw std::runtime_error("usage: links NAME HOLDER");
        run(std::atoi(arguments[2]));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
