#include "record/frame_rules.hpp"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace millpond::record {

std::uint64_t count_unloaded() noexcept {
  std::uint64_t made = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t size, void* to) {
        if (size >= offsetof(dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs)
          *static_cast<std::uint64_t*>(to) = info->dlpi_subs;
        return 1;  // every module tells the same count
      },
      &made);
  return made;
}

#if !defined(__x86_64__)
frame_rule find_frame_rule(std::uintptr_t) noexcept {
  return {};
}
#else
namespace {

// Numbers of registers in x86-64's frame information, and DWARF's words for programs of rules
// (DWARF 5, sections 6.4 and 7.24; the GNU ones are in the LSB's "Exception Frames").
constexpr std::uint64_t rbp = 6, rsp = 7, return_column = 16;
constexpr std::uint8_t op_deref = 0x06, op_breg6 = 0x76;
enum : std::uint8_t {
  advance_loc = 0x40,
  offset_of = 0x80,
  restore = 0xc0,
  high_bits = 0xc0,
  nop = 0x00,
  set_loc = 0x01,
  advance_loc1 = 0x02,
  advance_loc2 = 0x03,
  advance_loc4 = 0x04,
  offset_extended = 0x05,
  restore_extended = 0x06,
  undefined = 0x07,
  same_value = 0x08,
  in_register = 0x09,
  remember_state = 0x0a,
  restore_state = 0x0b,
  def_cfa = 0x0c,
  def_cfa_register = 0x0d,
  def_cfa_offset = 0x0e,
  def_cfa_expression = 0x0f,
  expression = 0x10,
  offset_extended_sf = 0x11,
  def_cfa_sf = 0x12,
  def_cfa_offset_sf = 0x13,
  val_offset = 0x14,
  val_offset_sf = 0x15,
  val_expression = 0x16,
  gnu_args_size = 0x2e,
  gnu_negative_offset_extended = 0x2f,
};
// Encodings of pointers: signed four bytes, relative to where they lie, or to the table's begin.
constexpr std::uint8_t encoding_omitted = 0xff, encoding_pcrel_sdata4 = 0x1b,
                       encoding_udata4 = 0x03, encoding_datarel_sdata4 = 0x3b;

// Bytes in order. Frame information lies in memory that the loader mapped whole; only its shape is
// not taken on trust.
class bytes {
 public:
  bytes(const std::uint8_t* at, const std::uint8_t* end) : at_(at), end_(end) {}
  [[nodiscard]] bool more() const { return ok_ && at_ < end_; }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] const std::uint8_t* at() const { return at_; }
  template <class Number>
  Number take() {
    Number made{};
    if (static_cast<std::size_t>(end_ - at_) < sizeof made) {
      ok_ = false;
      at_ = end_;
      return made;
    }
    std::memcpy(&made, at_, sizeof made);
    at_ += sizeof made;
    return made;
  }
  std::uint64_t uleb() {
    std::uint64_t made = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto each = take<std::uint8_t>();
      made |= static_cast<std::uint64_t>(each & 0x7f) << shift;
      if ((each & 0x80) == 0) return made;
    }
    ok_ = false;
    return 0;
  }
  std::int64_t sleb() {
    std::uint64_t made = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto each = take<std::uint8_t>();
      made |= static_cast<std::uint64_t>(each & 0x7f) << shift;
      if ((each & 0x80) != 0) continue;
      if ((each & 0x40) != 0 && shift + 7 < 64) made |= ~std::uint64_t{0} << (shift + 7);
      return static_cast<std::int64_t>(made);
    }
    ok_ = false;
    return 0;
  }
  bytes block() { return part(uleb()); }
  bytes part(std::uint64_t size) {
    if (size > static_cast<std::uint64_t>(end_ - at_)) {
      ok_ = false;
      size = 0;
    }
    const bytes made(at_, at_ + size);
    at_ += size;
    return made;
  }

 private:
  const std::uint8_t *at_, *end_;
  bool ok_ = true;
};

// Where rbp or the return address was saved.
struct place {
  enum class sort : std::uint8_t { same, at_top, at_frame, undefined, other } how = sort::same;
  std::int64_t offset = 0;
};
struct row {
  std::uint64_t base = rsp;
  std::int64_t offset = 0;
  enum class sort : std::uint8_t { plain, load, other } how = sort::plain;
  place frame_pointer, return_address;
};

