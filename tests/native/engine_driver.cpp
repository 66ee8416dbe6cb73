// Runs ranks as threads, from a file of 64-bit words that tests/native/driver.py writes: programs, calls with their
// inputs, and outputs that they must have. Then it loads and runs programs with changed words, which must do no harm.
// Usage: engine_driver FILE SEED MUTANTS
#include <unistd.h>

#include <condition_variable>
#include <random>
#include <thread>

#include "mailbox.hpp"
#include "reader.hpp"

namespace {

struct Side {  // one rank's memory in a call
    size_t input_at, output_at, room, output_bytes;
    bool has_output, is_in_place;
    std::string input, output;
};

struct Call {
    chorale_call call;
    size_t shift;
    std::vector<Side> sides;
};

struct Task {
    int ranks;
    int64_t transport;  // tcp, unix, shm, messages, patient messages
    std::vector<std::pair<std::string, int64_t>> options;
    std::vector<std::vector<Words>> programs;  // by program and rank
    std::vector<Call> calls;
};

Side read_side(Reader& reader) {
    Side side{};
    side.is_in_place = reader.number() != 0;
    side.input_at = static_cast<size_t>(reader.number());
    side.output_at = static_cast<size_t>(reader.number());
    side.room = static_cast<size_t>(reader.number());
    side.output_bytes = static_cast<size_t>(reader.number());
    side.has_output = reader.number() != 0;
    side.input = reader.bytes();
    side.output = reader.bytes();
    return side;
}

Call read_call(Reader& reader, int ranks) {
    Call call{};
    call.call.program = reader.number();
    call.call.elements = static_cast<size_t>(reader.number());
    call.call.type = static_cast<int32_t>(reader.number());
    call.call.operation = static_cast<int32_t>(reader.number());
    call.call.parts = static_cast<size_t>(reader.number());
    call.shift = static_cast<size_t>(reader.number());
    call.call.limit_s = 60;
    for (int rank = 0; rank < ranks; rank++) call.sides.push_back(read_side(reader));
    return call;
}

Task read_task(Reader& reader) {
    Task task{};
    task.ranks = static_cast<int>(reader.number());
    task.transport = reader.number();
    const char* const names[] = {"piece_bytes", "buffer_bytes"};
    for (int64_t left = reader.number(); left > 0; left--) {
        const char* name = names[reader.number()];
        task.options.emplace_back(name, reader.number());
    }
    for (int64_t left = reader.number(); left > 0; left--) {
        task.programs.emplace_back();
        for (int rank = 0; rank < task.ranks; rank++) task.programs.back().push_back(reader.words());
    }
    for (int64_t left = reader.number(); left > 0; left--) task.calls.push_back(read_call(reader, task.ranks));
    return task;
}

class Barrier {
public:
    explicit Barrier(int count) : count_(count), left_(count) {}
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        const int turn = turn_;
        if (--left_ == 0) {
            left_ = count_;
            turn_++;
            all_.notify_all();
        }
        all_.wait(lock, [&] { return turn_ != turn; });
    }

private:
    const int count_;
    int left_, turn_ = 0;
    std::mutex mutex_;
    std::condition_variable all_;
};

void require(chorale_engine* engine, int status) {
    if (status != CHORALE_OK) fail(std::string(chorale_error(engine)) + " " + chorale_blocked(engine));
}

// A long double fills ten of its sixteen bytes; the others hold anything.
bool are_equal(const char* output, const std::string& expected, int32_t type) {
    const bool is_padded = type == CHORALE_FLOAT128;
    const size_t step = is_padded ? 16 : std::max<size_t>(expected.size(), 1), used = is_padded ? 10 : expected.size();
    for (size_t at = 0; at < expected.size(); at += step)
        if (std::memcmp(output + at, expected.data() + at, used) != 0) return false;
    return true;
}

void call_once(chorale_engine* engine, const Call& given, int rank) {
    const Side& side = given.sides[static_cast<size_t>(rank)];
    std::vector<char> first(std::max<size_t>(side.room + given.shift, 1));
    std::vector<char> second(std::max<size_t>(side.is_in_place ? 0 : side.output_bytes + given.shift, 1));
    char* input = first.data() + given.shift;
    char* output = side.is_in_place ? input + side.output_at : second.data() + given.shift;
    std::memcpy(input + side.input_at, side.input.data(), side.input.size());
    std::vector<chorale_step_time> steps(50);
    chorale_call call = given.call;
    call.input = input + side.input_at;
    call.output = output;
    call.steps = steps.data();
    call.step_room = steps.size();
    require(engine, chorale_execute(engine, &call));
    if (side.has_output && !are_equal(output, side.output, call.type)) fail("a wrong result");
}

