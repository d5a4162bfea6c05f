#include "typed_table.h"

namespace mch {

template std::shared_ptr<AnyTable> make_typed_table(int, uint64_t, std::shared_ptr<const State<Code<uint32_t, 1>>>);

}  // namespace mch
