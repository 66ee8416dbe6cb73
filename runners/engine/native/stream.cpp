#include "stream.hpp"

#include <algorithm>

#include "checksum.hpp"

namespace chorale {
namespace {

constexpr size_t trailer_bytes = 4, header_bytes = sizeof(Header), most_at_once = 256 * 1024;

iovec part(const void* bytes, size_t size) { return {const_cast<void*>(bytes), size}; }

}  // namespace

void StreamOutgoing::begin(size_t size) {
    header_.size = size;
    header_left_ = header_bytes;
    trailer_left_ = trailer_bytes;
    taken_ = summed_ = 0;
    checksum_ = 0;
    is_done_ = false;
}

size_t StreamOutgoing::take(const char* bytes, size_t size) {
    size_t taken = 0;
    while (!is_done_) {
        const size_t now = std::min(size - taken, most_at_once);
        if (now == 0 && taken_ < header_.size) break;
        const size_t before = taken_;
        const size_t wanted = header_left_ + now + (taken_ + now == header_.size ? trailer_left_ : 0);
        const size_t written = write(bytes + taken, now);
        taken += taken_ - before;
        if (written < wanted) break;
    }
    return taken;
}

// Writes the rest of the header, `size` bytes of the message and, if these are its last, the checksum.
size_t StreamOutgoing::write(const char* bytes, size_t size) {
    if (taken_ + size > summed_) {
        const size_t known = summed_ - taken_;
        checksum_ = crc32c(checksum_, bytes + known, size - known);
        summed_ = taken_ + size;
    }
    const char* header = reinterpret_cast<const char*>(&header_) + header_bytes - header_left_;
    const char* trailer = reinterpret_cast<const char*>(&checksum_) + trailer_bytes - trailer_left_;
    const bool ends = taken_ + size == header_.size;
    const iovec parts[] = {part(header, header_left_), part(bytes, size), part(trailer, ends ? trailer_left_ : 0)};
    const size_t written = pipe_.write(parts, 3);
    const size_t of_header = std::min(written, header_left_);
    const size_t of_bytes = std::min(written - of_header, size);
    header_left_ -= of_header;
    taken_ += of_bytes;
    trailer_left_ -= written - of_header - of_bytes;
    if (trailer_left_ == 0) {
        is_done_ = true;
        header_.number++;
    }
    return written;
}

void StreamIncoming::start(uint32_t tag, const std::vector<size_t>& sizes, size_t depth) {
    tag_ = tag;
    sizes_ = sizes;
    depth_ = depth;
    wanted_ = reading_ = filled_ = 0;
    checksum_ = 0;
    frame_filled_ = checksum_bytes;
    early_.clear();
}

size_t StreamIncoming::give(char* bytes, size_t size) {
    if (!has_early()) return is_reading_wanted() ? read(bytes, size) : 0;
    Early& early = early_.front();
    const size_t kept = std::min(size, early.filled - early.given);
    std::memcpy(bytes, early.bytes.get() + early.given, kept);
    early.given += kept;
    if (kept == size || !is_reading_wanted()) return kept;
    const size_t direct = read(bytes + kept, size - kept);  // the rest is received directly
    early.given += direct;
    early.filled += direct;
    return kept + direct;
}

bool StreamIncoming::is_done() {
    if (reading_ == wanted_ && frame_filled_ < checksum_bytes) read(nullptr, 0);
    if (reading_ < wanted_ || (reading_ == wanted_ && frame_filled_ < checksum_bytes)) return false;
    if (has_early()) {
        if (early_.front().given < early_.front().size) return false;
        early_.pop_front();
        early_first_++;
    }
    return true;
}

bool StreamIncoming::read_ahead() {
    bool any = false;
    do {
        went_ = false;
        if (!pipe_.may_read()) return any;
        if (reading_ == sizes_.size()) {
            if (frame_filled_ < checksum_bytes) read(nullptr, 0);
        } else if (frame_filled_ < sizeof(Frame)) {
            if (reading_ < wanted_ + depth_) read(nullptr, 0);  // limits memory for early messages
        } else if (reading_ < wanted_ + depth_) {
            Early& message = early();
            const size_t left = sizes_[reading_] - filled_;
            message.filled += read(message.bytes.get() + filled_, left);
        }
        any |= went_;
    } while (went_);
    return any;
}

// Returns the memory for the message that is being read early. Its first bytes may have been received directly.
StreamIncoming::Early& StreamIncoming::early() {
    if (early_.empty()) early_first_ = reading_;
    if (early_first_ + early_.size() == reading_)
        early_.push_back({std::unique_ptr<char[]>(new char[sizes_[reading_]]), sizes_[reading_], filled_, filled_});
    return early_.back();
}

// Reads the rest of the frame before the message, `size` bytes of the message and, if these are its last, the next
// frame, usually all in one call. Returns how many bytes of the message arrived.
size_t StreamIncoming::read(char* bytes, size_t size) {
    const size_t frame_left = frame_room(reading_) - frame_filled_;
    const bool has_message = reading_ < sizes_.size();
    const bool ends = has_message && filled_ + size == sizes_[reading_];
    Frame after;
    const iovec parts[] = {part(reinterpret_cast<char*>(&frame_) + frame_filled_, frame_left), part(bytes, size),
                           part(&after, ends ? frame_room(reading_ + 1) : 0)};
    const size_t count = pipe_.read(parts, 3);
    went_ = count > 0;
    const size_t of_frame = std::min(count, frame_left), of_bytes = std::min(count - of_frame, size);
    advance_frame(nullptr, of_frame);
    checksum_ = crc32c(checksum_, bytes, of_bytes);
    filled_ += of_bytes;
    if (ends && filled_ == sizes_[reading_] && frame_filled_ == sizeof(Frame)) {
        previous_checksum_ = checksum_;
        reading_++;
        filled_ = frame_filled_ = checksum_ = 0;
        advance_frame(reinterpret_cast<const char*>(&after), count - of_frame - of_bytes);
    }
    return of_bytes;
}

// Adds `count` received bytes to the frame (null: they are already in it), and checks the fields that are complete.
void StreamIncoming::advance_frame(const char* bytes, size_t count) {
    if (count == 0) return;
    if (bytes != nullptr) std::memcpy(reinterpret_cast<char*>(&frame_) + frame_filled_, bytes, count);
    const size_t before = frame_filled_;
    frame_filled_ += count;
    if (before < checksum_bytes && frame_filled_ >= checksum_bytes &&
        frame_.checksum != previous_checksum_)
        throw garbage(pipe_.peer, "bytes with a wrong checksum");
    if (frame_filled_ < sizeof(Frame)) return;
    const Header header = frame_.header;
    if (header.tag != tag_ || header.number != static_cast<uint32_t>(reading_) || header.size != sizes_[reading_])
        throw garbage(pipe_.peer, "another message than the one that comes next");
}

}  // namespace chorale
