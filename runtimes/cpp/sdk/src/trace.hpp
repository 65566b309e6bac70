// The stack of the last exception.
#pragma once

#include <string>
#include <typeinfo>

namespace udo::detail {

// The functions on the stack where this thread's last exception was thrown, one per line.
std::string trace();
// Forgets that exception.
void forget_trace();
std::string demangled(const char* name);

}  // namespace udo::detail
