// Times exchanges between the ranks of an emulated network over plain TCP, a thread for each rank.
//
// Usage: exchanges LIMIT_S. Standard input, a line each:
//   rank NAMESPACE ADDRESS           ranks count from 0
//   stream SOURCE TARGET             streams count from 0; at most one for a pair of ranks
//   exchange IDLE_US STREAM:BYTES …  all start together, after a pause in which the links are idle
//   go
// It prints a line for each stream of each exchange: "EXCHANGE STREAM START_NS END_NS", the clock that of the machine,
// from before the first byte is handed over until the last byte has come out; then "cpu_ns N", its own use of
// processors during all exchanges.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "system.hpp"

namespace chorale {
namespace {

constexpr int port = 7000;
constexpr int connect_limit_s = 20;
constexpr size_t block_bytes = 1 << 16;
constexpr size_t first_block_bytes = 1 << 15;  // so that all links have something to carry soon

struct Rank {
    std::string name_space;
    std::string address;
    int listener = -1;
};

struct Stream {
    size_t source, target;
    int sending = -1, receiving = -1;
};

struct Exchange {
    int64_t idle_ns;
    std::vector<std::pair<size_t, size_t>> parts;  // stream, bytes
};

struct Times {
    int64_t start_ns = 0, end_ns = 0;
};

struct Task {
    std::vector<Rank> ranks;
    std::vector<Stream> streams;
    std::vector<Exchange> exchanges;
};

Exchange read_exchange(std::istringstream& words, size_t streams) {
    Exchange exchange{};
    words >> exchange.idle_ns;
    exchange.idle_ns *= 1000;
    size_t stream = 0, bytes = 0;
    for (char colon = 0; words >> stream >> colon >> bytes;) {
        if (stream >= streams || bytes == 0) throw std::runtime_error("an exchange has a wrong number");
        exchange.parts.emplace_back(stream, bytes);
    }
    return exchange;
}

Task read_task() {
    Task task;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string verb;
        words >> verb;
        if (verb == "go") return task;
        if (verb == "rank") {
            task.ranks.emplace_back();
            words >> task.ranks.back().name_space >> task.ranks.back().address;
        } else if (verb == "stream") {
            task.streams.emplace_back();
            words >> task.streams.back().source >> task.streams.back().target;
        } else if (verb == "exchange") {
            task.exchanges.push_back(read_exchange(words, task.streams.size()));
        } else {
            throw std::runtime_error("unknown line: " + verb);
        }
    }
    throw std::runtime_error("the input ended early");
}

sockaddr_in socket_address(const std::string& address) {
    sockaddr_in result{};
    result.sin_family = AF_INET;
    result.sin_port = htons(port);
    if (inet_pton(AF_INET, address.c_str(), &result.sin_addr) != 1) throw std::runtime_error("bad address " + address);
    return result;
}

int open_socket() {
    const int opened = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (opened < 0) throw refused("socket");
    const int on = 1;
    const timeval limit{connect_limit_s, 0};
    setsockopt(opened, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(opened, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(opened, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // of connect, too
    setsockopt(opened, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);  // of accept, too
    return opened;
}

void listen_on(Rank& rank, size_t backlog) {
    enter_namespace(rank.name_space);
    rank.listener = open_socket();
    const sockaddr_in address = socket_address(rank.address);
    if (bind(rank.listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        listen(rank.listener, static_cast<int>(backlog)) != 0)
        throw refused("listen on " + rank.address);
}

void connect_streams(Task& task, size_t source) {
    enter_namespace(task.ranks[source].name_space);
    for (Stream& stream : task.streams) {
        if (stream.source != source) continue;
        stream.sending = open_socket();
        const sockaddr_in address = socket_address(task.ranks.at(stream.target).address);
        if (connect(stream.sending, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
            throw refused("rank " + std::to_string(source) + " to rank " + std::to_string(stream.target));
    }
}

void accept_stream(Task& task, size_t target) {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    const int accepted = accept(task.ranks[target].listener, reinterpret_cast<sockaddr*>(&peer), &size);
    if (accepted < 0) throw refused("accept on rank " + std::to_string(target));
    for (Stream& stream : task.streams)
        if (stream.target == target && stream.receiving < 0 &&
            socket_address(task.ranks[stream.source].address).sin_addr.s_addr == peer.sin_addr.s_addr) {
            stream.receiving = accepted;
            return;
        }
    throw std::runtime_error("a connection from nobody");
}

void connect_all(Task& task) {
    for (Rank& rank : task.ranks) listen_on(rank, task.streams.size());
    for (size_t rank = 0; rank < task.ranks.size(); ++rank) connect_streams(task, rank);
    for (const Stream& stream : std::vector<Stream>(task.streams)) accept_stream(task, stream.target);
}

// What one rank does in one exchange: sends and receives until nothing remains of either.
class RankExchange {
  public:
    RankExchange(const Task& task, const Exchange& exchange, size_t rank, std::vector<Times>& times,
                 std::vector<char>& buffer)
        : times_(times), buffer_(buffer) {
        for (const auto& [stream, bytes] : exchange.parts) {
            if (task.streams[stream].source == rank) add(task.streams[stream].sending, POLLOUT, stream, bytes);
            if (task.streams[stream].target == rank) add(task.streams[stream].receiving, POLLIN, stream, bytes);
        }
    }

    void run() {
        size_t pending = polled_.size();
        for (size_t i = 0; i < polled_.size(); ++i)
            if (polled_[i].events == POLLOUT) {
                times_[streams_[i]].start_ns = monotonic_ns();
                pending -= advance(i, first_block_bytes);
            }
        while (pending > 0) {
            sched_yield();  // ranks share processors here, which on a real network they do not: each gets its turn
            if (poll(polled_.data(), polled_.size(), -1) < 0) throw refused("poll");
            for (size_t i = 0; i < polled_.size(); ++i)
                if (polled_[i].revents != 0) pending -= advance(i, block_bytes);
        }
    }

  private:
    void add(int descriptor, short events, size_t stream, size_t bytes) {
        polled_.push_back({descriptor, events, 0});
        streams_.push_back(stream);
        remaining_.push_back(bytes);
    }

    // Returns whether nothing remains.
    bool advance(size_t i, size_t most_bytes) {
        const bool sends = polled_[i].events == POLLOUT;
        const size_t size = std::min(remaining_[i], most_bytes);
        const ssize_t done = sends ? send(polled_[i].fd, buffer_.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL)
                                   : recv(polled_[i].fd, buffer_.data(), size, MSG_DONTWAIT);
        if (done == 0 || (done < 0 && errno != EAGAIN)) throw refused("a connection broke");
        if (done < 0) return false;
        remaining_[i] -= static_cast<size_t>(done);
        if (remaining_[i] != 0) return false;
        if (!sends) times_[streams_[i]].end_ns = monotonic_ns();
        polled_[i].fd = -1;
        return true;
    }

    std::vector<Times>& times_;
    std::vector<char>& buffer_;
    std::vector<pollfd> polled_;
    std::vector<size_t> streams_;
    std::vector<size_t> remaining_;
};

using AllTimes = std::vector<std::vector<Times>>;

void run_rank(const Task& task, size_t rank, AllTimes& times, std::vector<int64_t>& starts_ns,
              pthread_barrier_t& barrier) {
    std::vector<char> buffer(block_bytes);
    for (size_t number = 0; number < task.exchanges.size(); ++number) {
        const Exchange& exchange = task.exchanges[number];
        RankExchange mine(task, exchange, rank, times[number], buffer);
        pthread_barrier_wait(&barrier);
        if (rank == 0) starts_ns[number] = monotonic_ns() + exchange.idle_ns;
        pthread_barrier_wait(&barrier);
        pause_until(starts_ns[number]);
        mine.run();
    }
}

AllTimes run_exchanges(const Task& task) {
    AllTimes times(task.exchanges.size(), std::vector<Times>(task.streams.size()));
    std::vector<int64_t> starts_ns(task.exchanges.size());
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, nullptr, static_cast<unsigned>(task.ranks.size()));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < task.ranks.size(); ++rank)
        threads.emplace_back([&, rank] {
            try {
                run_rank(task, rank, times, starts_ns, barrier);
            } catch (const std::exception& error) {
                std::fprintf(stderr, "%s\n", error.what());
                _exit(1);
            }
        });
    for (std::thread& thread : threads) thread.join();
    return times;
}

void run() {
    raise_descriptor_limit();
    Task task = read_task();
    connect_all(task);
    std::puts("connected");
    std::fflush(stdout);
    std::string line;
    std::getline(std::cin, line);
    const int64_t before_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    const AllTimes times = run_exchanges(task);
    const int64_t used_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before_ns;
    for (size_t number = 0; number < times.size(); ++number)
        for (const auto& [stream, bytes] : task.exchanges[number].parts)
            std::printf("%zu %zu %lld %lld\n", number, stream, static_cast<long long>(times[number][stream].start_ns),
                        static_cast<long long>(times[number][stream].end_ns));
    std::printf("cpu_ns %lld\n", static_cast<long long>(used_ns));
}

}  // namespace
}  // namespace chorale

int main(int count, char** arguments) {
    try {
        if (count != 2) throw std::runtime_error("usage: exchanges LIMIT_S");
        chorale::take_precedence(0, -10);  // the links are in question, not what else the machine does
        alarm(static_cast<unsigned>(std::atoi(arguments[1])));
        chorale::run();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
