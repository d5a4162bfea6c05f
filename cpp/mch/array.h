// Arrays of a segment: immutable once built, in memory of their own or in a mapped file. They are
// readable a little past their end, so vector loads and packed integers need no special last element.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "platform.h"

namespace mch {

constexpr size_t kPadding = 64;

// Zeroed memory, followed by kPadding readable bytes. Large blocks are aligned to huge pages and ask
// for them: probing is random access, and page walks would dominate it.
inline std::shared_ptr<uint8_t> allocate(size_t bytes) {
    constexpr size_t huge = size_t(2) << 20, large = size_t(1) << 20;
    if (bytes < large) {
        auto* p = new (std::align_val_t(64)) uint8_t[bytes + kPadding]();
        return {p, [](uint8_t* q) { ::operator delete[](q, std::align_val_t(64)); }};
    }
    const auto page = size_t(sysconf(_SC_PAGESIZE));
    size_t length = (bytes + kPadding + page - 1) & ~(page - 1);
    void* raw = mmap(nullptr, length + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    auto start = reinterpret_cast<uintptr_t>(raw), aligned = (start + huge - 1) & ~(huge - 1);
    if (aligned > start) munmap(raw, aligned - start);
    if (start + huge > aligned) munmap(reinterpret_cast<void*>(aligned + length), start + huge - aligned);
    auto* p = reinterpret_cast<uint8_t*>(aligned);
    advise_huge_pages(p, length);
    return {p, [length](uint8_t* q) { munmap(q, length); }};
}

template <class T>
class Array {
  public:
    Array() = default;
    explicit Array(size_t n) : size_(n) {
        auto bytes = allocate(n * sizeof(T));
        data_ = reinterpret_cast<T*>(bytes.get());
        owner_ = std::move(bytes);
    }
    // Uses existing bytes, with elements of `width` bytes. Returns false if that is not an array of T.
    bool attach(std::shared_ptr<uint8_t> bytes, size_t n_bytes, uint32_t width) {
        if (width != sizeof(T) || n_bytes % sizeof(T)) return false;
        data_ = reinterpret_cast<T*>(bytes.get());
        size_ = n_bytes / sizeof(T);
        owner_ = std::move(bytes);
        return true;
    }

    size_t size() const { return size_; }
    size_t bytes() const { return size_ * sizeof(T); }
    uint32_t width() const { return sizeof(T); }
    const uint8_t* raw() const { return reinterpret_cast<const uint8_t*>(data_); }
    bool empty() const { return size_ == 0; }
    const T* data() const { return data_; }
    const T& operator[](size_t i) const { return data_[i]; }
    T* mutable_data() { return data_; }  // only while building

  private:
    T* data_ = nullptr;
    size_t size_ = 0;
    std::shared_ptr<void> owner_;
};

static_assert(std::endian::native == std::endian::little, "packed integers are little-endian");

// Unsigned integers of 1 to 8 bytes each, as few as the largest needs: 3 bytes go up to 16 million.
class PackedInts {
  public:
    PackedInts() = default;
    PackedInts(size_t n, uint64_t largest) : width_(width_for(largest)), bytes_(n * width_) { set_mask(); }
    bool attach(std::shared_ptr<uint8_t> bytes, size_t n_bytes, uint32_t width) {
        if (width < 1 || width > 8 || n_bytes % width) return false;
        width_ = width;
        set_mask();
        return bytes_.attach(std::move(bytes), n_bytes, 1);
    }

    uint64_t operator[](size_t i) const {
        uint64_t v;
        std::memcpy(&v, bytes_.data() + i * width_, 8);
        return v & mask_;
    }
    void set(size_t i, uint64_t value) {  // only while building
        uint8_t* to = bytes_.mutable_data() + i * width_;
        switch (width_) {  // a copy of known length takes an instruction or two
            case 1:
                return void(std::memcpy(to, &value, 1));
            case 2:
                return void(std::memcpy(to, &value, 2));
            case 3:
                return void(std::memcpy(to, &value, 3));
            case 4:
                return void(std::memcpy(to, &value, 4));
            default:
                std::memcpy(to, &value, width_);
        }
    }
    size_t size() const { return bytes_.size() / width_; }
    void prefetch(size_t i) const { __builtin_prefetch(bytes_.data() + i * width_); }
    size_t bytes() const { return bytes_.bytes(); }
    uint32_t width() const { return width_; }
    const uint8_t* raw() const { return bytes_.raw(); }

  private:
    static uint32_t width_for(uint64_t largest) {
        uint32_t width = 1;
        while (width < 8 && largest >> (8 * width)) ++width;
        return width;
    }
    void set_mask() { mask_ = width_ == 8 ? ~uint64_t(0) : (uint64_t(1) << (8 * width_)) - 1; }

    uint32_t width_ = 1;
    uint64_t mask_ = 0xff;
    Array<uint8_t> bytes_;
};

inline size_t bitmap_words(size_t n) { return (n + 63) / 64; }
inline bool test_bit(const uint64_t* bits, size_t i) { return bits[i >> 6] >> (i & 63) & 1; }
inline void set_bit(uint64_t* bits, size_t i) { bits[i >> 6] |= uint64_t(1) << (i & 63); }

}  // namespace mch
