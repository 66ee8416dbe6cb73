#include "control.hpp"

#include <array>
#include <cerrno>
#include <sstream>

namespace chorale {
namespace {

Failure wrong(const std::string& line) { return Failure(CHORALE_INVALID, "no command of the network: " + line); }

Token token_of(const std::string& hex) {
    Token token{};
    if (hex.size() != 2 * token.size()) throw wrong("a token of another size");
    for (size_t i = 0; i < token.size(); i++) token[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    return token;
}

}  // namespace

Control::Control(int fd, Watch& watch, Network& network, Reception& reception)
    : fd_(fd), network_(network), reception_(reception) {
    watch.add_reader(fd, *this);
}

void Control::say(int fd, const std::string& text) {
    const std::string line = text + "\n";
    if (send(fd, line.data(), line.size(), MSG_NOSIGNAL) < 0) return;  // nobody is there to hear it: see `woken`
}

void Control::woken(bool) {
    std::array<char, 65536> bytes;
    const ssize_t count = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    is_closed_ = count <= 0;
    if (is_closed_) return;
    text_.append(bytes.data(), static_cast<size_t>(count));
    size_t start = 0;
    for (size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n', start)) {
        obey(text_.substr(start, end - start));
        start = end + 1;
    }
    text_.erase(0, start);
}

void Control::obey(const std::string& line) {
    std::istringstream words(line);
    std::string name, hex;
    words >> name;
    if (name == "token" && words >> hex) return reception_.set_token(token_of(hex));
    if (name == "done") return say(fd_, name);
    if (name == "link") {
        size_t number;
        double ns_per_byte;
        int64_t latency_ns;
        if (!(words >> number >> ns_per_byte >> latency_ns) || ns_per_byte < 0 || latency_ns < 0) throw wrong(line);
        return network_.set_link(number, ns_per_byte, latency_ns);
    }
    int src, dst, channel;
    if (name != "path" || !(words >> src >> dst >> channel) || src == dst) throw wrong(line);
    std::vector<size_t> links;
    for (size_t link; words >> link;) links.push_back(link);
    if (links.empty()) throw wrong(line);
    network_.set_path(src, dst, channel, links);
}

}  // namespace chorale
