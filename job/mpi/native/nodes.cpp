#include "nodes.hpp"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace chorale::job {

namespace {

constexpr int TRIES = 5;  // of each way at each power of two; the first, which connects, does not count
constexpr const char *WAY_NAMES[WAYS] = {"leaders", "slices"},
                     *UNEVEN = "nodes have different numbers of ranks", *LARGE = "more than 2 GiB on several ranks a node";

int power_of_two(size_t bytes) {
    int power = 0;
    while (bytes >>= 1) power++;
    return power;
}

// How `total` items are cut into `parts`: the counts, and where each begins.
std::pair<std::vector<int>, std::vector<int>> cut(size_t total, int parts) {
    std::vector<int> counts(parts), starts(parts);
    for (int i = 0; i < parts; i++) {
        counts[i] = int(total / parts + (size_t(i) < total % parts));
        starts[i] = i ? starts[i - 1] + counts[i - 1] : 0;
    }
    return {counts, starts};
}

void require(int status) {
    if (status != MPI_SUCCESS) throw std::runtime_error("MPI failed inside of a node");
}

}  // namespace

std::vector<int> nodes_of_job(int ranks, double limit_s) {
    MPI_Comm shared;
    int first = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &first);
    require(PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, first, MPI_INFO_NULL, &shared));
    require(PMPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, shared));
    PMPI_Comm_free(&shared);
    const char* named = std::getenv("CHORALE_NODE");
    const std::string name = named ? "named " + std::string(named).substr(0, 255) : network_id() + std::to_string(first);
    std::vector<int> numbers(ranks);
    std::map<std::string, int> known;
    const auto names = gather_texts(MPI_COMM_WORLD, name, limit_s);
    for (int rank = 0; rank < ranks; rank++) numbers[rank] = known.emplace(names[rank], int(known.size())).first->second;
    return numbers;
}

Nodes::Nodes(MPI_Comm comm, const std::vector<int>& numbers) {
    std::map<int, int> locals;  // ranks by number of the node
    for (const int number : numbers) local_of_.push_back(locals[number]++);
    std::vector<int> table_ranks;
    for (const auto& [number, count] : locals) {
        table_ranks.push_back(number);
        is_even_ = is_even_ && count == locals.begin()->second;
    }
    for (const int number : numbers) node_of_.push_back(int(std::distance(locals.begin(), locals.find(number))));
    int rank = 0;
    PMPI_Comm_rank(comm, &rank);
    nodes_ = int(locals.size());
    locals_ = locals[numbers[rank]];
    node_ = node_of_[rank];
    local_ = local_of_[rank];
    entries_ = GroupEntries(job()->table, table_ranks);
    require(PMPI_Comm_split(comm, node_, local_, &inside_));
    require(PMPI_Comm_split(comm, local_, node_, &across_));
    if (is_even_ || local_ == 0) between_ = std::make_unique<Group>(across_, table_ranks);
}

Nodes::~Nodes() {
    between_.reset();
    PMPI_Comm_free(&inside_);
    PMPI_Comm_free(&across_);
}

Decision Nodes::decide(const Call& call) const {
    const int root = call.root < 0 ? -1 : node_of_[call.root];
    const Decision decision = entries_.find(call.collective, root, call.dtype, int64_t(call.size_bytes));
    if (decision.entry == nullptr) return decision;
    if (call.size_bytes > INT_MAX) return {nullptr, LARGE};
    return can(LEADERS, call) || can(SLICES, call) ? decision : Decision{nullptr, UNEVEN};
}

bool Nodes::can(Way way, const Call& call) const {
    const std::string collective = call.collective;
    if (!is_even_) return collective == "allreduce" && way == LEADERS;
    if (collective == "reduce") return way == LEADERS;
    return way == SLICES || collective != "alltoall";
}

