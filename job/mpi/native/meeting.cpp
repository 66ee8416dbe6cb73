// Exchanges addresses among the ranks of a communicator, and connects their engines.
#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "job.hpp"

namespace chorale::job {

namespace {

constexpr size_t TEXT_BYTES = 1024;
// Variables that tell MPI which network devices to use.
constexpr const char* VARIABLES =
    "OMPI_MCA_btl_tcp_if_include,OMPI_MCA_btl_tcp_if_exclude,FI_TCP_IFACE,UCX_NET_DEVICES";
constexpr size_t TOKEN_BYTES = 16;

std::string random_hex(size_t bytes) {
    std::vector<unsigned char> random(bytes);
    if (getrandom(random.data(), bytes, 0) != ssize_t(bytes)) throw std::runtime_error("no random bytes");
    std::string text;
    for (const unsigned char byte : random) text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    return text;
}

// Returns MPI's name of the first host that differs from this one; empty if all ranks are on this host.
std::string other_host(MPI_Comm comm, double limit_s) {
    char name[MPI_MAX_PROCESSOR_NAME + 1] = {};
    int size = 0;
    PMPI_Get_processor_name(name, &size);
    for (const std::string& other : gather_texts(comm, std::string(name).substr(0, 255), limit_s))
        if (other != std::string(name).substr(0, 255)) return other;
    return "";
}

std::string listen(chorale_engine* engine, const std::string& address) {
    char bound[TEXT_BYTES] = {};
    if (chorale_listen(engine, address.c_str(), bound, sizeof bound) != CHORALE_OK)
        throw std::runtime_error(chorale_error(engine));
    return bound;
}

}  // namespace

std::string network_id() {
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
    char network[64] = {};
    if (readlink("/proc/self/ns/net", network, sizeof network - 1) < 0) throw std::runtime_error("/proc is not there");
    return boot + " " + network;
}

std::vector<std::string> gather_texts(MPI_Comm comm, const std::string& text, double limit_s) {
    if (text.size() >= TEXT_BYTES) throw std::runtime_error("an address is too long: " + text);
    int ranks = 0;
    PMPI_Comm_size(comm, &ranks);
    // Not freed if the wait ends early, because MPI may still write there.
    auto& memory = *new std::vector<char>(TEXT_BYTES * (ranks + 1));
    char* const all = memory.data() + TEXT_BYTES;
    std::memcpy(memory.data(), text.data(), text.size());
    MPI_Request request;
    if (PMPI_Iallgather(memory.data(), TEXT_BYTES, MPI_BYTE, all, TEXT_BYTES, MPI_BYTE, comm, &request) !=
        MPI_SUCCESS)
        throw std::runtime_error("MPI could not exchange the addresses of ranks");
    const double deadline_s = seconds_now() + limit_s;
    for (int is_done = 0; PMPI_Test(&request, &is_done, MPI_STATUS_IGNORE), !is_done;) {
        if (seconds_now() > deadline_s) throw std::runtime_error("not all ranks came to this call in time");
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    std::vector<std::string> texts;
    for (int rank = 0; rank < ranks; rank++) texts.emplace_back(all + rank * TEXT_BYTES);
    delete &memory;
    return texts;
}

void meet(chorale_engine* engine, MPI_Comm comm, const std::string& interface, double limit_s) {
    const std::string network = network_id();
    const auto networks = gather_texts(comm, network, limit_s);
    const std::string name = "shm:chorale-" + std::to_string(getpid()) + "-" + random_hex(8);
    auto addresses = gather_texts(comm, listen(engine, name), limit_s);
    char doors[TEXT_BYTES] = {};
    if (chorale_listen_devices(engine, interface.c_str(), VARIABLES, other_host(comm, limit_s).c_str(), doors,
                               sizeof doors) != CHORALE_OK)
        throw std::runtime_error(std::string(chorale_error(engine)) + " (CHORALE_INTERFACE)");
    const auto over_tcp = gather_texts(comm, doors, limit_s);
    const std::string secret = gather_texts(comm, random_hex(TOKEN_BYTES), limit_s).front();
    uint8_t token[TOKEN_BYTES] = {};
    for (size_t i = 0; i < TOKEN_BYTES; i++) token[i] = uint8_t(std::stoi(secret.substr(2 * i, 2), nullptr, 16));
    std::vector<const char*> texts;
    for (size_t rank = 0; rank < networks.size(); rank++)
        texts.push_back((networks[rank] == network ? addresses : over_tcp)[rank].c_str());
    if (chorale_connect(engine, texts.data(), token, limit_s) != CHORALE_OK)
        throw std::runtime_error(chorale_error(engine));
    chorale_set(engine, "listening", 0);
}

}  // namespace chorale::job
