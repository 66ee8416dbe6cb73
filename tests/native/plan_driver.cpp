// Runs plans on ranks that are threads, from the words that tests/native/plan_tasks.py writes: plans, calls with their
// inputs, and outputs that they must have. Then it runs plans with changed words, which end and stay in their memory.
// Usage: plan_driver FILE SEED
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>

#include "engine_clock.hpp"
#include "plan_core.hpp"
#include "reader.hpp"

extern "C" {
const char* chorale_plans_error(void);
int chorale_plan_check(const int64_t* words, size_t count, int rank, int ranks);
int chorale_plan_call(const void* binding, int threads, int64_t not_before_ns, int64_t* end_ns);
}

namespace {

using namespace chorale::plans;
enum { ok = 0, late = 2, stays_away = -1 };

struct Side {  // one rank's part in a call
    u64 input_at, output_at;
    std::string input, output;
};

struct Call {
    u64 limit_ns, piece;
    bool is_late;   // whether all ranks are late, and what they say is printed
    Words threads;  // for each block, by rank
    Words offsets;  // of each window of each rank in its memory
    std::vector<Side> sides;
    bool is_whole() const { return std::count(threads.begin(), threads.end(), stays_away) == 0; }
};

struct Task {
    explicit Task(Reader& reader) : numbers(reader.words()) {
        for (int64_t rank = 0; rank < numbers[0]; rank++) words.push_back(reader.words());
        for (int64_t left = reader.number(); left > 0; left--) {
            Call call{u64(reader.number()), u64(reader.number()), reader.number() != 0, reader.words(), reader.words(), {}};
            for (size_t rank = 0; rank < ranks(); rank++) {
                const u64 input = u64(reader.number()), output = u64(reader.number());
                std::string given = reader.bytes();
                call.sides.push_back({input, output, std::move(given), reader.bytes()});
            }
            calls.push_back(std::move(call));
        }
        mutants = reader.number();
    }
    size_t ranks() const { return static_cast<size_t>(numbers[0]); }

    Words numbers;  // ranks, bytes of a rank's memory, half, type, operation, whether sums stay wide
    std::vector<Words> words;
    std::vector<Call> calls;
    int64_t mutants;
};

struct Counts {
    std::atomic<size_t> plans, calls, late, mutants;
};

// A rank before its first call, with memory of its own, which sanitizers guard.
struct Rank {
    Rank(const Task& task, const Words& plan)
        : words(plan), state(block_state * size_t(words[Head::blocks]) + size_t(words[Head::slots])),
          record(1 + block_record * size_t(words[Head::blocks])), memory(new Vector[size_t(task.numbers[1]) / vector_bytes]()) {
        const auto first = words.begin() + Head::sizes + words[Head::all] * Window::counters;
        state.insert(state.end(), first, first + words[Head::semaphores]);
        state.resize(state.size() + size_t(words[Head::barriers]));
    }
    Rank(const Rank&) = delete;
    Rank& operator=(const Rank&) = delete;

    char* at(u64 offset) { return reinterpret_cast<char*>(memory.get()) + offset; }
    bool check(size_t rank) { return chorale_plan_check(words.data(), words.size(), int(rank), int(words[Head::all])) == ok; }
    int execute(const Task& task, const Call& call, const std::vector<u64>& bases, int64_t threads, u64 limit_ns) {
        const auto* n = reinterpret_cast<const u64*>(task.numbers.data()) + 2;
        const Binding binding{reinterpret_cast<const i64*>(words.data()), state.data(), &broken, record.data(), bases.data(),
                              call.piece, n[0], limit_ns, n[1], n[2], n[3]};
        int64_t end_ns = 0;
        return chorale_plan_call(&binding, int(threads), 0, &end_ns);
    }

