// Text for the engine: Protobuf and Arrow demand UTF-8, and a message's header is bounded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace udo::detail {

// The most bytes of an exception's message, of its trace and of a line of the log: together far less than a header's 1 MiB.
constexpr std::size_t MOST_MESSAGE = 16'000, MOST_TRACE = 32'000, MOST_LINE = 64'000;

// Whether it is UTF-8.
bool is_text(std::string_view bytes);
// The text itself if it is UTF-8 and has at most this many bytes. Otherwise its beginning and its end, with a note of how much was cut
// between them, and a replacement character for what is not UTF-8.
std::string told(std::string_view text, std::size_t most_bytes);

}  // namespace udo::detail
