// A transport of messages within one process, as libraries of point-to-point calls are: ranks are threads.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "chorale_engine.h"

class Mailbox {
public:
    // Whether sends are done only when they were received, instead of at once.
    Mailbox(int ranks, bool waits_for_receivers) : waits_(waits_for_receivers), ends_(static_cast<size_t>(ranks)) {
        for (int rank = 0; rank < ranks; rank++) ends_[static_cast<size_t>(rank)] = {this, rank};
    }

    chorale_messages of(int rank) { return {&ends_[static_cast<size_t>(rank)], post_send, post_receive, test}; }

    // How many requests nobody has seen the end of.
    size_t open_requests() {
        const std::lock_guard<std::mutex> lock(mutex_);
        size_t count = 0;
        for (const End& end : ends_) count += end.posted.size();
        return count;
    }

private:
    struct Letter {
        const char* bytes;
        char* target;
        size_t size;
        int state = 0;
        std::vector<char> copy;
    };
    struct Queue {
        std::deque<std::shared_ptr<Letter>> sends, receives;
    };
    struct End {
        Mailbox* box;
        int rank;
        std::map<void*, std::shared_ptr<Letter>> posted;
    };

    static void* post_send(void* context, const void* bytes, size_t size, int peer, int channel) {
        End& end = *static_cast<End*>(context);
        auto letter = std::make_shared<Letter>();
        letter->bytes = static_cast<const char*>(bytes);
        letter->size = size;
        return end.box->post(end, {end.rank, peer, channel}, letter, true);
    }

    static void* post_receive(void* context, void* bytes, size_t size, int peer, int channel) {
        End& end = *static_cast<End*>(context);
        auto letter = std::make_shared<Letter>();
        letter->target = static_cast<char*>(bytes);
        letter->size = size;
        return end.box->post(end, {peer, end.rank, channel}, letter, false);
    }

    static int test(void* context, void* request) {
        End& end = *static_cast<End*>(context);
        const std::lock_guard<std::mutex> lock(end.box->mutex_);
        const auto entry = end.posted.find(request);
        if (entry == end.posted.end()) return -1;  // asked again for what was done
        const int state = entry->second->state;
        if (state != 0) end.posted.erase(entry);
        return state;
    }

    void* post(End& end, std::tuple<int, int, int> key, const std::shared_ptr<Letter>& letter, bool is_send) {
        const std::lock_guard<std::mutex> lock(mutex_);
        Queue& queue = queues_[key];
        (is_send ? queue.sends : queue.receives).push_back(letter);
        if (is_send && !waits_) {
            letter->copy.assign(letter->bytes, letter->bytes + letter->size);
            letter->bytes = letter->copy.data();
            letter->state = 1;
        }
        while (!queue.sends.empty() && !queue.receives.empty()) deliver(queue);
        end.posted[letter.get()] = letter;
        return letter.get();
    }

    static void deliver(Queue& queue) {
        Letter &from = *queue.sends.front(), &to = *queue.receives.front();
        if (from.size == to.size) std::memcpy(to.target, from.bytes, to.size);
        from.state = to.state = from.size == to.size ? 1 : -1;
        queue.sends.pop_front();
        queue.receives.pop_front();
    }

    const bool waits_;
    std::mutex mutex_;
    std::vector<End> ends_;
    std::map<std::tuple<int, int, int>, Queue> queues_;
};
