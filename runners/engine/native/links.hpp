// The transport over pipes. There is a pipe for each (peer, channel); one epoll set watches all of them.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "stream.hpp"
#include "transport.hpp"

namespace chorale {

class Links : public Transport {
public:
    Links();
    ~Links() override;

    using Key = std::pair<int, int>;  // peer, channel
    bool has(Key key) const { return links_.count(key) > 0; }
    void add(Key key, std::unique_ptr<Pipe> pipe);

    Outgoing& outgoing(int peer, int channel) override { return link(peer, channel).outgoing; }
    Incoming& incoming(int peer, int channel) override { return link(peer, channel).incoming; }
    void set_sender(int peer, int channel, int block) override { link(peer, channel).sender = block; }
    void set_receiver(int peer, int channel, int block) override { link(peer, channel).receiver = block; }
    void wait(int64_t until_ns, std::vector<int>& blocks) override;
    void close() override;

private:
    struct Link {
        explicit Link(std::unique_ptr<Pipe> made) : pipe(std::move(made)), outgoing(*pipe), incoming(*pipe) {}

        std::unique_ptr<Pipe> pipe;
        StreamOutgoing outgoing;
        StreamIncoming incoming;
        int sender = -1, receiver = -1;
    };

    Link& link(int peer, int channel);

    int epoll_;
    std::map<Key, Link> links_;
};

}  // namespace chorale
