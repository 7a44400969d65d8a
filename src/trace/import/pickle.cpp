#include "trace/import/pickle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millpond::trace {
namespace {

// Python's pickletools.py names and describes each opcode. Protocol 0's text opcodes are not among
// those read: no snapshot of PyTorch was ever written with them.
namespace opcode {
constexpr std::uint8_t mark = '(', stop = '.', pop = '0', pop_mark = '1', dup = '2';
constexpr std::uint8_t binfloat = 'G', binint = 'J', binint1 = 'K', binint2 = 'M', none = 'N';
constexpr std::uint8_t binstring = 'T', short_binstring = 'U', binunicode = 'X';
constexpr std::uint8_t binbytes = 'B', short_binbytes = 'C';
constexpr std::uint8_t empty_list = ']', append = 'a', appends = 'e', list = 'l';
constexpr std::uint8_t empty_dict = '}', setitem = 's', setitems = 'u', dict = 'd';
constexpr std::uint8_t empty_tuple = ')', tuple = 't', tuple1 = 0x85, tuple2 = 0x86, tuple3 = 0x87;
constexpr std::uint8_t binget = 'h', long_binget = 'j', binput = 'q', long_binput = 'r',
                       memoize = 0x94;
constexpr std::uint8_t proto = 0x80, newtrue = 0x88, newfalse = 0x89, long1 = 0x8a, long4 = 0x8b;
constexpr std::uint8_t short_binunicode = 0x8c, binunicode8 = 0x8d, binbytes8 = 0x8e;
constexpr std::uint8_t empty_set = 0x8f, additems = 0x90, frozenset = 0x91, frame = 0x95;
}  // namespace opcode

constexpr std::uint64_t newest_protocol = 5;
// Snapshots take less memory than they are long; one opcode of one byte can ask for 50 bytes and
// more. So a small file never takes much, whatever it says.
constexpr std::uint64_t memory_base = std::uint64_t{64} << 20;
constexpr std::uint64_t memory_per_byte = 16;
constexpr std::size_t deepest = 256;  // open marks; a snapshot has some 8

// Opcodes that name, make or call something; nullptr for every other one.
const char* code_opcode(std::uint8_t of) {
  switch (of) {
    case 'c': return "GLOBAL";
    case 0x93: return "STACK_GLOBAL";
    case 'R': return "REDUCE";
    case 'b': return "BUILD";
    case 'i': return "INST";
    case 'o': return "OBJ";
    case 0x81: return "NEWOBJ";
    case 0x92: return "NEWOBJ_EX";
    case 0x82: return "EXT1";
    case 0x83: return "EXT2";
    case 0x84: return "EXT4";
    case 'P': return "PERSID";
    case 'Q': return "BINPERSID";
    default: return nullptr;
  }
}

}  // namespace

pickle_reader::pickle_reader(input_buffer from, std::uint64_t limit_bytes, dict_reader& dicts)
    : from_(std::move(from)), limit_(limit_bytes), dicts_(dicts) {
  containers_.emplace_back();  // place 0 means none
}

result<pickle_value> pickle_reader::read() {
  for (;;) {
    opcode_offset_ = from_.offset();
    auto more = step();
    if (!more) return more.error();
    if (!*more) break;
  }
  if (stack_.size() != 1 || !marks_.empty()) {
    return bad("one value at the end",
               fmt::format("{} values, {} open marks", stack_.size(), marks_.size()));
  }
  return stack_.back();
}

std::span<const pickle_value> pickle_reader::elements(const pickle_value& of) const noexcept {
  if (!is_container(of)) return {};
  return containers_[objects_[of.number].place];
}

const pickle_value* pickle_reader::find(const pickle_value& dict,
                                        std::string_view key) const noexcept {
  if (dict.of != sort::dict) return nullptr;
  const auto items = elements(dict);
  for (std::size_t i = items.size() / 2; i-- > 0;) {
    if (items[2 * i].of == sort::text && text(items[2 * i]) == key) return &items[2 * i + 1];
  }
  return nullptr;
}