struct common_part {  // what a CIE says for the functions that share it
  std::uint64_t code_unit = 1;
  std::int64_t data_unit = 1;
  bool augmented = false, signal = false;
  bytes program{nullptr, nullptr};
};

bool read_common(const std::uint8_t* at, common_part& to) {
  std::uint32_t length = 0;
  std::memcpy(&length, at, sizeof length);
  if (length == 0 || length == 0xffffffff) return false;
  bytes from(at + 4, at + 4 + length);
  if (from.take<std::uint32_t>() != 0) return false;  // not a CIE
  const auto version = from.take<std::uint8_t>();
  if (version != 1 && version != 3) return false;
  const char* words = reinterpret_cast<const char*>(from.at());
  while (from.more() && from.take<char>() != '\0') {
  }
  to.code_unit = from.uleb();
  to.data_unit = from.sleb();
  const std::uint64_t column = version == 1 ? from.take<std::uint8_t>() : from.uleb();
  if (column != return_column) return false;
  if (*words == 'z') {
    to.augmented = true;
    bytes data = from.block();
    for (const char* each = words + 1; *each != '\0'; ++each) {
      if (*each == 'R') {
        if (data.take<std::uint8_t>() != encoding_pcrel_sdata4) return false;
      } else if (*each == 'P') {
        const auto encoding = data.take<std::uint8_t>();
        const unsigned form = encoding & 0x0f;
        data.part(form == 0x03 || form == 0x0b ? 4 : form == 0x02 || form == 0x0a ? 2 : 8);
      } else if (*each == 'L') {
        data.take<std::uint8_t>();
      } else if (*each == 'S') {
        to.signal = true;
      } else {
        return false;
      }
    }
  } else if (*words != '\0') {
    return false;
  }
  to.program = bytes(from.at(), at + 4 + length);
  return from.ok();
}

// Runs a program of call frame instructions over a row.
class frame_program {
 public:
  frame_program(bytes program, const common_part& common, const row& first, row& now)
      : program_(program), common_(common), first_(first), now_(now) {}

  // Until the row for `target`, counted from the function's begin; false where a word is not known.
  bool run(std::uint64_t target) {
    std::uint64_t at = 0;
    while (program_.more()) {
      const auto word = program_.take<std::uint8_t>();
      std::uint64_t step = 0;
      if (!advances(word, step) && !keeps_or_restores(word) && !moves_the_top(word) &&
          !places_a_register(word) && !is_nothing(word)) {
        return false;
      }
      at += step * common_.code_unit;
      if (at > target) break;
    }
    return program_.ok();
  }

 private:
  static std::uint64_t low_bits(std::uint8_t word) { return word & ~high_bits & 0xff; }
  static place* column(row& of, std::uint64_t number) {
    return number == rbp             ? &of.frame_pointer
           : number == return_column ? &of.return_address
                                     : nullptr;
  }
  void set(std::uint64_t number, place to) {
    if (place* which = column(now_, number)) *which = to;
  }
  void put_back(std::uint64_t number) {
    row initial = first_;
    if (place* which = column(now_, number)) *which = *column(initial, number);
  }
  place saved(std::int64_t units) const { return {place::sort::at_top, units * common_.data_unit}; }
  std::int64_t unsigned_units() { return static_cast<std::int64_t>(program_.uleb()); }

  bool advances(std::uint8_t word, std::uint64_t& step) {
    if ((word & high_bits) == advance_loc) {
      step = low_bits(word);
      return true;
    }
    switch (word) {
      case advance_loc1: step = program_.take<std::uint8_t>(); return true;
      case advance_loc2: step = program_.take<std::uint16_t>(); return true;
      case advance_loc4: step = program_.take<std::uint32_t>(); return true;
      default: return false;
    }
  }

  bool is_nothing(std::uint8_t word) {
    if (word == gnu_args_size) program_.uleb();
    return word == nop || word == gnu_args_size;
  }

