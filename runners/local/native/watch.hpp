// Waiting for sockets and for a point in time, to the nanosecond.
#pragma once

#include <cstdint>
#include <vector>

namespace chorale {

// Somebody whose socket is watched.
class Watched {
public:
    virtual ~Watched() = default;
    virtual void woken(bool has_hung_up) = 0;
};

class Watch {
public:
    struct Event {
        Watched* watched;
        bool has_hung_up;
    };

    Watch();
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // Tells `watched` of every edge: whenever more can be read or written than before.
    void add(int fd, Watched& watched);

    // As long as there is something to read.
    void add_reader(int fd, Watched& watched);

    void remove(int fd);

    // Waits until something happens or `until_ns` has come. The events hold until the next call.
    const std::vector<Event>& wait(int64_t until_ns);

private:
    void add(int fd, Watched& watched, uint32_t what);

    int epoll_;
    std::vector<Event> events_;
};

}  // namespace chorale
