// The transport over a library's point-to-point calls. It polls the library, and sleeps when there is nothing to do.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "chorale_engine.h"
#include "transport.hpp"

namespace chorale {

// A message, which travels in pieces. Each piece on its way has a request of the library.
struct MessageSlot {
    std::vector<char> bytes;
    std::vector<void*> requests;

    bool is_free() const;
};

// Must be called before slots are freed. After a failure, the library may still use the bytes of unfinished requests,
// so these bytes are never freed.
void abandon(std::vector<MessageSlot>& slots);

class MessageOutgoing : public Outgoing {
public:
    MessageOutgoing(const chorale_messages& library, int peer, int channel)
        : library_(library), peer_(peer), channel_(channel) {}

    ~MessageOutgoing() override { abandon(slots_); }

    void start(uint32_t, size_t depth) override;
    void begin(size_t size) override;
    size_t take(const char* bytes, size_t size) override;
    bool is_done() const override { return is_done_; }
    bool is_drained() override;
    bool poll();  // returns whether a piece has left

private:
    void post_whole_pieces(MessageSlot& slot);

    const chorale_messages& library_;
    const int peer_, channel_;
    std::vector<MessageSlot> slots_{2};
    size_t next_ = 0, size_ = 0, taken_ = 0;
    bool is_done_ = true, has_slot_ = false;
};

class MessageIncoming : public Incoming {
public:
    MessageIncoming(const chorale_messages& library, int peer, int channel)
        : library_(library), peer_(peer), channel_(channel) {}
    ~MessageIncoming() override { abandon(slots_); }

    void start(uint32_t tag, const std::vector<size_t>& sizes, size_t depth) override;
    void begin() override;
    size_t give(char* bytes, size_t size) override;
    bool is_done() override { return wanted_ > 0 && given_ == sizes_[wanted_ - 1]; }
    bool read_ahead() override { return false; }  // receives are posted ahead
    bool poll();  // returns whether a piece has arrived

private:
    void post_ahead();

    const chorale_messages& library_;
    const int peer_, channel_;
    std::vector<size_t> sizes_;
    std::vector<MessageSlot> slots_;
    size_t posted_ = 0, wanted_ = 0, given_ = 0;
};

class Messages : public Transport {
public:
    explicit Messages(const chorale_messages& library) : library_(library) {}

    Outgoing& outgoing(int peer, int channel) override { return sender({peer, channel}).end; }
    Incoming& incoming(int peer, int channel) override { return receiver({peer, channel}).end; }
    void set_sender(int peer, int channel, int block) override { sender({peer, channel}).block = block; }
    void set_receiver(int peer, int channel, int block) override { receiver({peer, channel}).block = block; }
    void wait(int64_t until_ns, std::vector<int>& blocks) override;
    void close() override {}

private:
    template <class End>
    struct Used {
        Used(const chorale_messages& library, int peer, int channel) : end(library, peer, channel) {}
        End end;
        int block = -1;
    };
    using Key = std::pair<int, int>;

    Used<MessageOutgoing>& sender(Key key) {
        return senders_.try_emplace(key, library_, key.first, key.second).first->second;
    }
    Used<MessageIncoming>& receiver(Key key) {
        return receivers_.try_emplace(key, library_, key.first, key.second).first->second;
    }

    const chorale_messages library_;
    std::map<Key, Used<MessageOutgoing>> senders_;
    std::map<Key, Used<MessageIncoming>> receivers_;
    int64_t pause_ns_ = 0;
};

}  // namespace chorale