    Words words;
    std::vector<u64> state, record;
    u64 broken = 0;
    std::unique_ptr<Vector[]> memory;
};

using Ranks = std::deque<Rank>;

std::vector<u64> bases_of(Ranks& ranks, const Call& call) {
    std::vector<u64> bases((ranks.size() + 1) * Window::windows);
    for (size_t at = 0; at < ranks.size() * Window::windows; at++)
        bases[at] = reinterpret_cast<u64>(ranks[at / Window::windows].at(u64(call.offsets[at])));
    return bases;
}

// Checks what came of a rank's part in a call. If a rank stays away, others may be late, and say what they wait for.
void judge(Rank& rank, const Call& call, size_t number, int status, Counts& counts) {
    const auto complain = [&](const std::string& what) {
        fail("plan " + std::to_string(counts.plans) + " rank " + std::to_string(number) + " " + what);
    };
    const Side& side = call.sides[number];
    if (status == late && (call.is_late || !call.is_whole())) {
        u64 reasons = 0;
        for (size_t at = block_record; at < rank.record.size(); at += block_record) reasons |= rank.record[at];
        if (rank.record[0] == 0 || reasons == 0) complain("does not say what it waits for");
        counts.late++;
        std::string line = "late " + std::to_string(number);
        for (const u64 word : rank.record) line += " " + std::to_string(static_cast<long long>(word));
        if (call.is_late) std::printf("%s\n", line.c_str());
    } else if (status != ok || call.is_late) {
        complain(std::string(status == ok ? "is not late" : chorale_plans_error()));
    } else if (call.is_whole() && std::memcmp(rank.at(side.output_at), side.output.data(), side.output.size()) != 0) {
        complain("has a wrong result");
    }
}

// Each rank makes its calls one after the other, whatever the others do, after pauses of up to 0.3 ms.
void run(const Task& task, std::mt19937_64& random, Counts& counts) {
    Ranks ranks;
    for (size_t rank = 0; rank < task.ranks(); rank++)
        if (!ranks.emplace_back(task, task.words[rank]).check(rank)) fail(chorale_plans_error());
    std::vector<std::thread> running;
    for (size_t rank = 0; rank < ranks.size(); rank++)
        running.emplace_back([&, rank, seed = random()] {
            std::mt19937_64 draw(seed);
            for (const Call& call : task.calls) {
                if (call.threads[rank] == stays_away) continue;
                if (draw() % 4 == 0) chorale::pause_ns(int64_t(draw() % 300'000));
                const Side& side = call.sides[rank];
                std::memcpy(ranks[rank].at(side.input_at), side.input.data(), side.input.size());
                const int status = ranks[rank].execute(task, call, bases_of(ranks, call), call.threads[rank], call.limit_ns);
                judge(ranks[rank], call, rank, status, counts);
                counts.calls++;
            }
        });
    for (std::thread& each : running) each.join();
}

// Changes words of a rank, but not the head: memory is as long as it says.
void mutate(Words& words, size_t head, std::mt19937_64& random) {
    const auto any = [&] { return head + random() % (words.size() - head); };
    for (uint64_t left = random() % 4 + 1; left > 0; left--) {
        const size_t at = any();
        const int64_t values[] = {0, 1, -1, int64_t{1} << 40, words[at] + 1, words[at] - 1, words[any()]};
        words[at] = values[random() % 7];
    }
    if (random() % 5 == 0) words.resize(any());
}

// Whatever the check lets pass may be executed. Returns whether it did.
bool survive(const Task& task, std::mt19937_64& random) {
    const size_t changed = random() % task.ranks();
    Ranks ranks;
    for (size_t rank = 0; rank < task.ranks(); rank++) {
        ranks.emplace_back(task, task.words[rank]);
        if (rank == changed) mutate(ranks[rank].words, Head::sizes + task.ranks() * Window::counters, random);
    }
    if (!ranks[changed].check(changed)) return false;
    std::vector<std::thread> running;
    const std::vector<u64> bases = bases_of(ranks, task.calls[0]);
    for (Rank& rank : ranks)
        running.emplace_back([&, threads = int64_t(random() % 3)] { rank.execute(task, task.calls[0], bases, threads, 5'000'000); });
    for (std::thread& each : running) each.join();
    return true;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) fail("usage: plan_driver FILE SEED");
    Reader reader(arguments[1]);
    std::mt19937_64 random(std::strtoull(arguments[2], nullptr, 10));
    Counts counts{};
    for (; reader.has_more(); counts.plans++) {
        const Task task(reader);
        run(task, random, counts);
        for (int64_t left = task.mutants; left > 0; left--) counts.mutants += survive(task, random);
    }
    std::printf("%zu plans, %zu calls, %zu late, %zu mutants ran\n", counts.plans.load(), counts.calls.load(),
                counts.late.load(), counts.mutants.load());
    return 0;
}
