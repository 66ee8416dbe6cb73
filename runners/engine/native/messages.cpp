#include "messages.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "engine_clock.hpp"
#include "failure.hpp"

namespace chorale {
namespace {

constexpr int64_t shortest_ns = 10'000, longest_ns = 200'000;  // ranks share cores

void* posted(void* request, int peer) {
    if (request == nullptr) throw lost(peer, "the library refused a message");
    return request;
}

// Forgets a request that is done; returns whether it was.
bool finishes(const chorale_messages& library, void*& request, int peer) {
    if (request == nullptr) return false;
    const int state = library.test(library.context, request);
    if (state < 0) throw lost(peer, "the library could not pass on a message");
    if (state > 0) request = nullptr;
    return state > 0;
}

}  // namespace

void abandon(std::vector<MessageSlot>& slots) {
    static std::mutex mutex;
    static auto* abandoned = new std::vector<std::vector<char>>;
    const std::lock_guard<std::mutex> lock(mutex);
    for (MessageSlot& slot : slots)
        if (slot.request != nullptr) abandoned->push_back(std::move(slot.bytes));
}

void MessageOutgoing::start(uint32_t, size_t depth) {
    slots_.resize(depth);  // all of them are free: the run before has been drained
    next_ = 0;
}

void MessageOutgoing::begin(size_t size) {
    size_ = size;
    taken_ = 0;
    is_done_ = has_slot_ = false;
}

size_t MessageOutgoing::take(const char* bytes, size_t size) {
    MessageSlot& slot = slots_[next_];
    if (is_done_ || slot.request != nullptr) return 0;
    if (!has_slot_) slot.bytes.resize(size_);
    has_slot_ = true;
    std::memcpy(slot.bytes.data() + taken_, bytes, size);
    taken_ += size;
    if (taken_ == size_) {
        slot.request = posted(library_.post_send(library_.context, slot.bytes.data(), size_, peer_, channel_), peer_);
        next_ = (next_ + 1) % slots_.size();
        is_done_ = true;
    }
    return size;
}

bool MessageOutgoing::is_drained() {
    poll();
    return std::all_of(slots_.begin(), slots_.end(), [](const MessageSlot& slot) { return slot.request == nullptr; });
}

bool MessageOutgoing::poll() {
    bool any = false;
    for (MessageSlot& slot : slots_) any |= finishes(library_, slot.request, peer_);
    return any;
}

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

// Slots hold the wanted message, or the one that will be, and those after it.
void MessageIncoming::post_ahead() {
    const size_t first = wanted_ > 0 ? wanted_ - 1 : 0;
    for (; posted_ < std::min(sizes_.size(), first + slots_.size()); posted_++) {
        MessageSlot& slot = slots_[posted_ % slots_.size()];
        slot.bytes.resize(sizes_[posted_]);
        void* request = library_.post_receive(library_.context, slot.bytes.data(), slot.bytes.size(), peer_, channel_);
        slot.request = posted(request, peer_);
    }
}

size_t MessageIncoming::give(char* bytes, size_t size) {
    MessageSlot& slot = slots_[(wanted_ - 1) % slots_.size()];
    finishes(library_, slot.request, peer_);
    if (slot.request != nullptr) return 0;
    std::memcpy(bytes, slot.bytes.data() + given_, size);
    given_ += size;
    return size;
}

bool MessageIncoming::poll() {
    bool any = false;
    for (MessageSlot& slot : slots_) any |= finishes(library_, slot.request, peer_);
    return any;
}

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