result<void> pickle_reader::take_memory(std::uint64_t bytes) {
  used_ += bytes;
  const std::uint64_t limit = std::min(limit_, memory_base + memory_per_byte * from_.offset());
  if (used_ <= limit) return {};
  return bad(fmt::format("a snapshot that takes at most {} bytes of memory up to here", limit),
             "a larger one");
}

result<void> pickle_reader::need(std::uint64_t bytes) {
  if (from_.view().size() >= bytes) return {};
  auto there = from_.fill(bytes);
  if (!there) return there.error();
  if (*there >= bytes) return {};
  return bad_byte(from_.name(), from_.offset() + *there, "more of the pickle",
                  "the end of the file");
}

// An unsigned little-endian number in front of the window, consumed.
result<std::uint64_t> pickle_reader::number(unsigned bytes) {
  if (auto there = need(bytes); !there) return there.error();
  std::uint64_t value = 0;
  for (unsigned i = 0; i < bytes; ++i) {
    value |= std::uint64_t{static_cast<std::uint8_t>(from_.view()[i])} << (8 * i);
  }
  from_.consume(bytes);
  return value;
}

result<void> pickle_reader::push(pickle_value value) {
  if (stack_.size() == stack_.capacity()) {
    if (auto done = take_memory((stack_.size() + 64) * sizeof(pickle_value)); !done) return done;
    stack_.reserve(stack_.size() * 2 + 64);
  }
  stack_.push_back(value);
  return {};
}

result<pickle_value> pickle_reader::pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
    return bad("a value on the stack", "none");
  const pickle_value value = stack_.back();
  stack_.pop_back();
  return value;
}

result<bool> pickle_reader::step() {
  if (auto there = need(1); !there) return there.error();
  const auto op = static_cast<std::uint8_t>(from_.view()[0]);
  from_.consume(1);
  if (op == opcode::stop) return false;
  const result<void> done = scalar(op);
  if (!done) return done.error();
  return true;
}

error pickle_reader::refused(std::uint8_t op) const {
  if (const char* name = code_opcode(op)) {
    return bad("plain containers, numbers and texts",
               fmt::format("opcode {}: a pickle can carry code, and none is run here", name));
  }
  return bad("an opcode of plain data in pickle protocol 2 to 5", fmt::format("byte {:#04x}", op));
}

template <class Use>
result<void> pickle_reader::numbered(unsigned bytes, Use&& use) {
  const auto value = number(bytes);
  if (!value) return value.error();
  return use(*value);
}

result<void> pickle_reader::scalar(std::uint8_t op) {
  const auto integer = [&](std::uint64_t n) { return push({sort::integer, n}); };
  switch (op) {
    case opcode::none: return push({});
    case opcode::newtrue: return push({sort::boolean, 1});
    case opcode::newfalse: return push({sort::boolean, 0});
    case opcode::binint1: return numbered(1, integer);
    case opcode::binint2: return numbered(2, integer);
    case opcode::binint:
      return numbered(4, [&](std::uint64_t n) {
        const std::int64_t wide = static_cast<std::int32_t>(static_cast<std::uint32_t>(n));
        return integer(static_cast<std::uint64_t>(wide));
      });
    case opcode::long1: return push_long(1);
    case opcode::long4: return push_long(4);
    case opcode::binfloat:  // big-endian, alone of all
      return numbered(8, [&](std::uint64_t n) { return push({sort::real, __builtin_bswap64(n)}); });
    case opcode::short_binunicode:
    case opcode::short_binstring: return push_text(1, sort::text);
    case opcode::binunicode:
    case opcode::binstring: return push_text(4, sort::text);
    case opcode::binunicode8: return push_text(8, sort::text);
    case opcode::short_binbytes: return push_text(1, sort::bytes);
    case opcode::binbytes: return push_text(4, sort::bytes);
    case opcode::binbytes8: return push_text(8, sort::bytes);
    default: return memo(op);
  }
}