void Nodes::run(const Entry& entry, const Call& call, const void* input, void* output) {
    Trial& trial = trials_[{call.collective, power_of_two(call.size_bytes)}];
    const std::string& wanted = job()->settings.within_nodes;
    int way = trial.way >= 0 ? trial.way : trial.calls % WAYS;
    if (!wanted.empty()) way = wanted == WAY_NAMES[LEADERS] ? LEADERS : SLICES;
    if (!can(Way(way), call)) way = 1 - way;
    const double start = seconds_now();
    const std::string collective = call.collective;
    auto* const out = static_cast<char*>(output);
    if (collective == "allreduce") allreduce(entry, call, Way(way), input, out);
    else if (collective == "reduce_scatter") reduce_scatter(entry, call, Way(way), input, out);
    else if (collective == "allgather") allgather(entry, call, Way(way), input, out);
    else if (collective == "broadcast") broadcast(entry, call, Way(way), input, out);
    else if (collective == "reduce") reduce(entry, call, input, out);
    else alltoall(entry, call, input, out);
    const double seconds = seconds_now() - start;
    job()->counts.way(call.collective, WAY_NAMES[way], int64_t(call.size_bytes), seconds);
    if (trial.way >= 0) return;
    if (trial.calls >= WAYS) trial.seconds[way] += seconds;
    if (++trial.calls < TRIES * WAYS) return;
    require(PMPI_Allreduce(MPI_IN_PLACE, trial.seconds, WAYS, MPI_DOUBLE, MPI_MAX, call.comm));
    trial.way = trial.seconds[LEADERS] <= trial.seconds[SLICES] ? LEADERS : SLICES;
}

// Runs the program on the ranks that take part, on vectors of `bytes`; a failure is one of all ranks of the node.
void Nodes::between(const Entry& entry, const Call& call, bool takes_part, size_t bytes, const void* in, void* out) {
    std::string error;
    if (takes_part && bytes > 0) {
        Call part = call;
        part.comm = across_;
        part.size_bytes = bytes;
        try {
            between_->run(entry, part, in, out);
        } catch (const std::exception& failure) {
            error = failure.what();
        }
    }
    int has_failed = error.empty() ? 0 : 1;
    require(PMPI_Allreduce(MPI_IN_PLACE, &has_failed, 1, MPI_INT, MPI_MAX, inside_));
    if (has_failed) throw std::runtime_error(error.empty() ? "the program failed on a rank of the same node" : error);
}

void Nodes::allreduce(const Entry& entry, const Call& call, Way way, const void* in, char* out) {
    const MPI_Datatype type = call.mpi_type;
    const size_t element = size_t(call.size_bytes) / call.count;
    if (way == LEADERS) {
        const void* from = in == out && local_ == 0 ? MPI_IN_PLACE : in;
        require(PMPI_Reduce(from, out, int(call.count), type, call.mpi_operation, 0, inside_));
        between(entry, call, local_ == 0, call.size_bytes, out, out);
        require(PMPI_Bcast(out, int(call.count), type, 0, inside_));
        return;
    }
    const auto [counts, starts] = cut(call.count, locals_);
    std::vector<char> part(counts[local_] * element);
    require(PMPI_Reduce_scatter(in, part.data(), counts.data(), type, call.mpi_operation, inside_));
    between(entry, call, true, part.size(), part.data(), part.data());
    require(PMPI_Allgatherv(part.data(), counts[local_], type, out, counts.data(), starts.data(), type, inside_));
}

void Nodes::reduce_scatter(const Entry& entry, const Call& call, Way way, const void* in, char* out) {
    const size_t shard = call.size_bytes / node_of_.size(), of_node = shard * locals_, of_slice = shard * nodes_;
    const MPI_Datatype type = call.mpi_type;
    std::vector<char> ordered(call.size_bytes);
    if (way == SLICES) {
        std::vector<char> part(of_slice);
        sort(BY_LOCAL, static_cast<const char*>(in), ordered.data(), shard);
        const int count = int(call.count / locals_);
        require(PMPI_Reduce_scatter_block(ordered.data(), part.data(), count, type, call.mpi_operation, inside_));
        between(entry, call, true, of_slice, part.data(), out);
        return;
    }
    std::vector<char> sum(local_ == 0 ? call.size_bytes : 0), part(local_ == 0 ? of_node : 0);
    require(PMPI_Reduce(in, sum.data(), int(call.count), type, call.mpi_operation, 0, inside_));
    if (local_ == 0) sort(BY_NODE, sum.data(), ordered.data(), shard);
    between(entry, call, local_ == 0, call.size_bytes, ordered.data(), part.data());
    require(PMPI_Scatter(part.data(), int(shard), MPI_BYTE, out, int(shard), MPI_BYTE, 0, inside_));
}

