#include "typed_table.h"

namespace mch {

template std::shared_ptr<AnyTable> make_typed_table(int, uint64_t, std::shared_ptr<const State<Code<uint64_t, 3>>>);

}  // namespace mch
