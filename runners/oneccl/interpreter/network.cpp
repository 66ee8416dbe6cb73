#include "network.hpp"

#include "clock.hpp"
#include "wait.hpp"

namespace chorale {
namespace {

ccl::datatype datatype_of(ElementType type) {
    switch (type) {
        case ElementType::float32: return ccl::datatype::float32;
        case ElementType::float64: return ccl::datatype::float64;
        case ElementType::int32: return ccl::datatype::int32;
        default: return ccl::datatype::bfloat16;
    }
}

}  // namespace

Network::Network(const Task& task, std::shared_ptr<ccl::kvs> key_store) : task_(task) {
    for (size_t i = 0; i < task.channels + 2; i++)
        communicators_.push_back(ccl::create_communicator(task.ranks, task.rank, key_store));
}

Posted Network::send(const void* bytes, size_t size, int peer, size_t channel) {
    return Posted(ccl::send(const_cast<void*>(bytes), size, ccl::datatype::uint8, peer, communicators_[channel]));
}

Posted Network::receive(void* bytes, size_t size, int peer, size_t channel) {
    return Posted(ccl::recv(bytes, size, ccl::datatype::uint8, peer, communicators_[channel]));
}

void Network::tell(const void* bytes, size_t size, int peer, const std::string& purpose) {
    wait_for(ccl::send(const_cast<void*>(bytes), size, ccl::datatype::uint8, peer, control()),
             purpose + " to rank " + std::to_string(peer));
}

void Network::hear(void* bytes, size_t size, int peer, const std::string& purpose) {
    wait_for(ccl::recv(bytes, size, ccl::datatype::uint8, peer, control()),
             purpose + " from rank " + std::to_string(peer));
}

void Network::collective(const void* input, void* output, size_t elements) {
    wait_for(start_collective(input, output, elements), "oneCCL's own algorithm");
}

ccl::event Network::start_collective(const void* input, void* output, size_t elements) {
    const ccl::datatype type = datatype_of(task_.type);
    const auto sum = ccl::reduction::sum;
    const size_t shard = elements / task_.ranks;
    const std::string& name = task_.collective;
    if (name == "allreduce") return ccl::allreduce(input, output, elements, type, sum, library());
    if (name == "reduce") return ccl::reduce(input, output, elements, type, sum, task_.root, library());
    if (name == "reduce_scatter") return ccl::reduce_scatter(input, output, shard, type, sum, library());
    if (name == "alltoall") return ccl::alltoall(input, output, shard, type, library());
    if (name == "broadcast") return ccl::broadcast(output, elements, type, task_.root, library());
    const ccl::vector_class<size_t> shards(task_.ranks, shard);
    return ccl::allgatherv(input, shard, output, shards, type, library());
}

void Network::wait_for(ccl::event event, const std::string& purpose) {
    awaited_.emplace(std::move(event));
    for (Idle idle; !awaited_->test(); idle.sleep())
        if (is_late()) throw LimitPassed(purpose);
}

bool Network::is_late() const { return now_ns() > deadline_ns_; }

}  // namespace chorale
