// Messages over a pipe: a header, the bytes, and their checksum.
//
// The header has the tag of the run, the message's number on the connection and its size, so that a peer that is out of
// step or sends garbage is detected immediately. The checksum follows the last byte.
#pragma once

#include <deque>
#include <memory>

#include "transport.hpp"
#include "pipe.hpp"

namespace chorale {

struct Header {
    uint32_t tag, number;
    uint64_t size;
};
static_assert(sizeof(Header) == 16);

class StreamOutgoing : public Outgoing {
public:
    explicit StreamOutgoing(Pipe& pipe) : pipe_(pipe) {}

    void start(uint32_t tag, size_t) override { header_ = {tag, 0, 0}; }
    void begin(size_t size) override;
    size_t take(const char* bytes, size_t size) override;
    bool is_done() const override { return is_done_; }

private:
    size_t write(const char* bytes, size_t size);

    Pipe& pipe_;
    Header header_{};
    size_t header_left_ = 0, taken_ = 0, trailer_left_ = 0, summed_ = 0;
    uint32_t checksum_ = 0;
    bool is_done_ = true;
};

class StreamIncoming : public Incoming {
public:
    explicit StreamIncoming(Pipe& pipe) : pipe_(pipe) {}

    void start(uint32_t tag, const std::vector<size_t>& sizes, size_t depth) override;
    void begin() override { wanted_++; }
    size_t give(char* bytes, size_t size) override;
    bool is_done() override;
    bool read_ahead() override;

private:
    // The bytes between two messages: the checksum of the first and the header of the second.
    struct Frame {
        uint32_t checksum;
        Header header;
    } __attribute__((packed));
    static constexpr size_t checksum_bytes = 4;

    // A message that is received before the executor begins it. filled: bytes received, given: bytes passed to the
    // executor
    struct Early {
        std::unique_ptr<char[]> bytes;
        size_t size, filled, given;
    };

    size_t read(char* bytes, size_t size);
    void advance_frame(const char* bytes, size_t count);
    size_t frame_room(size_t message) const { return message < sizes_.size() ? sizeof(Frame) : checksum_bytes; }
    bool is_reading_wanted() const { return wanted_ > 0 && reading_ == wanted_ - 1; }
    bool has_early() const { return !early_.empty() && early_first_ + 1 == wanted_; }
    Early& early();

    Pipe& pipe_;
    uint32_t tag_ = 0;
    std::vector<size_t> sizes_;
    size_t depth_ = 1;
    size_t wanted_ = 0;   // how many messages the executor has begun
    size_t reading_ = 0;  // index of the message that is being read; sizes_.size() if all were read
    size_t filled_ = 0;   // how many bytes of this message were read
    uint32_t checksum_ = 0, previous_checksum_ = 0;  // of these bytes, and of the previous message
    Frame frame_{};       // the frame before this message
    size_t frame_filled_ = checksum_bytes;  // how many bytes of the frame were read; the first one has no checksum
    bool went_ = false;   // whether the last `read` read anything
    std::deque<Early> early_;
    size_t early_first_ = 0;  // index of the first early message
};

}  // namespace chorale
