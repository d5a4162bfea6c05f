#include "table.h"

#include "snapshot.h"

namespace mch {

// Defined in typed_table.h, which takes long to compile.
template <class C>
std::shared_ptr<AnyTable> make_typed_table(int bits, uint64_t seed, std::shared_ptr<const State<C>> state);

std::shared_ptr<AnyTable> make_table(int bits) {
    return with_code_type(bits, [&](auto type) {
        using C = typename decltype(type)::type;
        return make_typed_table<C>(bits, random64(), std::make_shared<State<C>>());
    });
}

std::shared_ptr<AnyTable> load_table(const std::string& path, bool mmap, bool verify) {
    SnapshotFile file(path, mmap);
    return with_code_type(file.bits(), [&](auto type) {
        using C = typename decltype(type)::type;
        return make_typed_table<C>(file.bits(), file.seed(), file.template read<C>(verify));
    });
}

}  // namespace mch
