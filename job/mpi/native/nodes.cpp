#include "nodes.hpp"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace chorale::job {

namespace {

constexpr int TRIES = 5;  // calls per way and power of two; the first call connects and is not timed
constexpr const char *WAY_NAMES[WAYS] = {"leaders", "slices"},
                     *UNEVEN = "nodes have different numbers of ranks", *LARGE = "more than 2 GiB on several ranks a node";

// Cuts `total` items into `parts`, one for each of the first ranks. Returns the count (0 for other ranks) and the start
// of each rank's part.
std::pair<std::vector<int>, std::vector<int>> cut(size_t total, int parts, int ranks) {
    std::vector<int> counts(ranks), starts(ranks);
    for (int i = 0; i < ranks; i++) {
        counts[i] = i < parts ? int(total / parts + (size_t(i) < total % parts)) : 0;
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
    std::map<int, int> locals;  // number of a node -> its number of ranks
    for (const int number : numbers) local_of_.push_back(locals[number]++);
    std::vector<int> table_ranks;
    fewest_ = locals.begin()->second;
    for (const auto& [number, count] : locals) {
        table_ranks.push_back(number);
        is_even_ = is_even_ && count == locals.begin()->second;
        fewest_ = std::min(fewest_, count);
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
    if (local_ < fewest_) between_ = std::make_unique<Group>(across_, table_ranks);
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
    const std::string collective = call.collective;
    const bool has_shards = collective != "allreduce" && collective != "broadcast" && collective != "reduce";
    return has_shards && !is_even_ ? Decision{nullptr, UNEVEN} : decision;
}

int Nodes::bridge(const Call& call) const { return local_of_[call.root] < fewest_ ? local_of_[call.root] : 0; }

bool Nodes::can(Way way, const Call& call) const {
    const std::string collective = call.collective;
    return collective == "alltoall" ? way == SLICES : way == LEADERS || collective != "reduce";
}

void Nodes::run(const Entry& entry, const Call& call, const void* input, void* output) {
    int power = 0;
    while (call.size_bytes >> (power + 1)) power++;
    Trial& trial = trials_[{call.collective, power}];
    const std::string& wanted = job()->settings.within_nodes;
    int way = trial.way >= 0 ? trial.way : trial.calls % WAYS;
    if (wanted != "measure") way = wanted == WAY_NAMES[LEADERS] ? LEADERS : SLICES;
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

// Runs the program on the participating ranks, on vectors of `bytes`. If it fails on one rank, all ranks of the node
// throw.
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
    const auto [counts, starts] = cut(call.count, fewest_, locals_);
    std::vector<char> part(counts[local_] * element);
    require(PMPI_Reduce_scatter(in, part.data(), counts.data(), type, call.mpi_operation, inside_));
    between(entry, call, true, part.size(), part.data(), part.data());
    require(PMPI_Allgatherv(part.data(), counts[local_], type, out, counts.data(), starts.data(), type, inside_));
}

void Nodes::reduce_scatter(const Entry& entry, const Call& call, Way way, const void* in, char* out) {
    const size_t shard = call.size_bytes / node_of_.size(), of_slice = shard * nodes_;
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
    std::vector<char> sum(local_ == 0 ? call.size_bytes : 0), part(local_ == 0 ? shard * locals_ : 0);
    require(PMPI_Reduce(in, sum.data(), int(call.count), type, call.mpi_operation, 0, inside_));
    if (local_ == 0) sort(BY_NODE, sum.data(), ordered.data(), shard);
    between(entry, call, local_ == 0, ordered.size(), ordered.data(), part.data());
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
    between(entry, call, local_ == 0, ordered.size(), part.data(), ordered.data());
    require(PMPI_Bcast(ordered.data(), int(ordered.size()), MPI_BYTE, 0, inside_));
    unsort(BY_NODE, ordered.data(), out, shard);
}

void Nodes::broadcast(const Entry& entry, const Call& call, Way way, const void* in, char* out) {
    const int root = local_of_[call.root], first = bridge(call), size = int(call.size_bytes);
    if (way == LEADERS) {
        if (first != root && node_ == node_of_[call.root]) {
            if (local_ == root && in != out) std::memcpy(out, in, call.size_bytes);
            require(PMPI_Bcast(out, size, MPI_BYTE, root, inside_));
            in = out;
        }
        between(entry, call, local_ == first, call.size_bytes, in, out);
        require(PMPI_Bcast(out, size, MPI_BYTE, first, inside_));
        return;
    }
    const auto [counts, starts] = cut(call.size_bytes, fewest_, locals_);
    std::vector<char> part(counts[local_]);
    if (node_ == node_of_[call.root])
        require(PMPI_Scatterv(in, counts.data(), starts.data(), MPI_BYTE, part.data(), counts[local_], MPI_BYTE, root,
                              inside_));
    between(entry, call, true, part.size(), part.data(), part.data());
    require(PMPI_Allgatherv(part.data(), counts[local_], MPI_BYTE, out, counts.data(), starts.data(), MPI_BYTE,
                            inside_));
}

void Nodes::reduce(const Entry& entry, const Call& call, const void* in, char* out) {
    const int root = local_of_[call.root], first = bridge(call), size = int(call.size_bytes);
    const bool hands_over = first != root && node_ == node_of_[call.root];
    std::vector<char> sum(local_ == first ? size : 0), total(hands_over && local_ == first ? size : 0);
    require(PMPI_Reduce(in, sum.data(), int(call.count), call.mpi_type, call.mpi_operation, first, inside_));
    between(entry, call, local_ == first, size, sum.data(), total.empty() ? out : total.data());
    if (!total.empty()) require(PMPI_Send(total.data(), size, MPI_BYTE, root, 0, inside_));
    if (hands_over && local_ == root) require(PMPI_Recv(out, size, MPI_BYTE, first, 0, inside_, MPI_STATUS_IGNORE));
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
