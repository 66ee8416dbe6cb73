#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "buffers.hpp"
#include "checksum.hpp"
#include "chorale_engine.h"
#include "devices.hpp"
#include "element_types.hpp"
#include "engine_clock.hpp"
#include "executor.hpp"
#include "failure.hpp"
#include "joining.hpp"
#include "links.hpp"
#include "messages.hpp"
#include "program.hpp"
#include "sockets.hpp"

using namespace chorale;

struct chorale_engine {
    chorale_engine(int rank, int ranks) : rank(rank), ranks(ranks) {}
    chorale_engine(const chorale_engine&) = delete;
    ~chorale_engine() { stop_listening(); }

    void stop_listening() {
        for (const int listener : listeners) ::close(listener);
        listeners.clear();
    }

    const int rank, ranks;
    std::string error, blocked, doors;  // doors: addresses at which it listens over TCP
    std::map<int64_t, Program> programs;
    int64_t next_program = 0;
    uint32_t runs = 0;
    Settings settings;
    size_t buffer_bytes = 0;
    bool is_broken = false;
    std::vector<int> listeners;
    Links links;
    std::unique_ptr<Messages> messages;
    Buffers buffers;

    Transport& transport() { return messages ? static_cast<Transport&>(*messages) : links; }

    const Program& program(int64_t number) const {
        const auto entry = programs.find(number);
        if (entry == programs.end()) throw Failure(CHORALE_INVALID, "there is no such program");
        return entry->second;
    }

    // Runs `work` and converts a Failure to a status. A failure that may leave messages in connections breaks the
    // engine.
    template <class Work>
    int attempt(bool breaks, Work work) {
        if (is_broken) return CHORALE_INVALID;
        try {
            work();
            return CHORALE_OK;
        } catch (const Failure& failure) {
            error = failure.what();
            if (breaks && failure.status != CHORALE_INVALID) break_off();
            return failure.status;
        } catch (const std::exception& failure) {
            error = failure.what();
            if (breaks) break_off();
            return CHORALE_SYSTEM;
        }
    }

    void break_off() {
        is_broken = true;
        transport().close();
    }

    std::set<Links::Key> missing_connections() const {
        std::set<Links::Key> missing;
        for (const auto& [number, program] : programs)
            for (const Block& block : program.blocks)
                for (const int peer : {block.send_peer, block.recv_peer})
                    if (peer >= 0 && !links.has({peer, block.channel})) missing.insert({peer, block.channel});
        return missing;
    }

    void execute(chorale_call& call) {
        const int64_t now_ns = call.start_ns = monotonic_ns();
        call.step_count = 0;
        const int64_t deadline_ns = deadline_after(call.limit_s, std::max(now_ns, call.not_before_ns));
        const Program& chosen = program(call.program);
        const size_t element_bytes = element_size(call.type);
        if (element_bytes == 0 || !is_operation(call.operation))
            throw Failure(CHORALE_INVALID, "there is no such element type or operation");
        if (call.elements == 0) {
            runs++;
            call.end_ns = monotonic_ns();
            return;
        }
        buffers.prepare(chosen, call, rank, element_bytes);
        Executor executor(chosen, call, buffers, transport(), settings);
        try {
            executor.start(tag(chosen, call));
            runs++;  // only now, because other ranks count a run once this rank has started it
            pause_until(call.not_before_ns);
            call.start_ns = monotonic_ns();
            executor.run(deadline_ns);
            if (call.operation == CHORALE_AVG) average(chosen, call);
            buffers.finish();
            call.end_ns = monotonic_ns();
            executor.drain(deadline_ns);
        } catch (const Failure&) {
            blocked = executor.blocked();
            throw;
        }
    }

    // Returns a hash of everything on which all ranks must agree, so that a disagreement leads to an error instead of
    // wrong results.
    uint32_t tag(const Program& chosen, const chorale_call& call) const {
        const uint64_t facts[] = {runs,
                                  static_cast<uint64_t>(call.program),
                                  static_cast<uint64_t>(chosen.collective),
                                  static_cast<uint64_t>(chosen.root),
                                  chosen.chunks,
                                  call.elements,
                                  static_cast<uint64_t>(call.type),
                                  static_cast<uint64_t>(call.operation),
                                  call.parts};
        return crc32c(0, facts, sizeof facts);
    }

