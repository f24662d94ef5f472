// Replays a fuzz target without a fuzzer: each seed file, then seeded mutations of them (flip, cut, extend, splice).
// Usage: fuzz_NAME SEED_FOLDER [mutations] [seed]. With clang the same target links libFuzzer instead (preset `fuzz`).

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void run(const std::string& input) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

std::string mutate(const std::vector<std::string>& seeds, std::mt19937_64& random) {
    std::string text = seeds[random() % seeds.size()];
    const std::size_t changes = 1 + random() % 6;
    for (std::size_t i = 0; i < changes; ++i) {
        const std::size_t at = text.empty() ? 0 : random() % text.size();
        switch (random() % 6) {
            case 0: if (!text.empty()) text[at] = static_cast<char>(random()); break;
            case 1: text.resize(at); break;
            case 2: text.insert(at, 1 + random() % 9, static_cast<char>(random())); break;
            case 3: text.insert(at, seeds[random() % seeds.size()].substr(0, random() % 64)); break;
            case 4: if (text.size() >= 4) text.replace(at % (text.size() - 3), 4, "\xff\xff\xff\x7f", 4); break;
            default: if (!text.empty()) text.erase(at, 1 + random() % 8); break;
        }
    }
    return text;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s SEED_FOLDER [mutations] [seed]\n", argv[0]);
        return 2;
    }
    std::vector<std::string> seeds;
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
        std::ifstream file(entry.path(), std::ios::binary);
        seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    if (seeds.empty()) {
        std::fprintf(stderr, "no seeds in %s\n", argv[1]);
        return 1;
    }
    const unsigned long mutations = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 20000;
    std::mt19937_64 random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
    for (const std::string& seed : seeds) run(seed);
    for (unsigned long i = 0; i < mutations; ++i) run(mutate(seeds, random));
    std::printf("%zu seeds and %lu mutations held\n", seeds.size(), mutations);
    return 0;
}
