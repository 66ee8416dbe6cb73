// The ranks' way to one another: oneCCL's point-to-point calls and collectives.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "oneapi/ccl.hpp"
#include "task.hpp"

namespace chorale {

// The time limit of a run has passed.
struct LimitPassed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Something that was posted. Each test gives oneCCL a turn to make progress: there is no other thread that does.
class Posted {
public:
    explicit Posted(ccl::event event) : event_(std::move(event)) { test(); }

    bool test() { return is_done_ = is_done_ || event_.test(); }
    bool is_done() const { return is_done_; }

private:
    ccl::event event_;
    bool is_done_ = false;
};

class Network {
public:
    // Joins the ranks that know `key_store`; `channels` connections are possible from each rank to each other.
    Network(const Task& task, std::shared_ptr<ccl::kvs> key_store);

    // Messages from one rank to another on one channel arrive in order. The bytes must stay until it is done.
    Posted send(const void* bytes, size_t size, int peer, size_t channel);
    Posted receive(void* bytes, size_t size, int peer, size_t channel);

    // The same for `size` bytes between the ranks' main programs, waiting until it is done; LimitPassed with `purpose`
    // when the limit passes before.
    void tell(const void* bytes, size_t size, int peer, const std::string& purpose);
    void hear(void* bytes, size_t size, int peer, const std::string& purpose);

    // Goes through oneCCL's own collective of the task, from `input` to `output`, on `elements` of the whole vector.
    void collective(const void* input, void* output, size_t elements);

    void set_deadline(int64_t at_ns) { deadline_ns_ = at_ns; }
    bool is_late() const;

private:
    ccl::event start_collective(const void* input, void* output, size_t elements);
    void wait_for(ccl::event event, const std::string& purpose);

    const Task& task_;
    // What is waited for. It stays when the limit passes, because oneCCL waits before it destroys what is not done.
    std::optional<Posted> awaited_;
    int64_t deadline_ns_ = INT64_MAX;
    // One communicator for each channel, because oneCCL matches the messages of one by their order alone; one more
    // for collectives and one for control.
    std::vector<ccl::communicator> communicators_;
    ccl::communicator& control() { return communicators_[task_.channels]; }
    ccl::communicator& library() { return communicators_[task_.channels + 1]; }
};

}  // namespace chorale
