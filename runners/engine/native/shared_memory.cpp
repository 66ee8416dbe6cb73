#include "shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>

namespace chorale {
namespace {

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Failure refused(const std::string& what) { return Failure(CHORALE_SYSTEM, what + ": " + std::strerror(errno)); }

// Calls `copy` for the one or two contiguous parts of `size` bytes at `position` of a ring.
template <class Copy>
void around(char* data, size_t room, uint64_t position, size_t size, Copy copy) {
    if (size == 0) return;
    const size_t at = position % room, first = std::min(size, room - at);
    copy(data + at, 0, first);
    if (size > first) copy(data, first, size - first);
}

}  // namespace

SharedMemory SharedMemory::create(size_t least_bytes) {
    const size_t ring_bytes = (std::max<size_t>(least_bytes, 1) + alignof(Ring) - 1) / alignof(Ring) * alignof(Ring);
    const int fd = memfd_create("chorale", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) throw refused("no shared memory");
    const auto size = static_cast<off_t>(2 * (sizeof(Ring) + ring_bytes));
    if (ftruncate(fd, size) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0) {
        close(fd);
        throw refused("no shared memory");
    }
    return SharedMemory(fd, ring_bytes);  // the memory is zero, which means that the rings are empty
}

SharedMemory SharedMemory::open(int fd) {
    struct stat facts {};
    const size_t least = 2 * (sizeof(Ring) + alignof(Ring));
    const bool is_sealed = fcntl(fd, F_GET_SEALS) == seals;
    if (!is_sealed || fstat(fd, &facts) != 0 || static_cast<size_t>(facts.st_size) < least ||
        static_cast<size_t>(facts.st_size) % (2 * alignof(Ring)) != 0) {
        close(fd);
        throw Failure(CHORALE_GARBAGE, "a peer offered a file that is no shared memory of this job");
    }
    return SharedMemory(fd, static_cast<size_t>(facts.st_size) / 2 - sizeof(Ring));
}

SharedMemory::SharedMemory(int fd, size_t ring_bytes) : fd_(fd), ring_bytes_(ring_bytes), base_(nullptr) {
    void* base = mmap(nullptr, 2 * stride(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        close(fd);
        throw refused("shared memory cannot be mapped");
    }
    base_ = static_cast<char*>(base);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(other.fd_), ring_bytes_(other.ring_bytes_), base_(other.base_) {
    other.fd_ = -1;
    other.base_ = nullptr;
}

SharedMemory::~SharedMemory() {
    if (base_ != nullptr) munmap(base_, 2 * stride());
    close_file();
}

void SharedMemory::close_file() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
}

RingPipe::RingPipe(int bell, int peer, SharedMemory memory, bool is_maker)
    : Pipe(bell, peer),
      memory_(std::move(memory)),
      out_(memory_.ring(is_maker ? 0 : 1)),
      in_(memory_.ring(is_maker ? 1 : 0)),
      out_data_(memory_.data(is_maker ? 0 : 1)),
      in_data_(memory_.data(is_maker ? 1 : 0)) {
    memory_.close_file();
}

// If the ring is empty, requests a wake-up from the writer, because the caller may sleep after this.
bool RingPipe::may_read() const {
    if (used(in_) > 0 || has_hung_up_) return true;
    in_.reader_waits.store(1);
    return used(in_) > 0;
}

size_t RingPipe::write(const iovec* parts, int count) {
    size_t done = 0;
    for (int i = 0; i < count; i++) {
        size_t free = memory_.ring_bytes() - used(out_);
        if (free < parts[i].iov_len) {  // set the flag before checking again, so that the reader cannot miss it
            out_.writer_waits.store(1);
            free = memory_.ring_bytes() - used(out_);
            if (free == 0 && done == 0 && has_hung_up_) throw lost(peer, "it closed the connection");
        }
        const size_t size = std::min(free, parts[i].iov_len);
        const auto* bytes = static_cast<const char*>(parts[i].iov_base);
        around(out_data_, memory_.ring_bytes(), out_.written.load(), size,
               [&](char* at, size_t from, size_t length) { std::memcpy(at, bytes + from, length); });
        out_.written.fetch_add(size);
        done += size;
        if (size < parts[i].iov_len) break;
    }
    if (done > 0 && out_.reader_waits.exchange(0) != 0) ring_bell();
    return done;
}

size_t RingPipe::read(const iovec* parts, int count) {
    size_t done = 0;
    for (int i = 0; i < count; i++) {
        uint64_t full = used(in_);
        if (full < parts[i].iov_len) {
            in_.reader_waits.store(1);
            full = used(in_);
            if (full == 0 && done == 0 && has_hung_up_) throw lost(peer, "it closed the connection");
        }
        const size_t size = std::min<size_t>(full, parts[i].iov_len);
        auto* bytes = static_cast<char*>(parts[i].iov_base);
        around(in_data_, memory_.ring_bytes(), in_.read.load(), size,
               [&](const char* at, size_t from, size_t length) { std::memcpy(bytes + from, at, length); });
        in_.read.fetch_add(size);
        done += size;
        if (size < parts[i].iov_len) break;
    }
    if (done > 0 && in_.writer_waits.exchange(0) != 0) ring_bell();
    return done;
}

void RingPipe::woken(bool has_hung_up) {
    char bells[1024];
    ssize_t got = sizeof bells;
    // Usually there are few wake-ups to read. The limit protects against a peer that never stops sending them.
    for (int turn = 0; turn < 4 && got == sizeof bells; turn++) got = recv(fd_, bells, sizeof bells, MSG_DONTWAIT);
    has_hung_up_ |= has_hung_up || got == 0;
}

uint64_t RingPipe::used(const Ring& ring) const {
    const uint64_t used = ring.written.load() - ring.read.load();
    if (used > memory_.ring_bytes()) throw garbage(peer, "a state of shared memory that cannot be");
    return used;
}

// If the socket is full, many wake-ups are still unread, so this one is not needed.
void RingPipe::ring_bell() {
    const char bell = 0;
    if (send(fd_, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN && errno != EPIPE && errno != ECONNRESET)
        throw lost(peer, std::strerror(errno));
}

}  // namespace chorale