result<void> pickle_reader::memo(std::uint8_t op) {
  const auto keep = [&](std::uint64_t n) { return remember(n); };
  const auto give = [&](std::uint64_t n) { return recall(n); };
  switch (op) {
    case opcode::memoize: return remember(memo_.size());
    case opcode::binput: return numbered(1, keep);
    case opcode::long_binput: return numbered(4, keep);
    case opcode::binget: return numbered(1, give);
    case opcode::long_binget: return numbered(4, give);
    default: return gather(op);
  }
}

// Containers: made empty, made of what is on the stack, or given more of it.
result<void> pickle_reader::gather(std::uint8_t op) {
  std::size_t first = 0;
  const auto marked = [&](result<void> (pickle_reader::*use)(std::size_t, sort), sort as) {
    const result<void> closed = close_mark(first);
    return closed ? (this->*use)(first, as) : closed;
  };
  const auto topmost = [&](std::size_t count, std::size_t below) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    first = stack_.size() - count;
    return stack_.size() >= floor + count + below;
  };
  switch (op) {
    case opcode::empty_list: return push_container(sort::list);
    case opcode::empty_tuple: return push_container(sort::tuple);
    case opcode::empty_dict: return push_container(sort::dict);
    case opcode::empty_set: return push_container(sort::set);
    case opcode::append:
    case opcode::setitem:
      if (!topmost(op == opcode::append ? 1 : 2, 1))
        return bad("a container and its new elements", "too few values");
      return extend(first, op == opcode::append ? sort::list : sort::dict);
    case opcode::appends: return marked(&pickle_reader::extend, sort::list);
    case opcode::setitems: return marked(&pickle_reader::extend, sort::dict);
    case opcode::additems: return marked(&pickle_reader::extend, sort::set);
    case opcode::list: return marked(&pickle_reader::collect, sort::list);
    case opcode::tuple: return marked(&pickle_reader::collect, sort::tuple);
    case opcode::dict: return marked(&pickle_reader::collect, sort::dict);
    case opcode::frozenset: return marked(&pickle_reader::collect, sort::set);
    case opcode::tuple1:
    case opcode::tuple2:
    case opcode::tuple3:
      if (!topmost(op - opcode::tuple1 + std::size_t{1}, 0))
        return bad("the elements of a tuple", "too few values");
      return collect(first, sort::tuple);
    default: return stack_or_frame(op);
  }
}

result<void> pickle_reader::stack_or_frame(std::uint8_t op) {
  switch (op) {
    case opcode::proto:
      return numbered(1, [&](std::uint64_t version) -> result<void> {
        if (version >= 2 && version <= newest_protocol) return {};
        return bad("pickle protocol 2 to 5", fmt::format("protocol {}", version));
      });
    case opcode::frame: return numbered(8, [](std::uint64_t) -> result<void> { return {}; });
    case opcode::mark:
      if (marks_.size() >= deepest)
        return bad(fmt::format("at most {} open marks", deepest), "more");
      marks_.push_back(stack_.size());
      return {};
    case opcode::pop:
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();  // as Python does
      } else if (const auto gone = pop(); !gone) {
        return gone.error();
      }
      return {};
    case opcode::pop_mark: {
      std::size_t first = 0;
      result<void> closed = close_mark(first);
      if (closed) stack_.resize(first);
      return closed;
    }
    case opcode::dup: {
      const auto value = pop();
      if (!value) return value.error();
      if (is_container(*value)) objects_[value->number].shared = true;
      result<void> done = push(*value);
      return done ? push(*value) : done;
    }
    default: return refused(op);
  }
}

result<void> pickle_reader::push_text(unsigned length_bytes, sort as) {
  auto length = number(length_bytes);
  if (!length) return length.error();
  // Counted before it is read: a false length ends here or at the end of the file.
  if (*length > limit_) return take_memory(*length);
  if (auto there = need(*length); !there) return there;
  const std::uint64_t before = texts_.memory_bytes();
  if (texts_.size() == UINT32_MAX) return bad("fewer than 2^32 texts", "more");
  const std::uint32_t id = texts_.intern(from_.view().substr(0, *length));
  from_.consume(*length);
  if (auto done = take_memory(texts_.memory_bytes() - before); !done) return done;
  return push({as, id});
}

