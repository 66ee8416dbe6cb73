#include "connection.hpp"

namespace chorale {
namespace {

bool finishes(Slot& slot) { return slot.posted && !slot.posted->is_done() && slot.posted->test(); }

}  // namespace

char* Outgoing::message(size_t size) {
    slots_[next_].bytes.resize(size);
    return slots_[next_].bytes.data();
}

void Outgoing::post() {
    Slot& slot = slots_[next_];
    slot.posted = network_.send(slot.bytes.data(), slot.bytes.size(), peer_, channel_);
    next_ = (next_ + 1) % slots_.size();
}

bool Outgoing::progress() {
    bool went = false;
    for (Slot& slot : slots_) went |= finishes(slot);
    return went;
}

bool Outgoing::is_drained() const {
    for (const Slot& slot : slots_)
        if (!slot.is_free()) return false;
    return true;
}

Incoming::Incoming(Network& network, const Block& block, size_t depth, std::vector<size_t> sizes)
    : network_(network), peer_(block.recv), channel_(block.channel), sizes_(std::move(sizes)), slots_(depth) {
    post_ahead();
}

void Incoming::pop() {
    taken_++;
    post_ahead();
}

bool Incoming::progress() {
    bool went = false;
    for (Slot& slot : slots_) went |= finishes(slot);
    return went;
}

void Incoming::post_ahead() {
    while (posted_ < sizes_.size() && posted_ < taken_ + slots_.size()) {
        Slot& slot = slots_[posted_ % slots_.size()];
        slot.bytes.resize(sizes_[posted_]);
        slot.posted = network_.receive(slot.bytes.data(), slot.bytes.size(), peer_, channel_);
        posted_++;
    }
}

}  // namespace chorale