  // False too where more rows are kept than there is room for, or none is.
  bool keeps_or_restores(std::uint8_t word) {
    if (word == remember_state && depth_ < kept_.size()) {
      kept_[depth_++] = now_;
      return true;
    }
    if (word == restore_state && depth_ > 0) {
      now_ = kept_[--depth_];
      return true;
    }
    return false;
  }

  // The top of the frame, from which the others are counted.
  bool moves_the_top(std::uint8_t word) {
    switch (word) {
      case def_cfa:
        now_.base = program_.uleb();
        now_.offset = unsigned_units();
        break;
      case def_cfa_sf:
        now_.base = program_.uleb();
        now_.offset = program_.sleb() * common_.data_unit;
        break;
      case def_cfa_register: now_.base = program_.uleb(); break;
      case def_cfa_offset: now_.offset = unsigned_units(); break;
      case def_cfa_offset_sf: now_.offset = program_.sleb() * common_.data_unit; break;
      case def_cfa_expression: computes_the_top(); return true;
      default: return false;
    }
    now_.how = row::sort::plain;
    return true;
  }

  // One expression is known: the word at an offset from the frame pointer.
  void computes_the_top() {
    bytes words = program_.block();
    now_.how = row::sort::other;
    if (!words.more() || words.take<std::uint8_t>() != op_breg6) return;
    const std::int64_t offset = words.sleb();
    if (!words.more() || words.take<std::uint8_t>() != op_deref || words.more()) return;
    now_.how = row::sort::load;
    now_.base = rbp;
    now_.offset = offset;
  }

  bool places_a_register(std::uint8_t word) {
    if ((word & high_bits) == offset_of) {
      set(low_bits(word), saved(unsigned_units()));
      return true;
    }
    if ((word & high_bits) == restore) {
      put_back(low_bits(word));
      return true;
    }
    switch (word) {
      case offset_extended:
      case offset_extended_sf:
      case gnu_negative_offset_extended:
      case undefined:
      case same_value:
      case in_register:
      case val_offset:
      case val_offset_sf:
      case expression:
      case val_expression: {
        const std::uint64_t number = program_.uleb();
        set(number, place_of(word));
        return true;
      }
      case restore_extended: put_back(program_.uleb()); return true;
      default: return false;
    }
  }

  // Reads what follows the register's number.
  place place_of(std::uint8_t word) {
    switch (word) {
      case offset_extended: return saved(unsigned_units());
      case offset_extended_sf: return saved(program_.sleb());
      case gnu_negative_offset_extended: return saved(-unsigned_units());
      case undefined: return {place::sort::undefined, 0};
      case same_value: return {place::sort::same, 0};
      case in_register:
      case val_offset:
      case val_offset_sf: program_.uleb(); break;
      case val_expression: program_.block(); break;
      default: return at_expression();
    }
    return {place::sort::other, 0};
  }

  place at_expression() {
    bytes words = program_.block();
    place to{place::sort::other, 0};
    if (words.more() && words.take<std::uint8_t>() == op_breg6) {
      to = {place::sort::at_frame, words.sleb()};
      if (words.more() || !words.ok()) to.how = place::sort::other;
    }
    return to;
  }

  bytes program_;
  const common_part& common_;
  const row& first_;
  row& now_;
  std::array<row, 8> kept_;
  std::size_t depth_ = 0;
};

// The module's search table (.eh_frame_hdr), or null.
const std::uint8_t* table_of(std::uintptr_t code) noexcept {
#if defined(DLFO_STRUCT_HAS_EH_DBASE)
  dl_find_object found{};
  if (_dl_find_object(reinterpret_cast<void*>(code), &found) != 0) return nullptr;
  return static_cast<const std::uint8_t*>(found.dlfo_eh_frame);
#else
  struct search {
    std::uintptr_t code;
    const std::uint8_t* table;
  } to{code, nullptr};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& into = *static_cast<search*>(data);
        bool here = false;
        const std::uint8_t* table = nullptr;
        for (int n = 0; n < info->dlpi_phnum; ++n) {
          const auto& each = info->dlpi_phdr[n];
          const std::uintptr_t begin = info->dlpi_addr + each.p_vaddr;
          if (each.p_type == PT_LOAD && into.code >= begin && into.code - begin < each.p_memsz)
            here = true;
          if (each.p_type == PT_GNU_EH_FRAME) table = reinterpret_cast<const std::uint8_t*>(begin);
        }
        if (here) into.table = table;
        return here ? 1 : 0;
      },
      &to);
  return to.table;
