// The ranks of a communicator: decides what serves a call, and runs programs. The engine connects at the first call;
// elements that are not contiguous are copied.
#include <algorithm>
#include <stdexcept>

#include "element_types.hpp"
#include "job.hpp"
#include "nodes.hpp"

namespace chorale::job {

namespace {

std::vector<int> members_of(MPI_Comm comm) {
    int is_inter = 0, ranks = 0;
    PMPI_Comm_test_inter(comm, &is_inter);
    PMPI_Comm_size(comm, &ranks);
    std::vector<int> positions(ranks), members(ranks);
    for (int i = 0; i < ranks; i++) positions[i] = i;
    if (is_inter) return std::vector<int>(ranks, -1);  // tables have no entries for intercommunicators
    MPI_Group group, world;
    PMPI_Comm_group(comm, &group);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    PMPI_Group_translate_ranks(group, ranks, positions.data(), world, members.data());
    PMPI_Group_free(&group);
    PMPI_Group_free(&world);
    return members;
}

std::string json_of(const std::vector<int>& members, int ranks) {
    bool is_everyone = int(members.size()) == ranks;
    std::string text;
    for (size_t i = 0; i < members.size(); i++) {
        is_everyone = is_everyone && members[i] == int(i);
        text += (i ? ", " : "") + std::to_string(members[i]);
    }
    return is_everyone ? "null" : "[" + text + "]";
}

}  // namespace

Group::Group(MPI_Comm comm) : members_(members_of(comm)), json_(json_of(members_, job()->ranks)) {
    PMPI_Comm_rank(comm, &rank_);
    if (job()->has_table() && job()->nodes.empty()) entries_ = GroupEntries(job()->table, members_);
}

Group::Group(MPI_Comm comm, std::vector<int> table_ranks) : members_(std::move(table_ranks)) {
    PMPI_Comm_rank(comm, &rank_);
    entries_ = GroupEntries(job()->table, members_);
}

Group::~Group() { chorale_engine_free(engine_); }

bool Group::has(std::string_view collective) const {
    if (!job()->has_table() || !job()->other_ranks.empty()) return false;
    const auto& entries = job()->table.entries;  // for nodes, the group that selects entries is created later
    return job()->nodes.empty() ? entries_.has(collective)
                                  : std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
                                        return entry.collective == collective;
                                    });
}

Decision Group::decide(const Call& call) {
    if (!job()->has_table()) return {nullptr, NO_TABLE};
    if (call.unfit != nullptr) return {nullptr, call.unfit};
    if (!job()->other_ranks.empty()) return {nullptr, job()->other_ranks.c_str()};
    if (job()->nodes.empty() || is_inter())
        return entries_.find(call.collective, call.root, call.dtype, int64_t(call.size_bytes));
    if (!nodes_) {
        std::vector<int> numbers;
        for (const int member : members_) numbers.push_back(job()->nodes[member]);
        nodes_ = std::make_unique<Nodes>(call.comm, numbers);
    }
    return nodes_->decide(call);
}

void Group::connect(MPI_Comm comm) {
    engine_ = chorale_engine_new(rank_, ranks());
    if (engine_ == nullptr) throw std::runtime_error("the engine could not be made");
    numbers_.assign(job()->table.programs.size(), -1);
    for (const Entry* entry : entries_.all()) {
        if (entry->program < 0 || numbers_[entry->program] >= 0) continue;
        const auto words = job()->table.words(entry->program, rank_);
        numbers_[entry->program] = chorale_program_load(engine_, words.data(), words.size());
        if (numbers_[entry->program] < 0) throw std::runtime_error(chorale_error(engine_));
    }
    meet(engine_, comm, job()->settings.interface, std::min(60.0, job()->settings.limit_s));
}

void Group::run(const Entry& entry, const Call& call, const void* input, void* output) {
    if (nodes_) return nodes_->run(entry, call, input, output);
    if (engine_ == nullptr) connect(call.comm);
    chorale_call work{};
    work.program = numbers_[entry.program];
    work.input = input;
    work.output = output;
    work.elements = call.operation < 0 ? call.size_bytes : call.size_bytes / element_size(call.type);
    work.type = call.operation < 0 ? int(CHORALE_UINT8) : call.type;
    work.operation = call.operation < 0 ? int(CHORALE_SUM) : call.operation;
    work.parts = 1;
    work.limit_s = job()->settings.limit_s;
    if (chorale_execute(engine_, &work) != CHORALE_OK) throw std::runtime_error(chorale_error(engine_));
}

int Group::execute(const Entry& entry, const Call& call, const Side& input, const Side& output) {
    const std::lock_guard guard(lock_);
    const double start = seconds_now();
    try {
        if (!broken_.empty()) throw std::runtime_error("an earlier call failed: " + broken_);
        const auto copied = [&](const Side& side) {
            const bool needs_copy = side.at != nullptr && !is_dense(side.type);
            std::vector<char> bytes(needs_copy ? side.count * size_of(side.type) : 0);
            if (needs_copy) copy(PACK, side, bytes.data(), call.comm);
            return bytes;
        };
        std::vector<char> in = copied(input), out = copied(output);
        run(entry, call, in.empty() ? input.at : in.data(), out.empty() ? output.at : out.data());
        if (!out.empty()) copy(UNPACK, output, out.data(), call.comm);
    } catch (const std::exception& error) {
        if (broken_.empty()) broken_ = error.what();
        return fail(call, error.what(), MPI_ERR_OTHER);
    }
    job()->counts.program(job()->table.programs[entry.program].digest, call.collective, int64_t(call.size_bytes),
                          seconds_now() - start);
    return MPI_SUCCESS;
}

}  // namespace chorale::job
