// Ranks that connect to the network: who they are, and whether both ends of a connection are there.
#pragma once

#include <list>
#include <map>
#include <string>

#include "hello.hpp"
#include "network.hpp"
#include "watch.hpp"

namespace chorale {

// Lets in processes of this user that have the token and are awaited; whoever else comes is turned away.
class Reception : Watched {
public:
    Reception(const std::string& address, Watch& watch, Network& network);
    ~Reception() override;

    void set_token(const Token& token) { token_ = token; }

    // When somebody has stayed too long.
    int64_t next_ns() const;

    // Joins ranks of which both ends are there, and sends away who is a stranger or has waited too long.
    void settle();

private:
    struct Visitor : Watched {
        ~Visitor() override;
        void woken(bool has_hung_up) override;

        int fd = -1;
        int64_t until_ns = 0;
        size_t received = 0;
        Hello hello{};
        bool is_leaving = false, has_greeted = false;
    };

    void woken(bool has_hung_up) override;
    void greet(Visitor& visitor);
    void join(ConnectionKey key, Visitor& low, Visitor& high);

    Watch& watch_;
    Network& network_;
    Token token_{};
    int listener_;
    std::list<Visitor> visitors_;
    std::map<ConnectionKey, Visitor*> waiting_[2];  // the lower and the higher rank of a connection
};

}  // namespace chorale
