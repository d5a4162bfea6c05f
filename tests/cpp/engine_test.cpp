// Tests of parts of the engine that Python cannot reach: limits that would need billions of codes, changes
// in the middle of a merge, and the memory that a change takes. Ends with 1 if a check fails.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <random>
#include <set>

#include "mch/bitmap.h"
#include "mch/changes.h"
#include "mch/maintenance.h"
#include "mch/selection.h"
#include "mch/snapshot.h"
#include "mch/state.h"

// All memory that is asked for, to see what a call takes.
static std::atomic<size_t> allocated{0};

void* operator new(size_t n) {
    allocated += n;
    if (void* p = std::malloc(n)) return p;
    throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace mch {
namespace {

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                        \
        }                                                                        \
    } while (0)

using C = Code<uint64_t, 1>;
constexpr int kBits = 64;

struct Row {
    int64_t id;
    uint64_t code;
    uint8_t region;
};

const LinearHash& test_hash() {
    static const LinearHash hash(kBits, 12345);
    return hash;
}

// Adds rows as a table does, but never merges.
void add(State<C>& state, const std::vector<Row>& rows) {
    Entries<C> in;
    for (const Row& r : rows) {
        in.id.push_back(r.id);
        in.code.push_back(C{{r.code}});
        in.region.push_back(r.region);
    }
    keep_new(in, state, test_hash());
    if (!in.size()) return;
    auto seg = build_segment(kBits, test_hash(), in);
    state.n_codes += seg->n_entries;
    insert_part(state.parts, {seg, nullptr, 0});
}

// All live entries, in order.
std::vector<std::array<uint64_t, 3>> content(const State<C>& state) {
    Entries<C> all;
    for (const Part<C>& p : state.parts) append_live(p.view(), all);
    std::vector<std::array<uint64_t, 3>> rows;
    for (size_t i = 0; i < all.size(); ++i) rows.push_back({uint64_t(all.id[i]), all.code[i].w[0], all.region_of(i)});
    std::sort(rows.begin(), rows.end());
    return rows;
}

// One primary entry per live image, in all parts together.
bool primaries_are_right(const State<C>& state) {
    std::map<int64_t, int> primary;
    for (const Part<C>& p : state.parts)
        for (uint32_t e = 0; e < p.seg->n_entries; ++e)
            if (p.view().live(e)) primary[p.seg->id[p.seg->image[e]]] += p.seg->is_primary(e);
    return primary.size() == state.n_images &&
           std::all_of(primary.begin(), primary.end(), [](auto& p) { return p.second == 1; });
}

std::vector<Row> rows(std::mt19937_64& random, size_t n, int64_t images) {
    std::vector<Row> some;
    for (size_t i = 0; i < n; ++i)
        some.push_back({int64_t(random() % uint64_t(images)), random() % 50, uint8_t(random() % 5)});
    return some;
}

// A state with parts of these sizes, without content.
Parts<C> parts_of_sizes(std::vector<uint32_t> sizes) {
    std::sort(sizes.rbegin(), sizes.rend());
    Parts<C> parts;
    for (uint32_t n : sizes) {
        auto seg = std::make_shared<Segment<C>>();
        seg->n_entries = seg->n_images = n;
        parts.push_back({seg, nullptr, 0});
    }
    return parts;
}

uint64_t entries_at(const Parts<C>& parts, const std::vector<size_t>& places) {
    uint64_t n = 0;
    for (size_t i : places) n += parts[i].seg->n_entries;
    return n;
}

template <class F>
bool refuses(F&& f) {
    try {
        f();
    } catch (const std::length_error&) {
        return true;
    }
    return false;
}

// ----------------------------------------------------------------------------------------------- tests

void test_bitmap() {
    std::mt19937_64 random(1);
    for (size_t n : {size_t(1), size_t(64), size_t(65), Bitmap::block_bits, 3 * Bitmap::block_bits + 77}) {
        for (bool value : {false, true}) {
            std::vector<bool> want(n, value);
            Bitmap bits(n, value);
            for (int turn = 0; turn < 5; ++turn) {
                std::vector<uint32_t> places;
                for (int i = 0; i < 100; ++i) places.push_back(uint32_t(random() % n));
                const Bitmap before = bits;
                bits = bits.with(places, turn % 2);
                std::vector<bool> expected = want;
                for (uint32_t i : places) expected[i] = turn % 2;
                std::vector<uint32_t> fresh, found;
                for (uint32_t i = 0; i < n; ++i) {
                    CHECK(before.test(i) == want[i]);
                    CHECK(bits.test(i) == expected[i]);
                    if (expected[i] && !want[i]) fresh.push_back(i);
                }
                bits.for_each_new(before, [&](uint32_t i) { found.push_back(i); });
                CHECK(found == fresh);
                want = expected;
            }
            const auto words = bits.words();
            CHECK(words.size() == bitmap_words(n));
            const Bitmap again(n, words.data());
            for (uint32_t i = 0; i < n; ++i) CHECK(again.test(i) == want[i]);
            if (!value) CHECK(again.count() == uint64_t(std::count(want.begin(), want.end(), true)));
        }
    }
}

void test_a_removal_takes_little_memory() {
    constexpr int64_t n = 5'000'000;
    State<C> state;
    Entries<C> in;
    for (int64_t i = 0; i < n; ++i) in.id.push_back(i), in.code.push_back(C{{uint64_t(i) * 0x9e3779b97f4a7c15}});
    state.parts.push_back({build_segment(kBits, test_hash(), in), nullptr, 0});
    state.n_images = state.n_codes = n;
    for (int64_t id : {int64_t(5), int64_t(6), n / 2, n - 1}) {
        State<C> next(state);
        const size_t before = allocated;
        CHECK(remove_images({id}, next) == 1);
        CHECK(allocated - before < 32768);  // a bit for each image would take 625,000 bytes
        CHECK(!next.contains(id) && state.contains(id));
        state.parts = next.parts;
    }
}

// A search of a few allowed images looks at their codes alone, and does not go through the table to find them.
void test_few_allowed_images_take_little_work() {
    constexpr int64_t n = 2'000'000;
    Entries<C> in;
    for (int64_t i = 0; i < n; ++i) in.id.push_back(i / 2), in.code.push_back(C{{uint64_t(i) * 0x9e3779b97f4a7c15}});
    const auto state = std::make_shared<State<C>>();
    state->parts.push_back({build_segment(kBits, test_hash(), in), nullptr, 0});
    state->n_images = n / 2;
    state->n_codes = n;
    const auto selected = [&](std::vector<int64_t> ids) {
        return select<C>(state, Filter(ids, false), kBits, test_hash(), 10);
    };
    selected({5});  // makes the map from images to buckets
    for (int64_t id : {int64_t(6), n / 2 - 1}) {
        const size_t before = allocated;
        const auto one = selected({id, n});
        CHECK(allocated - before < 16384);  // a bit for each image would take 125,000 bytes
        CHECK(one->n_images == 1 && one->n_codes == 2);
        CHECK(one->parts.size() == 1 && one->parts[0].seg->n_entries == 2 && one->parts[0].all_live());
    }
    CHECK(selected({n})->parts.empty());
    std::vector<int64_t> half;
    for (int64_t id = 0; id < n / 2; id += 2) half.push_back(id);
    const auto many = selected(half);  // the table's own segment, with a bit for each image
    CHECK(many->parts.size() == 1 && many->parts[0].seg == state->parts[0].seg.get());
    CHECK(many->n_images == uint64_t(n) / 4 && many->n_codes == uint64_t(n) / 2);
}

void test_merges_stay_below_the_limit() {
    std::mt19937_64 random(2);
    for (int turn = 0; turn < 3000; ++turn) {
        std::vector<uint32_t> sizes;
        for (uint64_t i = random() % 12 + 1; i > 0; --i) sizes.push_back(uint32_t(1 + random() % 1000));
        const uint64_t most = 1000 + random() % 1500;
        Parts<C> parts = parts_of_sizes(sizes);
        const auto picked = parts_to_merge(parts, {}, most);
        CHECK(entries_at(parts, picked) <= most);
        if (entries_at(parts, parts_to_merge(parts, {})) <= most) CHECK(picked == parts_to_merge(parts, {}));
        std::vector<size_t> all;
        for (const auto& places : parts_to_merge_all(parts, most)) {
            CHECK(entries_at(parts, places) <= most);
            all.insert(all.end(), places.begin(), places.end());
        }
        CHECK(all.size() == parts.size() && std::is_sorted(all.begin(), all.end()));
        CHECK(parts_to_merge_all(parts).size() == 1);
    }
    // Segments of 2^31 - 1 entries and of one, whose sum does not fit into 32 bits with another of them.
    Parts<C> parts = parts_of_sizes({INT32_MAX, INT32_MAX, INT32_MAX, 1});
    CHECK(parts_to_merge(parts, {}).empty());
    CHECK(parts_to_merge_all(parts).size() == 4);
    parts = parts_of_sizes({INT32_MAX / 2, INT32_MAX / 2 + 1});
    CHECK(parts_to_merge(parts, {}).size() == 2);
    CHECK(parts_to_merge_all(parts).size() == 1);
    CHECK(refuses([] { check_entries(uint64_t(INT32_MAX) + 1); }));
    CHECK(refuses([] { check_entries((uint64_t(1) << 32) + 5); }));
    CHECK(refuses([] { check_entries(11, 10); }));
    check_entries(INT32_MAX);
    check_entries(10, 10);
}

void test_merging_all_under_a_limit_keeps_the_content() {
    std::mt19937_64 random(3);
    for (int turn = 0; turn < 100; ++turn) {
        State<C> state;
        for (int i = 0; i < 6; ++i) add(state, rows(random, 1 + random() % 80, 60));
        std::vector<int64_t> gone;
        for (int64_t id = 0; id < 60; id += 1 + int64_t(random() % 12)) gone.push_back(id);
        remove_images(gone, state);
        const auto want = content(state);
        uint64_t largest = 0;
        for (const Part<C>& p : state.parts) largest = std::max<uint64_t>(largest, p.seg->n_entries);
        const uint64_t most = largest + random() % 100;
        State<C> next(state);
        merge_all(next, kBits, test_hash(), most);
        CHECK(content(next) == want);
        CHECK(primaries_are_right(next));
        for (const Part<C>& p : next.parts) CHECK(p.seg->n_entries <= most && !p.n_dead);
        merge_all(next, kBits, test_hash());
        CHECK(next.parts.size() == 1 && content(next) == want);
        CHECK(!merge_all(next, kBits, test_hash()));
    }
}

void test_a_merge_keeps_what_others_changed_meanwhile() {
    std::mt19937_64 random(4);
    bool lowered = false, gone = false, empty = false;
    for (int turn = 0; turn < 500; ++turn) {
        const int64_t images = turn % 2 ? 30 : 8;
        State<C> state;
        for (int i = 0; i < 4; ++i) add(state, rows(random, 1 + random() % 60, images));
        remove_images({1, 2}, state);
        const Parts<C> before = parts_at(state.parts, {state.parts.size() - 2, state.parts.size() - 1});
        auto merged = merge_parts(before, kBits, test_hash());
        // Meanwhile, others add the same pairs with other regions, add new ones and remove images.
        for (int i = 0; i < 5; ++i) {
            add(state, rows(random, 20, images));
            std::vector<int64_t> ids;
            for (int64_t id = 0; id < images; ++id)
                if (random() % 6 == 0) ids.push_back(id);
            remove_images(ids, state);
        }
        for (const Part<C>& p : before) {
            const auto now = find_part(state.parts, *p.seg);
            gone |= now == state.parts.end();
            lowered |= now != state.parts.end() && now->seg != p.seg;
        }
        const auto want = content(state);
        State<C> next(state);
        replace_with_merged(next, before, merged, test_hash());
        CHECK(content(next) == want);
        CHECK(primaries_are_right(state) && primaries_are_right(next));
        for (const Part<C>& p : before) CHECK(find_part(next.parts, *p.seg) == next.parts.end());
        for (const Part<C>& p : next.parts) {
            CHECK(p.n_dead < p.seg->n_images);
            CHECK((p.dead ? p.dead->count() : 0) == p.n_dead);
        }
        empty |= std::none_of(next.parts.begin(), next.parts.end(), [&](auto& p) { return p.seg == merged; });
    }
    CHECK(lowered && gone && empty);
}

// What searches of one kind cost says nothing about those of another.
void test_experience_is_kept_apart_by_kind() {
    std::set<int> seen;
    for (const size_t together : {1, 4, 64})
        for (const int radius : {64, 3, 7, 40})
            for (uint64_t k = 1; k < uint64_t(1) << 16; k *= 4) {
                const int c = Experience::class_of(k, together, radius, 64);
                CHECK(c >= 0 && c < Experience::classes);
                CHECK(seen.insert(c).second);
            }
    CHECK(Experience::class_of(UINT64_MAX, 64, 0, 256) < Experience::classes);
    CHECK(Experience::class_of(10, 1, 4, 64) == Experience::class_of(10, 1, 16, 256));
}

// Ways take these nanoseconds. Returns how often the first of them was chosen in the last 1,000 turns.
int chosen(Experience& e, const double (&ns)[Experience::ways], int first, int turns) {
    const bool open[Experience::ways] = {ns[0] > 0, ns[1] > 0, ns[2] > 0, ns[3] > 0};
    int n = 0;
    for (int i = 0; i < turns; ++i) {
        const auto way = e.choose(0, open);
        CHECK(open[way]);
        e.record(0, way, ns[way]);
        n += i >= turns - 1000 && way == first;
    }
    return n;
}

void test_the_fastest_way_is_found_even_if_it_was_slow_at_first() {
    using E = Experience;
    for (const int fastest : {E::scan, E::scan_all, E::flips, E::cells})
        for (const double slow_at_first : {1.0, 3.0, 40.0}) {
            E e;
            double ns[E::ways] = {5000, 5000, 5000, 5000};
            ns[fastest] = 2600 * slow_at_first;
            chosen(e, ns, fastest, 5);
            ns[fastest] = 2600;
            CHECK(chosen(e, ns, fastest, 2000) > 950);
            // Then another one becomes faster.
            ns[fastest] = 20000;
            chosen(e, ns, fastest, 2000);
            CHECK(chosen(e, ns, fastest, 1000) < 50);
        }
    // A way that is not open is never chosen; one that is hopeless hardly ever.
    E e;
    CHECK(chosen(e, {1000, 0, 90000, 0}, E::scan, 3000) > 990);
}

void test_longest_probe_run() {
    std::mt19937_64 random(5);
    for (int turn = 0; turn < 200; ++turn) {
        auto seg = std::make_shared<Segment<C>>();
        seg->occupied = Array<uint64_t>(16);
        for (int i = 0; i < 16; ++i)
            seg->occupied.mutable_data()[i] = turn % 3 == 0   ? random() | random() | random() | random()
                                              : turn % 3 == 1 ? ~uint64_t(0) << random() % 64
                                                              : -(random() % 2);
        State<C> state;
        state.parts.push_back({seg, nullptr, 0});
        uint64_t run = 0, longest = 0;
        for (size_t i = 0; i < 16 * 64; ++i) {
            run = test_bit(seg->occupied.data(), i) ? run + 1 : 0;
            longest = std::max(longest, run);
        }
        CHECK(state.longest_probe_run() == longest);
    }
}

void test_saving_refuses_what_loading_would() {
    const auto folder = std::filesystem::temp_directory_path();
    const std::string path = folder / ("mchindex-engine-test-" + std::to_string(random64()));
    State<C> state;
    for (int64_t i = 0; i < 1025; ++i) add(state, {{i, uint64_t(i), 1}});
    CHECK(state.parts.size() == 1025);
    CHECK(refuses([&] { save_snapshot(path, kBits, test_hash().seed(), state); }));
    CHECK(!std::filesystem::exists(path));
    remove_images({7}, state);
    CHECK(state.parts.size() == 1024);
    save_snapshot(path, kBits, test_hash().seed(), state);
    const SnapshotFile file(path, false);
    CHECK(file.seed() == test_hash().seed());
    CHECK(content(*file.read<C>()) == content(state));
    std::filesystem::remove(path);

    auto seg = std::make_shared<Segment<C>>(*state.parts[0].seg);
    seg->n_entries = uint32_t(INT32_MAX) + 1;
    state.parts = {{seg, nullptr, 0}};
    CHECK(refuses([&] { save_snapshot(path, kBits, test_hash().seed(), state); }));
}

}  // namespace
}  // namespace mch

int main() {
    mch::test_bitmap();
    mch::test_a_removal_takes_little_memory();
    mch::test_few_allowed_images_take_little_work();
    mch::test_merges_stay_below_the_limit();
    mch::test_merging_all_under_a_limit_keeps_the_content();
    mch::test_a_merge_keeps_what_others_changed_meanwhile();
    mch::test_experience_is_kept_apart_by_kind();
    mch::test_the_fastest_way_is_found_even_if_it_was_slow_at_first();
    mch::test_longest_probe_run();
    mch::test_saving_refuses_what_loading_would();
}
