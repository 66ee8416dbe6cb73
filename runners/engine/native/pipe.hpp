// A stream of bytes to and from a peer, over a socket or through shared memory.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "failure.hpp"

namespace chorale {

// `write` and `read` never block. They return how many bytes they have written or read, perhaps 0.
class Pipe {
public:
    Pipe(int fd, int peer) : peer(peer), fd_(fd) {}
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;
    virtual ~Pipe() { close(fd_); }

    virtual bool may_read() const = 0;
    virtual size_t write(const iovec* parts, int count) = 0;
    virtual size_t read(const iovec* parts, int count) = 0;  // Failure if the peer has closed it

    // Returns the descriptor to watch with edge-triggered epoll. An edge means that more can be read or written.
    int fd() const { return fd_; }

    // Must be called after each such edge.
    virtual void woken(bool has_hung_up) = 0;

    const int peer;

protected:
    int fd_;
};

class SocketPipe : public Pipe {
public:
    using Pipe::Pipe;

    bool may_read() const override { return is_readable_; }

    size_t write(const iovec* parts, int count) override {
        if (!is_writable_) return 0;
        msghdr message{};
        message.msg_iov = const_cast<iovec*>(parts);
        message.msg_iovlen = static_cast<size_t>(count);
        const ssize_t done = sendmsg(fd_, &message, MSG_NOSIGNAL);
        if (done < 0) is_writable_ = is_only_late();
        return done < 0 ? 0 : static_cast<size_t>(done);
    }

    size_t read(const iovec* parts, int count) override {
        if (!is_readable_) return 0;
        size_t room = 0;
        for (int i = 0; i < count; i++) room += parts[i].iov_len;
        const ssize_t done = ::readv(fd_, parts, count);
        if (done == 0 && room > 0) throw lost(peer, "it closed the connection");
        if (done < 0) is_readable_ = is_only_late();
        if (done < 0) return 0;
        // If less was read than fits, the socket is empty, and an edge will announce more data. After a hang-up there
        // is no edge.
        if (static_cast<size_t>(done) < room && !has_hung_up_) is_readable_ = false;
        return static_cast<size_t>(done);
    }

    void woken(bool has_hung_up) override {
        is_readable_ = is_writable_ = true;
        has_hung_up_ |= has_hung_up;
    }

private:
    // Returns whether to try again immediately: true after a signal, false if the call would block. Failure for other
    // errors.
    bool is_only_late() const {
        if (errno == EINTR) return true;
        if (errno != EAGAIN) throw lost(peer, std::strerror(errno));
        return false;
    }

    bool is_readable_ = true, is_writable_ = true, has_hung_up_ = false;
};

}  // namespace chorale
