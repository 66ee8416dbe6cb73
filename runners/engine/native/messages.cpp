#include "messages.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "engine_clock.hpp"
#include "failure.hpp"

namespace chorale {
namespace {

constexpr int64_t shortest_ns = 10'000, longest_ns = 200'000;  // pause between polls, because ranks may share cores

// Messages are sent in pieces, so that the first pieces can be forwarded while the last ones are still travelling. Long
// messages have larger pieces, because each piece costs library calls.
constexpr size_t small_piece_bytes = 64'000, most_pieces = 4;

size_t piece_bytes(size_t size) { return std::max(small_piece_bytes, (size + most_pieces - 1) / most_pieces); }

size_t pieces_of(size_t size) { return std::max<size_t>(1, (size + piece_bytes(size) - 1) / piece_bytes(size)); }

size_t piece_start(size_t piece, size_t size) { return std::min(size, piece * piece_bytes(size)); }

void* posted(void* request, int peer) {
    if (request == nullptr) throw lost(peer, "the library refused a message");
    return request;
}

// Removes the request if it is done; returns whether it was done.
bool finishes(const chorale_messages& library, void*& request, int peer) {
    if (request == nullptr) return false;
    const int state = library.test(library.context, request);
    if (state < 0) throw lost(peer, "the library could not pass on a message");
    if (state > 0) request = nullptr;
    return state > 0;
}

bool any_finishes(const chorale_messages& library, std::vector<MessageSlot>& slots, int peer) {
    bool any = false;
    for (MessageSlot& slot : slots)
        for (void*& request : slot.requests) any |= finishes(library, request, peer);
    return any;
}

}  // namespace

bool MessageSlot::is_free() const {
    return std::all_of(requests.begin(), requests.end(), [](const void* request) { return request == nullptr; });
}

void abandon(std::vector<MessageSlot>& slots) {
    static std::mutex mutex;
    static auto* abandoned = new std::vector<std::vector<char>>;
    const std::lock_guard<std::mutex> lock(mutex);
    for (MessageSlot& slot : slots)
        if (!slot.is_free()) abandoned->push_back(std::move(slot.bytes));
}

void MessageOutgoing::start(uint32_t, size_t depth) {
    slots_.resize(depth);  // all slots are free, because the previous run was drained
    next_ = 0;
}

void MessageOutgoing::begin(size_t size) {
    size_ = size;
    taken_ = 0;
    is_done_ = has_slot_ = false;
}

size_t MessageOutgoing::take(const char* bytes, size_t size) {
    MessageSlot& slot = slots_[next_];
    if (is_done_ || (!has_slot_ && !slot.is_free())) return 0;
    if (!has_slot_) {
        slot.bytes.resize(size_);
        slot.requests.clear();
    }
    has_slot_ = true;
    std::memcpy(slot.bytes.data() + taken_, bytes, size);
    taken_ += size;
    post_whole_pieces(slot);
    if (taken_ == size_) {
        next_ = (next_ + 1) % slots_.size();
        is_done_ = true;
    }
    return size;
}

void MessageOutgoing::post_whole_pieces(MessageSlot& slot) {
    for (size_t piece = slot.requests.size(); piece < pieces_of(size_) && piece_start(piece + 1, size_) <= taken_; piece++) {
        const size_t start = piece_start(piece, size_), count = piece_start(piece + 1, size_) - start;
        void* request = library_.post_send(library_.context, slot.bytes.data() + start, count, peer_, channel_);
        slot.requests.push_back(posted(request, peer_));
    }
}

bool MessageOutgoing::is_drained() {
    poll();
    return std::all_of(slots_.begin(), slots_.end(), [](const MessageSlot& slot) { return slot.is_free(); });
}

bool MessageOutgoing::poll() { return any_finishes(library_, slots_, peer_); }

void MessageIncoming::start(uint32_t, const std::vector<size_t>& sizes, size_t depth) {
    sizes_ = sizes;
    slots_.resize(depth);
    posted_ = wanted_ = given_ = 0;
    post_ahead();
}

void MessageIncoming::begin() {
    wanted_++;
    given_ = 0;
    post_ahead();
}

// Posts receives, one per slot, for the current message (or the next one, if none has begun) and those that follow it.
void MessageIncoming::post_ahead() {
    const size_t first = wanted_ > 0 ? wanted_ - 1 : 0;
    for (; posted_ < std::min(sizes_.size(), first + slots_.size()); posted_++) {
        MessageSlot& slot = slots_[posted_ % slots_.size()];
        const size_t size = sizes_[posted_];
        slot.bytes.resize(size);
        slot.requests.clear();
        for (size_t piece = 0; piece < pieces_of(size); piece++) {
            const size_t start = piece_start(piece, size), count = piece_start(piece + 1, size) - start;
            void* request = library_.post_receive(library_.context, slot.bytes.data() + start, count, peer_, channel_);
            slot.requests.push_back(posted(request, peer_));
        }
    }
}

size_t MessageIncoming::give(char* bytes, size_t size) {
    MessageSlot& slot = slots_[(wanted_ - 1) % slots_.size()];
    size_t given = 0;
    while (given < size) {
        const size_t message = sizes_[wanted_ - 1], piece = given_ / piece_bytes(message);
        finishes(library_, slot.requests[piece], peer_);
        if (slot.requests[piece] != nullptr) break;
        const size_t count = std::min(size - given, piece_start(piece + 1, message) - given_);
        std::memcpy(bytes + given, slot.bytes.data() + given_, count);
        given += count;
        given_ += count;
    }
    return given;
}

bool MessageIncoming::poll() { return any_finishes(library_, slots_, peer_); }

void Messages::wait(int64_t until_ns, std::vector<int>& blocks) {
    for (auto& [key, used] : senders_)
        if (used.end.poll() && used.block >= 0) blocks.push_back(used.block);
    for (auto& [key, used] : receivers_)
        if (used.end.poll() && used.block >= 0) blocks.push_back(used.block);
    if (!blocks.empty()) {
        pause_ns_ = shortest_ns;
        return;
    }
    pause_ns(std::clamp<int64_t>(until_ns - monotonic_ns(), 0, pause_ns_));
    pause_ns_ = std::clamp(2 * pause_ns_, shortest_ns, longest_ns);
}

}  // namespace chorale
