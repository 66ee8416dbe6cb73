#include "mpi_messages.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <deque>
#include <functional>
#include <new>
#include <vector>

namespace {

using Post = int (*)(void* bytes, int count, intptr_t type, int peer, int tag, intptr_t communicator, void* request);
using TestSome = int (*)(int count, void* requests, int* done_count, int* done, void* statuses);

constexpr int success = 0;  // MPI_SUCCESS

// A message of the engine. under_way: number of its MPI messages that are not done; is_fresh: whether MPI was asked
// about them after the last `test` of this request
struct Request {
    size_t under_way = 0;
    bool is_fresh = false;
};

class MpiMessages {
public:
    explicit MpiMessages(const chorale_mpi& mpi) : mpi_(mpi) {
        const auto send = [](void* self, const void* bytes, size_t size, int peer, int channel) {
            auto* messages = static_cast<MpiMessages*>(self);
            return messages->post(messages->mpi_.isend, const_cast<void*>(bytes), size, peer, channel);
        };
        const auto receive = [](void* self, void* bytes, size_t size, int peer, int channel) {
            auto* messages = static_cast<MpiMessages*>(self);
            return messages->post(messages->mpi_.irecv, bytes, size, peer, channel);
        };
        const auto test = [](void* self, void* request) {
            return static_cast<MpiMessages*>(self)->test(*static_cast<Request*>(request));
        };
        table = {this, send, receive, test};
    }

    chorale_messages table;

private:
    // Both sides cut a message into the same pieces, because both know its size. MPI keeps the pieces in order.
    void* post(void* function, void* bytes, size_t size, int peer, int channel) {
        Request* request = take_request();
        size_t start = 0;
        do {
            const size_t count = std::min(size - start, mpi_.most_bytes);
            handles_.resize((owners_.size() + 1) * mpi_.handle_bytes);
            void* handle = handles_.data() + owners_.size() * mpi_.handle_bytes;
            const int code = reinterpret_cast<Post>(function)(static_cast<char*>(bytes) + start, static_cast<int>(count),
                                                              mpi_.byte_type, peer, channel, mpi_.communicator, handle);
            if (code != success) return nullptr;
            owners_.push_back(request);
            request->under_way++;
            start += count;
        } while (start < size);
        return request;
    }

    // MPI_Testsome tests all requests at once. Its result also serves the next `test` of each other request.
    int test(Request& request) {
        if (request.under_way > 0 && !request.is_fresh && !look()) return -1;
        request.is_fresh = false;
        if (request.under_way > 0) return 0;
        free_.push_back(&request);
        return 1;
    }

    bool look() {
        int count = 0;
        done_.resize(owners_.size());
        statuses_.resize(owners_.size() * mpi_.status_bytes);
        const auto test_some = reinterpret_cast<TestSome>(mpi_.testsome);
        if (test_some(static_cast<int>(owners_.size()), handles_.data(), &count, done_.data(), statuses_.data()))
            return false;
        for (Request* owner : owners_) owner->is_fresh = true;
        // Removed in descending order: the last handle takes the place of each removed one, so it must be unfinished.
        std::sort(done_.begin(), done_.begin() + std::max(count, 0), std::greater<int>());
        for (int i = 0; i < count; i++) remove(static_cast<size_t>(done_[static_cast<size_t>(i)]));
        return true;
    }

    void remove(size_t number) {
        owners_[number]->under_way--;
        owners_[number] = owners_.back();
        owners_.pop_back();
        std::memmove(handles_.data() + number * mpi_.handle_bytes, handles_.data() + owners_.size() * mpi_.handle_bytes,
                     mpi_.handle_bytes);
        handles_.resize(owners_.size() * mpi_.handle_bytes);
    }

    Request* take_request() {
        if (free_.empty()) {
            requests_.emplace_back();
            free_.push_back(&requests_.back());
        }
        Request* request = free_.back();
        free_.pop_back();
        *request = {};
        return request;
    }

    const chorale_mpi mpi_;
    std::deque<Request> requests_;
    std::vector<Request*> free_;
    std::vector<Request*> owners_;  // request of each handle
    std::vector<char> handles_, statuses_;
    std::vector<int> done_;
};

}  // namespace

extern "C" {

chorale_messages* chorale_mpi_messages_new(const chorale_mpi* mpi) {
    if (mpi->handle_bytes > sizeof(int64_t) || mpi->most_bytes == 0 || mpi->most_bytes > INT_MAX) return nullptr;
    try {
        return &(new MpiMessages(*mpi))->table;
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void chorale_mpi_messages_free(chorale_messages* messages) {
    if (messages != nullptr) delete static_cast<MpiMessages*>(messages->context);
}

}  // extern "C"
