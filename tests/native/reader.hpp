// Reads the 64-bit words and texts that tests/native/driver.py writes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

using Words = std::vector<int64_t>;

[[noreturn]] inline void fail(const std::string& what) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    std::_Exit(3);
}

class Reader {
public:
    explicit Reader(const char* path) : stream_(path, std::ios::binary) {}

    bool has_more() { return stream_.peek() != std::ifstream::traits_type::eof(); }
    int64_t number() {
        int64_t value = 0;
        read(&value, sizeof value);
        return value;
    }
    std::string bytes() {
        std::string text(static_cast<size_t>(number()), '\0');
        read(&text[0], text.size());
        stream_.ignore(static_cast<std::streamsize>((8 - text.size() % 8) % 8));
        return text;
    }
    Words words() {
        Words words(static_cast<size_t>(number()));
        read(words.data(), words.size() * sizeof(int64_t));
        return words;
    }

private:
    void read(void* to, size_t size) {
        if (!stream_.read(static_cast<char*>(to), static_cast<std::streamsize>(size))) fail("the file ends too early");
    }
    std::ifstream stream_;
};
