#include "network.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <vector>

#include "engine_clock.hpp"
#include "oneapi/ccl.hpp"

namespace chorale {
namespace {

constexpr int64_t shortest_ns = 10'000, longest_ns = 200'000;  // of a pause: ranks share cores

// Something that was posted. Each test gives oneCCL a turn to make progress: there is no other thread that does. The
// first comes right after posting, so that oneCCL starts messages in the order in which they were posted.
class Posted {
public:
    explicit Posted(ccl::event event) : event_(std::move(event)) { test(); }

    bool test() { return is_done_ = is_done_ || event_.test(); }

private:
    ccl::event event_;
    bool is_done_ = false;
};

ccl::datatype datatype_of(int type) {
    switch (type) {
        case CHORALE_FLOAT32: return ccl::datatype::float32;
        case CHORALE_FLOAT64: return ccl::datatype::float64;
        case CHORALE_FLOAT16: return ccl::datatype::float16;
        case CHORALE_INT32: return ccl::datatype::int32;
        case CHORALE_INT64: return ccl::datatype::int64;
        case CHORALE_BFLOAT16: return ccl::datatype::bfloat16;
        default: throw std::runtime_error("oneCCL's collectives are not run on this element type");
    }
}

std::shared_ptr<ccl::kvs> open_key_store(int rank) {
    if (rank == 0) {
        auto store = ccl::create_main_kvs();
        const auto address = store->get_address();
        std::ofstream("key-store.new", std::ios::binary).write(address.data(), address.size());
        std::rename("key-store.new", "key-store");
        return store;
    }
    ccl::kvs::address_type address;
    std::ifstream("key-store", std::ios::binary).read(address.data(), address.size());
    return ccl::create_kvs(address);
}

}  // namespace

struct Network::Library {
    Library(const Task& task) {
        const auto key_store = open_key_store(task.rank);
        for (size_t i = 0; i < task.channels + 2; i++)
            communicators.push_back(ccl::create_communicator(task.ranks, task.rank, key_store));
    }

    // One communicator for each channel, because oneCCL matches the messages of one by their order alone; one more
    // for control and one for collectives.
    std::vector<ccl::communicator> communicators;
    ccl::communicator& control() { return communicators[communicators.size() - 2]; }
    ccl::communicator& own() { return communicators.back(); }
    // What is waited for. It stays when the limit passes, because oneCCL waits before it destroys what is not done.
    std::optional<Posted> awaited;

    ccl::event send(const void* bytes, size_t size, int peer, ccl::communicator& communicator) {
        return ccl::send(const_cast<void*>(bytes), size, ccl::datatype::uint8, peer, communicator);
    }
    ccl::event receive(void* bytes, size_t size, int peer, ccl::communicator& communicator) {
        return ccl::recv(bytes, size, ccl::datatype::uint8, peer, communicator);
    }

    static void* post_send(void* self, const void* bytes, size_t size, int peer, int channel) {
        auto& library = *static_cast<Library*>(self);
        return new Posted(library.send(bytes, size, peer, library.communicators.at(channel)));
    }
    static void* post_receive(void* self, void* bytes, size_t size, int peer, int channel) {
        auto& library = *static_cast<Library*>(self);
        return new Posted(library.receive(bytes, size, peer, library.communicators.at(channel)));
    }
    static int test(void*, void* request) {
        auto* posted = static_cast<Posted*>(request);
        if (!posted->test()) return 0;
        delete posted;
        return 1;
    }

    ccl::event start_collective(const Task& task, const void* input, void* output, size_t elements);
};

Network::Network(const Task& task) : task_(task) {
    ccl::init();
    library_ = std::make_unique<Library>(task);
}

Network::~Network() = default;

chorale_messages Network::messages() {
    return {library_.get(), Library::post_send, Library::post_receive, Library::test};
}

void Network::tell(const void* bytes, size_t size, int peer, const std::string& purpose) {
    library_->awaited.emplace(library_->send(bytes, size, peer, library_->control()));
    wait(purpose + " to rank " + std::to_string(peer));
}

void Network::hear(void* bytes, size_t size, int peer, const std::string& purpose) {
    library_->awaited.emplace(library_->receive(bytes, size, peer, library_->control()));
    wait(purpose + " from rank " + std::to_string(peer));
}

void Network::collective(const void* input, void* output, size_t elements) {
    library_->awaited.emplace(library_->start_collective(task_, input, output, elements));
    wait("oneCCL's own algorithm");
}

ccl::event Network::Library::start_collective(const Task& task, const void* input, void* output, size_t elements) {
    const ccl::datatype type = datatype_of(task.type);
    const auto sum = ccl::reduction::sum;
    const size_t shard = elements / task.ranks;
    const std::string& name = task.collective;
    if (name == "allreduce") return ccl::allreduce(input, output, elements, type, sum, own());
    if (name == "reduce") return ccl::reduce(input, output, elements, type, sum, task.root, own());
    if (name == "reduce_scatter") return ccl::reduce_scatter(input, output, shard, type, sum, own());
    if (name == "alltoall") return ccl::alltoall(input, output, shard, type, own());
    if (name == "broadcast") return ccl::broadcast(output, elements, type, task.root, own());
    const ccl::vector_class<size_t> shards(task.ranks, shard);
    return ccl::allgatherv(input, shard, output, shards, type, own());
}

void Network::wait(const std::string& purpose) {
    for (int64_t rest_ns = shortest_ns; !library_->awaited->test(); rest_ns = std::min(2 * rest_ns, longest_ns)) {
        if (seconds_left() < 0) throw LimitPassed(purpose);
        pause_ns(rest_ns);
    }
}

void Network::set_limit(double seconds) { deadline_ns_ = deadline_after(seconds); }

double Network::seconds_left() const { return static_cast<double>(deadline_ns_ - monotonic_ns()) / 1e9; }

}  // namespace chorale