void Nodes::allgather(const Entry& entry, const Call& call, Way way, const void* in, char* out) {
    const size_t shard = call.size_bytes / node_of_.size();
    std::vector<char> ordered(call.size_bytes), part(shard * (way == SLICES ? nodes_ : locals_));
    if (way == SLICES) {
        between(entry, call, true, part.size(), in, part.data());
        const int size = int(part.size());
        require(PMPI_Allgather(part.data(), size, MPI_BYTE, ordered.data(), size, MPI_BYTE, inside_));
        return unsort(BY_LOCAL, ordered.data(), out, shard);
    }
    require(PMPI_Gather(in, int(shard), MPI_BYTE, part.data(), int(shard), MPI_BYTE, 0, inside_));
    between(entry, call, local_ == 0, call.size_bytes, part.data(), ordered.data());
    require(PMPI_Bcast(ordered.data(), int(ordered.size()), MPI_BYTE, 0, inside_));
    unsort(BY_NODE, ordered.data(), out, shard);
}

void Nodes::broadcast(const Entry& entry, const Call& call, Way way, const void* in, char* out) {
    const int root = local_of_[call.root];
    if (way == LEADERS) {
        between(entry, call, local_ == root, call.size_bytes, in, out);
        require(PMPI_Bcast(out, int(call.size_bytes), MPI_BYTE, root, inside_));
        return;
    }
    const auto [counts, starts] = cut(call.size_bytes, locals_);
    std::vector<char> part(counts[local_]);
    if (node_ == node_of_[call.root])
        require(PMPI_Scatterv(in, counts.data(), starts.data(), MPI_BYTE, part.data(), counts[local_], MPI_BYTE, root,
                              inside_));
    between(entry, call, true, part.size(), part.data(), part.data());
    require(PMPI_Allgatherv(part.data(), counts[local_], MPI_BYTE, out, counts.data(), starts.data(), MPI_BYTE,
                            inside_));
}

void Nodes::reduce(const Entry& entry, const Call& call, const void* in, char* out) {
    const int root = local_of_[call.root];
    std::vector<char> sum(local_ == root ? call.size_bytes : 0);
    require(PMPI_Reduce(in, sum.data(), int(call.count), call.mpi_type, call.mpi_operation, root, inside_));
    between(entry, call, local_ == root, call.size_bytes, sum.data(), out);
}

void Nodes::alltoall(const Entry& entry, const Call& call, const void* in, char* out) {
    const size_t block = call.size_bytes / node_of_.size();
    std::vector<char> one(call.size_bytes), other(call.size_bytes);
    sort(BY_LOCAL, static_cast<const char*>(in), one.data(), block);
    const int size = int(block * nodes_);
    require(PMPI_Alltoall(one.data(), size, MPI_BYTE, other.data(), size, MPI_BYTE, inside_));
    for (int local = 0; local < locals_; local++)
        for (int node = 0; node < nodes_; node++)
            std::memcpy(&one[(size_t(node) * locals_ + local) * block], &other[(size_t(local) * nodes_ + node) * block],
                        block);
    between(entry, call, true, call.size_bytes, one.data(), other.data());
    unsort(BY_NODE, other.data(), out, block);
}

size_t Nodes::slot(Order order, size_t rank) const {
    const size_t node = node_of_[rank], local = local_of_[rank];
    return order == BY_NODE ? node * locals_ + local : local * nodes_ + node;
}

void Nodes::sort(Order order, const char* from, char* to, size_t bytes) const {
    for (size_t rank = 0; rank < node_of_.size(); rank++)
        std::memcpy(to + slot(order, rank) * bytes, from + rank * bytes, bytes);
}

void Nodes::unsort(Order order, const char* from, char* to, size_t bytes) const {
    for (size_t rank = 0; rank < node_of_.size(); rank++)
        std::memcpy(to + rank * bytes, from + slot(order, rank) * bytes, bytes);
}

}  // namespace chorale::job
