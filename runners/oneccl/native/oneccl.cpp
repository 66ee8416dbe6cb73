// A C interface to oneCCL: its point-to-point calls, as messages for the engine, and its own collectives.
//
// Functions that fail return null or a status other than CHORALE_OK; chorale_oneccl_error returns the reason. All calls
// must come from one thread.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chorale_engine.h"
#include "engine_clock.hpp"
#include "oneapi/ccl.hpp"

namespace {

constexpr int64_t shortest_ns = 10'000, longest_ns = 200'000;  // pause between tests, because ranks may share cores

std::string last_error;

int guarded(const std::function<int()>& work) {
    try {
        return work();
    } catch (const std::exception& error) {
        last_error = error.what();
        return CHORALE_SYSTEM;
    }
}

// A posted message. oneCCL only makes progress when a request is tested. Each request is tested immediately after it
// was posted, so that oneCCL starts messages in the order in which they were posted.
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

std::shared_ptr<ccl::kvs> key_store;

void* post(const std::function<ccl::event()>& call) {
    Posted* posted = nullptr;
    guarded([&] { return posted = new Posted(call()), CHORALE_OK; });
    return posted;
}

}  // namespace

extern "C" {

struct chorale_oneccl {
    // The first communicator is for collectives. Each channel has its own, because oneCCL matches the messages of a
    // communicator only by their order.
    std::vector<ccl::communicator> communicators;
    chorale_messages messages;
};

const char* chorale_oneccl_error() { return last_error.c_str(); }

// Opens, on one rank, the key-value store through which ranks connect, and writes its address.
int chorale_oneccl_store(void* address, size_t room) {
    return guarded([&] {
        key_store = ccl::create_main_kvs();
        const auto written = key_store->get_address();
        if (written.size() > room) throw std::runtime_error("the address of oneCCL's key-value store is too long");
        std::memcpy(address, written.data(), written.size());
        return CHORALE_OK;
    });
}

// Connects to the other ranks. Communicators are never destroyed, because oneCCL would wait for ranks that may have
// ended.
chorale_oneccl* chorale_oneccl_join(int rank, int ranks, const void* address, size_t channels) {
    auto* oneccl = new chorale_oneccl();
    const int status = guarded([&] {
        ccl::init();
        if (!key_store) {
            ccl::kvs::address_type store;
            std::memcpy(store.data(), address, store.size());
            key_store = ccl::create_kvs(store);
        }
        for (size_t left = channels + 1; left > 0; left--)
            oneccl->communicators.push_back(ccl::create_communicator(ranks, rank, key_store));
        return CHORALE_OK;
    });
    const auto send = [](void* self, const void* bytes, size_t size, int peer, int channel) {
        auto& communicator = static_cast<chorale_oneccl*>(self)->communicators.at(static_cast<size_t>(channel) + 1);
        return post([&] { return ccl::send(const_cast<void*>(bytes), size, ccl::datatype::uint8, peer, communicator); });
    };
    const auto receive = [](void* self, void* bytes, size_t size, int peer, int channel) {
        auto& communicator = static_cast<chorale_oneccl*>(self)->communicators.at(static_cast<size_t>(channel) + 1);
        return post([&] { return ccl::recv(bytes, size, ccl::datatype::uint8, peer, communicator); });
    };
    const auto test = [](void*, void* request) {
        auto* posted = static_cast<Posted*>(request);
        bool is_done = false;
        if (guarded([&] { return is_done = posted->test(), CHORALE_OK; }) != CHORALE_OK) return -1;
        if (is_done) delete posted;
        return is_done ? 1 : 0;
    };
    oneccl->messages = {oneccl, send, receive, test};
    return status == CHORALE_OK ? oneccl : nullptr;
}

const chorale_messages* chorale_oneccl_messages(const chorale_oneccl* oneccl) { return &oneccl->messages; }

// Runs oneCCL's own collective `name` on a vector of `elements`. If it is not done within the limit, its request is
// never destroyed, because oneCCL would wait for it.
int chorale_oneccl_collective(chorale_oneccl* oneccl, const char* name_text, int root, int data_type, const void* input,
                              void* output, size_t elements, double limit_s) {
    return guarded([&]() -> int {
        const int64_t deadline_ns = chorale::deadline_after(limit_s);
        ccl::communicator& all = oneccl->communicators.front();
        const ccl::datatype type = datatype_of(data_type);
        const auto sum = ccl::reduction::sum;
        const size_t ranks = static_cast<size_t>(all.size()), shard = elements / ranks;
        const std::string name = name_text;
        const auto start = [&] {
            if (name == "allreduce") return ccl::allreduce(input, output, elements, type, sum, all);
            if (name == "reduce") return ccl::reduce(input, output, elements, type, sum, root, all);
            if (name == "reduce_scatter") return ccl::reduce_scatter(input, output, shard, type, sum, all);
            if (name == "alltoall") return ccl::alltoall(input, output, shard, type, all);
            if (name == "broadcast") return ccl::broadcast(output, elements, type, root, all);
            return ccl::allgatherv(input, shard, output, ccl::vector_class<size_t>(ranks, shard), type, all);
        };
        auto* posted = new Posted(start());
        for (int64_t rest_ns = shortest_ns; !posted->test(); rest_ns = std::min(2 * rest_ns, longest_ns)) {
            if (chorale::monotonic_ns() > deadline_ns) return CHORALE_TIMEOUT;
            chorale::pause_ns(rest_ns);
        }
        delete posted;
        return CHORALE_OK;
    });
}

}  // extern "C"
