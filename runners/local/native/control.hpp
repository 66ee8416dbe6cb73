// Who started the network, and what it says: lines of words on a socket.
//
//   token HEX                          what ranks must say
//   link NUMBER NS_PER_BYTE LATENCY_NS a link, numbered from 0, or its new pace
//   path SRC DST CHANNEL LINK ...      over which links the bytes of a connection go
//   done                               is answered "done"
//
// Once it listens, the network says "ready", and "error TEXT" before it ends for an error.
#pragma once

#include <string>

#include "reception.hpp"

namespace chorale {

class Control : Watched {
public:
    Control(int fd, Watch& watch, Network& network, Reception& reception);

    // Whether whoever started the network is gone.
    bool is_closed() const { return is_closed_; }

    static void say(int fd, const std::string& text);

private:
    void woken(bool has_hung_up) override;
    void obey(const std::string& line);

    int fd_;
    Network& network_;
    Reception& reception_;
    std::string text_;
    bool is_closed_ = false;
};

}  // namespace chorale