    void average(const Program& chosen, const chorale_call& call) {
        const bool has_sums = chosen.collective == Collective::allreduce ||
                              chosen.collective == Collective::reduce_scatter ||
                              (chosen.collective == Collective::reduce && rank == chosen.root);
        if (has_sums) divide(call.type, buffers.output(), buffers.output_bytes() / element_size(call.type), ranks);
    }
};

extern "C" {

chorale_engine* chorale_engine_new(int rank, int ranks) {
    if (rank < 0 || rank >= ranks) return nullptr;
    try {
        return new chorale_engine(rank, ranks);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void chorale_engine_free(chorale_engine* engine) { delete engine; }

const char* chorale_error(const chorale_engine* engine) { return engine->error.c_str(); }

const char* chorale_blocked(const chorale_engine* engine) { return engine->blocked.c_str(); }

int64_t chorale_program_load(chorale_engine* engine, const int64_t* words, size_t count) {
    int64_t number = -1;
    engine->attempt(false, [&] {
        engine->programs.emplace(engine->next_program, decode_program(words, count, engine->rank, engine->ranks));
        number = engine->next_program++;
    });
    return number;
}

int chorale_program_unload(chorale_engine* engine, int64_t program) {
    return engine->attempt(false, [&] {
        engine->program(program);
        engine->programs.erase(program);
    });
}

int chorale_listen(chorale_engine* engine, const char* address, char* bound, size_t room) {
    return engine->attempt(false, [&] {
        std::string text;
        engine->listeners.push_back(listen_at(address, text));
        if (text.size() + 1 > room) throw Failure(CHORALE_INVALID, "no room for the address");
        std::memcpy(bound, text.c_str(), text.size() + 1);
    });
}

int chorale_listen_devices(chorale_engine* engine, const char* chosen, const char* variables, const char* toward,
                           char* bound, size_t room) {
    return engine->attempt(false, [&] {
        std::string all;
        for (const auto& link : links_for(chosen, variables, toward)) {
            std::string separator = all.empty() ? "" : ",";
            for (const DeviceAddress& address : link) {
                std::string text;
                engine->listeners.push_back(listen_at("tcp:" + address.text, text));
                all += separator + text + "@" + address.device;
                separator = "|";
            }
        }
        if (all.size() + 1 > room) throw Failure(CHORALE_INVALID, "too many network devices: name some of them");
        std::memcpy(bound, all.c_str(), all.size() + 1);
        engine->doors = all;
    });
}

int chorale_connect(chorale_engine* engine, const char* const* addresses, const uint8_t* token, double limit_s) {
    return engine->attempt(true, [&] {
        Joining joining{engine->rank,          {addresses, addresses + engine->ranks}, engine->listeners, engine->doors, {},
                        engine->buffer_bytes, deadline_after(limit_s)};
        std::memcpy(joining.token.data(), token, joining.token.size());
        join(joining, engine->missing_connections(), engine->links);
    });
}

int chorale_use_messages(chorale_engine* engine, const chorale_messages* messages) {
    return engine->attempt(false, [&] { engine->messages = std::make_unique<Messages>(*messages); });
}

int chorale_set(chorale_engine* engine, const char* option, int64_t value) {
    return engine->attempt(false, [&] {
        const std::string name = option;
        if (value < 0) throw Failure(CHORALE_INVALID, "an option cannot be negative: " + name);
        if (name == "piece_bytes")
            engine->settings.piece_bytes = static_cast<size_t>(value > 64 ? value : 64) / 64 * 64;
        else if (name == "buffer_bytes")
            engine->buffer_bytes = static_cast<size_t>(value);
        else if (name == "listening" && value == 0)
            engine->stop_listening();
        else
            throw Failure(CHORALE_INVALID, "there is no option " + name);
    });
}

void chorale_on_step(chorale_engine* engine, void (*hook)(void*, int, int), void* context) {
    if (hook == nullptr)
        engine->settings.on_step = nullptr;
    else
        engine->settings.on_step = [=](int block, int step) { hook(context, block, step); };
}

int chorale_execute(chorale_engine* engine, chorale_call* call) {
    return engine->attempt(true, [&] { engine->execute(*call); });
}

int chorale_reduce(int32_t type, int32_t operation, void* dst, const void* a, const void* b, size_t elements) {
    if (element_size(type) == 0 || !is_operation(operation)) return CHORALE_INVALID;
    reduce(type, operation, dst, a, b, elements);
    return CHORALE_OK;
}

}  // extern "C"
