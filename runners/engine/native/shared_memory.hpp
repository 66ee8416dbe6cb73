// A pipe through memory that two processes of a machine share. A socket between them wakes a process that waits.
#pragma once

#include <atomic>

#include "pipe.hpp"

namespace chorale {

// The state of one direction. `written` and `read` are numbers of bytes, which only grow.
struct Ring {
    alignas(64) std::atomic<uint64_t> written;
    std::atomic<uint32_t> reader_waits;
    alignas(64) std::atomic<uint64_t> read;
    std::atomic<uint32_t> writer_waits;
};

// Memory for both directions: an anonymous file that cannot shrink, whose descriptor is sent to the other process.
class SharedMemory {
public:
    static SharedMemory create(size_t least_bytes);  // smallest size of each ring
    static SharedMemory open(int fd);  // takes ownership of `fd`; Failure if it is not from `create`
    SharedMemory(SharedMemory&& other) noexcept;
    SharedMemory(const SharedMemory&) = delete;
    ~SharedMemory();

    int fd() const { return fd_; }
    void close_file();  // to be called when the other process has the file; the memory stays mapped
    size_t ring_bytes() const { return ring_bytes_; }
    Ring& ring(int direction) const { return *reinterpret_cast<Ring*>(base_ + direction * stride()); }
    char* data(int direction) const { return base_ + direction * stride() + sizeof(Ring); }

private:
    SharedMemory(int fd, size_t ring_bytes);
    size_t stride() const { return sizeof(Ring) + ring_bytes_; }

    int fd_;
    size_t ring_bytes_;
    char* base_;
};

class RingPipe : public Pipe {
public:
    // bell: connected socket. The process that created the memory writes in direction 0.
    RingPipe(int bell, int peer, SharedMemory memory, bool is_maker);

    bool may_read() const override;
    size_t write(const iovec* parts, int count) override;
    size_t read(const iovec* parts, int count) override;
    void woken(bool has_hung_up) override;

private:
    uint64_t used(const Ring& ring) const;
    void ring_bell();

    SharedMemory memory_;
    Ring &out_, &in_;
    char *out_data_, *in_data_;
    bool has_hung_up_ = false;
};

}  // namespace chorale
