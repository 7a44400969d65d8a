// Pickle without Python and without trust: plain containers, numbers, texts, None and booleans, the
// memo, and nothing else. Any opcode that could name or call code is refused with its place.
// Nothing is recursive, what the file claims is never allocated before it is read, and everything
// taken is counted against a limit.
//
// Snapshots have millions of small dicts of the same few shapes, each with a list of frames of its
// own. A dict is given to a `dict_reader` when it becomes an element of a list. What the reader
// takes is forgotten here, and what it makes a number of shrinks to that, so that what stays in
// memory is what may still be referred to: 4 bytes for each container that the pickler numbered.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "millpond/base/result.hpp"
#include "trace/import/pickle_memo.hpp"
#include "trace/import/pickle_value.hpp"
#include "trace/input.hpp"
#include "trace/tables.hpp"

namespace millpond::trace {

class pickle_reader;

// Takes dicts of known shapes. `items` are key, value, key, value; they are gone after the call.
class dict_reader {
 public:
  virtual ~dict_reader() = default;
  enum class answer : std::uint8_t {
    keep,
    reduced,  // to `number`, whose top byte is from 0 to 6 and whose others are small
    taken,    // it is not an element of the list any more, nor anywhere
  };
  // `list` tells apart the lists that the dicts become elements of.
  virtual result<answer> take(std::span<const pickle_value> items, std::uint64_t list,
                              pickle_reader& from, std::uint64_t& number) = 0;
};

class pickle_reader {
 public:
  // `limit_bytes` bounds what is in memory at once.
  pickle_reader(input_buffer from, std::uint64_t limit_bytes, dict_reader& dicts);

  // Reads to the STOP opcode and gives the root. Only once.
  result<pickle_value> read();

  [[nodiscard]] std::string_view text(const pickle_value& of) const noexcept {
    return texts_.at(static_cast<std::uint32_t>(of.number));
  }
  // Of a list, tuple, dict or set; empty for anything else.
  [[nodiscard]] std::span<const pickle_value> elements(const pickle_value& of) const noexcept;
  // The value of a text key, the last one if there are several; nullptr if there is none.
  [[nodiscard]] const pickle_value* find(const pickle_value& dict,
                                         std::string_view key) const noexcept;
  // How many dicts that were added to a list were taken.
  [[nodiscard]] std::uint64_t taken(const pickle_value& list) const noexcept;
  // For the dict_reader: makes a container that is a value of its dict a number too, wherever it is
  // referred to.
  void reduce_to(const pickle_value& container, std::uint64_t number);
  // What a value was reduced to: of sort `reduced`, or a container that has become one since.
  [[nodiscard]] std::optional<std::uint64_t> reduction(const pickle_value& of) const noexcept;
  // Every text of the pickle, once each.
  [[nodiscard]] string_table& texts() noexcept { return texts_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return from_.offset(); }
  [[nodiscard]] error bad(std::string_view expected, std::string_view found) const {
    return bad_byte(from_.name(), opcode_offset_, expected, found);
  }
  // Counts what the dict_reader keeps; bad_input over the limit.
  result<void> take_memory(std::uint64_t bytes);

 private:
  using sort = pickle_value::sort;
  // A container: its elements, or what it was reduced to.
  enum class state : std::uint8_t { whole, reduced, gone };
  struct object {
    std::uint32_t place = 0;  // in containers_, 0 while empty
    state now = state::whole;
    bool shared = false;       // the memo or DUP gave it out: others may refer to it
    std::uint64_t number = 0;  // of what it was reduced to
    std::uint64_t taken = 0;   // dicts that were its elements
    std::uint64_t memo = 0;    // its index there and 1, or 0
  };

  // One opcode; false at STOP. Each part hands what is not its own to the next.
  result<bool> step();
  result<void> scalar(std::uint8_t op);
  result<void> memo(std::uint8_t op);
  result<void> gather(std::uint8_t op);
  result<void> stack_or_frame(std::uint8_t op);
  [[nodiscard]] error refused(std::uint8_t op) const;
  template <class Use>
  result<void> numbered(unsigned bytes, Use&& use);
  result<void> need(std::uint64_t bytes);
  result<std::uint64_t> number(unsigned bytes);
  result<void> push(pickle_value value);
  result<pickle_value> pop();
  result<void> push_text(unsigned length_bytes, sort as);
  result<void> push_long(unsigned length_bytes);
  result<void> push_container(sort as);
  result<void> close_mark(std::size_t& first);
  result<void> extend(std::size_t first, sort expected);
  result<void> collect(std::size_t first, sort as);
  result<void> reduce(pickle_value& value, std::uint64_t list);
  [[nodiscard]] static bool is_container(const pickle_value& of) noexcept;
  void forget(std::uint64_t which, state as);
  result<void> remember(std::uint64_t index);
  result<void> recall(std::uint64_t index);
  std::vector<pickle_value>& container(object& of);

  input_buffer from_;
  std::uint64_t limit_;
  std::uint64_t used_ = 0;
  dict_reader& dicts_;
  string_table texts_;
  std::vector<pickle_value> stack_;
  std::vector<std::size_t> marks_;
  pickle_memo memo_;
  std::vector<object> objects_;
  std::vector<std::uint64_t> free_objects_;
  std::vector<std::vector<pickle_value>> containers_;
  std::vector<std::uint32_t> free_containers_;
  std::uint64_t opcode_offset_ = 0;
};

}  // namespace millpond::trace