result<void> pickle_reader::push_long(unsigned length_bytes) {
  auto length = number(length_bytes);
  if (!length) return length.error();
  if (*length > limit_) return take_memory(*length);
  if (auto there = need(*length); !there) return there;
  const std::string_view bytes = from_.view().substr(0, *length);
  std::uint64_t value = 0;
  const bool negative = !bytes.empty() && (static_cast<std::uint8_t>(bytes.back()) & 0x80) != 0;
  const std::uint8_t fill = negative ? 0xff : 0;
  bool fits = true;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(bytes[i]);
    if (i < 8) {
      value |= std::uint64_t{byte} << (8 * i);
    } else if (byte != fill) {
      fits = false;
    }
  }
  for (std::size_t i = bytes.size(); i < 8; ++i) value |= std::uint64_t{fill} << (8 * i);
  const bool top = (value >> 63) != 0;
  if (negative && !top) fits = false;
  from_.consume(*length);
  if (!fits) return push({sort::too_big, 0});
  return push({!negative && top ? sort::natural : sort::integer, value});
}

result<void> pickle_reader::push_container(sort as) {
  if (!free_objects_.empty()) {
    const std::uint64_t which = free_objects_.back();
    free_objects_.pop_back();
    objects_[which] = {};
    return push({as, which});
  }
  if (auto done = take_memory(sizeof(object)); !done) return done;
  objects_.emplace_back();
  return push({as, objects_.size() - 1});
}

bool pickle_reader::is_container(const pickle_value& of) noexcept {
  return of.of == sort::list || of.of == sort::tuple || of.of == sort::dict || of.of == sort::set;
}

std::vector<pickle_value>& pickle_reader::container(object& of) {
  if (of.place == 0) {
    if (free_containers_.empty()) {
      of.place = static_cast<std::uint32_t>(containers_.size());
      containers_.emplace_back();
    } else {
      of.place = free_containers_.back();
      free_containers_.pop_back();
    }
  }
  return containers_[of.place];
}

result<void> pickle_reader::close_mark(std::size_t& first) {
  if (marks_.empty()) return bad("an open mark", "none");
  first = marks_.back();
  marks_.pop_back();
  return {};
}

// Moves the values from `first` on into the container below them.
result<void> pickle_reader::extend(std::size_t first, sort expected) {
  const std::size_t floor = marks_.empty() ? 0 : marks_.back();
  if (first <= floor) return bad("a container below its elements", "none");
  const pickle_value target = stack_[first - 1];
  if (target.of != expected) return bad("a container of the opcode's sort", "something else");
  object& into = objects_[target.number];
  if (into.now != state::whole)
    return bad("a container complete before it is within a list", "a change after that");
  const std::size_t count = stack_.size() - first;
  if (expected == sort::dict && count % 2 != 0) return bad("a value for each key", "a key alone");
  if (count > 0) {
    if (containers_.size() >= UINT32_MAX) return bad("fewer than 2^32 containers", "more");
    if (expected == sort::list) {
      for (std::size_t i = first; i < stack_.size(); ++i) {
        if (stack_[i].of != sort::dict) continue;
        if (auto done = reduce(stack_[i], target.number); !done) return done;
      }
      const auto kept = std::remove_if(
          stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end(),
          [](const pickle_value& each) { return each.of == sort::gone && each.number == 1; });
      into.taken += static_cast<std::uint64_t>(stack_.end() - kept);
      stack_.erase(kept, stack_.end());
    }
  }
  if (stack_.size() > first) {
    auto& elements = container(into);
    const std::size_t before = elements.capacity();
    elements.insert(elements.end(), stack_.begin() + static_cast<std::ptrdiff_t>(first),
                    stack_.end());
    if (elements.capacity() > before) {
      const std::uint64_t grown = (elements.capacity() - before) * sizeof(pickle_value);
      if (auto done = take_memory(grown + (before == 0 ? sizeof(std::vector<pickle_value>) : 0));
          !done)
        return done;
    }
  }
  stack_.resize(first);
  return {};
}