struct Meeting {
    explicit Meeting(int ranks) : addresses(static_cast<size_t>(ranks)), barrier(ranks) {}
    std::vector<std::string> addresses;
    Barrier barrier;
};

void be_rank(const Task& task, int rank, Meeting& meeting, Mailbox& box) {
    chorale_engine* engine = chorale_engine_new(rank, task.ranks);
    for (const auto& [name, value] : task.options) require(engine, chorale_set(engine, name.c_str(), value));
    for (const auto& program : task.programs) {
        const Words& words = program[static_cast<size_t>(rank)];
        if (chorale_program_load(engine, words.data(), words.size()) < 0) fail(chorale_error(engine));
    }
    if (task.transport < 3) {
        const std::string unique = std::to_string(getpid()) + "-" + std::to_string(rank) + "-" +
                                   std::to_string(reinterpret_cast<uintptr_t>(&meeting));
        const std::string names[] = {"tcp:127.0.0.1", "unix:chorale-driver-" + unique, "shm:chorale-driver-" + unique};
        char bound[256];
        require(engine, chorale_listen(engine, names[task.transport].c_str(), bound, sizeof bound));
        meeting.addresses[static_cast<size_t>(rank)] = bound;
        meeting.barrier.wait();
        std::vector<const char*> addresses;
        for (const std::string& address : meeting.addresses) addresses.push_back(address.c_str());
        const uint8_t token[16] = {1, 2, 3};
        require(engine, chorale_connect(engine, addresses.data(), token, 60));
    } else {
        const chorale_messages messages = box.of(rank);
        require(engine, chorale_use_messages(engine, &messages));
    }
    for (const Call& call : task.calls) call_once(engine, call, rank);
    meeting.barrier.wait();
    chorale_engine_free(engine);
}

void run(const Task& task) {
    Meeting meeting(task.ranks);
    Mailbox box(task.ranks, task.transport == 4);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < task.ranks; rank++)
        threads.emplace_back([&, rank] { be_rank(task, rank, meeting, box); });
    for (std::thread& thread : threads) thread.join();
}

void mutate(Words& words, std::mt19937_64& random) {
    const int64_t values[] = {-1, 0, 1, 2, 3, 7, 8, 1000, int64_t{1} << 40, INT64_MAX, INT64_MIN};
    for (uint64_t left = random() % 4 + 1; left > 0 && !words.empty(); left--) {
        int64_t& word = words[random() % words.size()];
        switch (random() % 6) {
            case 0: word = values[random() % 11]; break;
            case 1: words.resize(words.size() - random() % std::min<size_t>(words.size(), 4)); break;
            case 2: words.push_back(values[random() % 11]); break;
            default: word = static_cast<int64_t>(static_cast<uint64_t>(word) + (random() % 2 ? 1 : ~uint64_t{0}));
        }
    }
}

// Loads a program that nobody made on purpose; runs it if it can be loaded, alone, with whatever memory it asks for.
// Returns whether it could.
bool survive(const Task& task, const Words& words, int rank) {
    chorale_engine* engine = chorale_engine_new(rank, task.ranks);
    const bool is_loaded = chorale_program_load(engine, words.data(), words.size()) >= 0;
    // Sanitizers end a process that asks for more memory than there is. Words 4 and 6: chunks, of scratch memory too.
    if (is_loaded && words[4] < 1 << 16 && words[6] < 1 << 16) {
        Mailbox box(task.ranks, false);
        const chorale_messages messages = box.of(rank);
        chorale_use_messages(engine, &messages);
        const auto ranks = static_cast<size_t>(task.ranks);
        std::vector<int32_t> input(ranks * 5), output(ranks * 5);
        chorale_call call{};
        call.input = input.data();
        call.output = output.data();
        call.elements = ranks * 5;
        call.type = CHORALE_INT32;
        call.parts = words.size() % 3;
        call.limit_s = 0.001;
        chorale_execute(engine, &call);
        chorale_engine_free(engine);  // before the mailbox
        return true;
    }
    chorale_engine_free(engine);
    return is_loaded;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 4) fail("usage: engine_driver FILE SEED MUTANTS");
    Reader reader(arguments[1]);
    std::mt19937_64 random(std::strtoull(arguments[2], nullptr, 10));
    const long mutants = std::strtol(arguments[3], nullptr, 10);
    size_t calls = 0, loaded = 0;
    for (int64_t left = reader.number(); left > 0; left--) {
        const Task task = read_task(reader);
        run(task);
        calls += task.calls.size();
        for (long i = 0; i < mutants; i++) {
            const size_t rank = random() % static_cast<size_t>(task.ranks);
            Words words = task.programs[random() % task.programs.size()][rank];
            mutate(words, random);
            loaded += survive(task, words, static_cast<int>(rank));
        }
    }
    std::printf("%zu calls, %zu mutants ran\n", calls, loaded);
    return 0;
}
