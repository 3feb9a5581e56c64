// Memory that a thread keeps from op to op: otherwise a panel of 4096 inputs would be mapped and unmapped at every
// call.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

struct AlignedDelete {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t(64)); }
};

// At least `bytes`, aligned to a cache line, valid until this thread's next call for this Use.
template <typename Use>
inline void* scratch(size_t bytes) {
    static thread_local std::unique_ptr<std::byte[], AlignedDelete> memory;
    static thread_local size_t size = 0;
    if (bytes > size) {
        memory.reset();
        memory.reset(new (std::align_val_t(64)) std::byte[bytes]);
        size = bytes;
    }
    return memory.get();
}

struct OnePanel;
inline void* scratch(size_t bytes) { return scratch<OnePanel>(bytes); }