// A new container of the values from `first` on.
result<void> pickle_reader::collect(std::size_t first, sort as) {
  const std::vector<pickle_value> values(stack_.begin() + static_cast<std::ptrdiff_t>(first),
                                         stack_.end());
  stack_.resize(first);
  if (auto done = push_container(as); !done) return done;
  for (const pickle_value& each : values) {
    if (auto done = push(each); !done) return done;
  }
  return extend(first + 1, as);
}

// A dict that becomes an element of a list: to the dict_reader, if it wants it. One that it takes
// leaves a value `gone` with number 1 behind, which the list does not keep.
result<void> pickle_reader::reduce(pickle_value& value, std::uint64_t list) {
  const std::uint64_t which = value.number;
  if (objects_[which].now == state::whole) {
    const std::span<const pickle_value> items = containers_[objects_[which].place];
    std::uint64_t made = 0;
    const auto answer = dicts_.take(items, list, *this, made);
    if (!answer) return answer.error();
    if (*answer == dict_reader::answer::keep) return {};
    if (*answer == dict_reader::answer::taken) {
      forget(which, state::gone);
      value = {sort::gone, 1};
      return {};
    }
    reduce_to(value, made);
    value = {sort::reduced, made};
    return {};
  }
  value = objects_[which].now == state::reduced
              ? pickle_value{sort::reduced, objects_[which].number}
              : pickle_value{sort::gone, 0};
  return {};
}

void pickle_reader::reduce_to(const pickle_value& container, std::uint64_t number) {
  object& of = objects_[container.number];
  pickle_value noted;
  if (of.memo != 0 && memo_.find(of.memo - 1, noted) && noted.of == container.of &&
      noted.number == container.number) {
    memo_.set(of.memo - 1, {sort::reduced, number});
    of.memo = 0;
  }
  of.number = number;
  forget(container.number, state::reduced);
}

std::optional<std::uint64_t> pickle_reader::reduction(const pickle_value& of) const noexcept {
  if (of.of == sort::reduced) return of.number;
  if (is_container(of) && objects_[of.number].now == state::reduced)
    return objects_[of.number].number;
  return std::nullopt;
}

std::uint64_t pickle_reader::taken(const pickle_value& list) const noexcept {
  return list.of == sort::list ? objects_[list.number].taken : 0;
}

// Lets go of a container's elements, and of itself where nothing else can refer to it. A list that
// dicts were taken from stays, since its number tells whose they were.
void pickle_reader::forget(std::uint64_t which, state as) {
  object& of = objects_[which];
  if (of.place != 0) {
    containers_[of.place].clear();  // its memory serves the next container
    free_containers_.push_back(of.place);
    of.place = 0;
  }
  of.now = as;
  if (of.shared || of.taken != 0) return;
  pickle_value noted;
  if (of.memo != 0 && memo_.find(of.memo - 1, noted) && is_container(noted) &&
      noted.number == which)
    memo_.drop(of.memo - 1);
  free_objects_.push_back(which);
}

result<void> pickle_reader::remember(std::uint64_t index) {
  const std::size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) return bad("a value to memoize", "none");
  // Picklers count up from 0; far beyond that an index only asks for memory.
  if (index > memo_.size() + 256) {
    return bad(fmt::format("a memo index near {}", memo_.size()), fmt::format("{}", index));
  }
  const std::uint64_t before = memo_.memory_bytes();
  const pickle_value value = stack_.back();
  memo_.set(index, value);
  if (is_container(value)) {
    object& of = objects_[value.number];
    of.shared = of.shared || of.memo != 0;  // two indices for one
    of.memo = index + 1;
  }
  const std::uint64_t after = memo_.memory_bytes();
  return after > before ? take_memory(after - before) : result<void>{};
}

result<void> pickle_reader::recall(std::uint64_t index) {
  pickle_value value;
  if (!memo_.find(index, value)) return bad("a memo index that was set", fmt::format("{}", index));
  if (is_container(value)) objects_[value.number].shared = true;
  return push(value);
}

}  // namespace millpond::trace