#endif
}

// The FDE of the function that the code may lie in: the last that begins at or before it.
const std::uint8_t* entry_of(const std::uint8_t* table, std::uintptr_t code, bool& known) {
  known = table[0] == 1 && table[2] == encoding_udata4 && table[3] == encoding_datarel_sdata4 &&
          table[1] != encoding_omitted && (table[1] & 0x0f) == 0x0b;
  if (!known) return nullptr;
  std::uint32_t count = 0;
  std::memcpy(&count, table + 8, sizeof count);
  const auto number = [&](std::size_t index) {
    std::int32_t made = 0;
    std::memcpy(&made, table + 12 + 4 * index, sizeof made);
    return reinterpret_cast<std::uintptr_t>(table) +
           static_cast<std::uintptr_t>(static_cast<std::intptr_t>(made));
  };
  std::size_t low = 0, high = count;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (number(2 * middle) <= code) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low == 0 ? nullptr : reinterpret_cast<const std::uint8_t*>(number(2 * (low - 1) + 1));
}

}  // namespace

frame_rule find_frame_rule(std::uintptr_t return_address) noexcept {
  // A return address lies after its call, perhaps already in the next function.
  const std::uintptr_t code = return_address - 1;
  frame_rule made;
  const std::uint8_t* table = table_of(code);
  const frame_rule end{frame_rule::base::end, frame_rule::saved::same, 0, 0};
  if (table == nullptr) return end;
  bool known = false;
  const std::uint8_t* entry = entry_of(table, code, known);
  if (!known) return made;
  if (entry == nullptr) return end;
  std::uint32_t length = 0;
  std::memcpy(&length, entry, sizeof length);
  if (length == 0 || length == 0xffffffff) return made;
  bytes from(entry + 4, entry + 4 + length);
  const std::uint8_t* pointer_at = from.at();
  const std::uint8_t* common_at = pointer_at - from.take<std::uint32_t>();
  common_part common;
  if (!read_common(common_at, common) || common.signal) return made;
  const auto begin_at = reinterpret_cast<std::uintptr_t>(from.at());
  const std::uintptr_t begin =
      begin_at + static_cast<std::uintptr_t>(static_cast<std::intptr_t>(from.take<std::int32_t>()));
  const std::uint64_t size = from.take<std::uint32_t>();
  if (code < begin || code - begin >= size) return end;
  if (common.augmented) from.block();
  if (!from.ok()) return made;
  row first, now;
  if (!frame_program(common.program, common, first, first).run(UINT64_MAX)) return made;
  now = first;
  const bytes program(from.at(), entry + 4 + length);
  if (!frame_program(program, common, first, now).run(code - begin)) return made;
  if (now.return_address.how == place::sort::undefined) return end;
  // The return address lies right under the frame's top, as a call puts it; nothing else is known
  // here.
  if (now.return_address.how != place::sort::at_top || now.return_address.offset != -8) return made;
  const auto fits = [](std::int64_t value) { return value == static_cast<std::int32_t>(value); };
  if (!fits(now.offset) || !fits(now.frame_pointer.offset)) return made;
  switch (now.frame_pointer.how) {
    case place::sort::same: made.frame_pointer = frame_rule::saved::same; break;
    case place::sort::undefined: made.frame_pointer = frame_rule::saved::same; break;
    case place::sort::at_top: made.frame_pointer = frame_rule::saved::at_top; break;
    case place::sort::at_frame: made.frame_pointer = frame_rule::saved::at_frame; break;
    case place::sort::other: return made;
  }
  made.saved_offset = static_cast<std::int32_t>(now.frame_pointer.offset);
  made.offset = static_cast<std::int32_t>(now.offset);
  if (now.how == row::sort::load) {
    made.from = frame_rule::base::frame_load;
  } else if (now.how == row::sort::plain && now.base == rsp) {
    made.from = frame_rule::base::stack;
  } else if (now.how == row::sort::plain && now.base == rbp) {
    made.from = frame_rule::base::frame;
  }
  return made;
}
#endif

}  // namespace millpond::record
