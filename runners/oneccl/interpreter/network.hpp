// The ranks' way to one another: oneCCL's point-to-point calls and collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "chorale_engine.h"
#include "task.hpp"

namespace chorale {

// The time limit of a run has passed.
struct LimitPassed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Network {
public:
    // Joins the ranks. Rank 0 writes the address of oneCCL's key-value store to the file key-store, others read it.
    explicit Network(const Task& task);
    ~Network();

    // Messages for the engine. Those from one rank to another on one channel arrive in order.
    chorale_messages messages();

    // Passes `size` bytes between the ranks' main programs, waiting until it is done; LimitPassed with `purpose` when
    // the limit passes before.
    void tell(const void* bytes, size_t size, int peer, const std::string& purpose);
    void hear(void* bytes, size_t size, int peer, const std::string& purpose);

    // Goes through oneCCL's own collective of the task, from `input` to `output`, on `elements` of the whole vector.
    void collective(const void* input, void* output, size_t elements);

    void set_limit(double seconds);
    double seconds_left() const;  // negative when the limit has passed

private:
    struct Library;  // oneCCL's objects: its headers take long to compile and are read in one place

    void wait(const std::string& purpose);

    const Task& task_;
    int64_t deadline_ns_ = INT64_MAX;
    std::unique_ptr<Library> library_;
};

}  // namespace chorale
