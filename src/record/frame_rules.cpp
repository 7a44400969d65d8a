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

// Runs the program until the row for `target`, counted from the function's begin; false where a
// word is not known.
bool run(bytes program, const common_part& common, std::uint64_t target, const row& first,
         row& now) {
  std::array<row, 8> kept;
  std::size_t depth = 0;
  std::uint64_t at = 0;
  const auto column = [](row& of, std::uint64_t number) -> place* {
    return number == rbp             ? &of.frame_pointer
           : number == return_column ? &of.return_address
                                     : nullptr;
  };
  const auto set = [&](std::uint64_t number, place to) {
    if (place* which = column(now, number)) *which = to;
  };
  const auto put_back = [&](std::uint64_t number) {
    row initial = first;
    if (place* which = column(now, number)) *which = *column(initial, number);
  };
  const auto saved = [&](std::int64_t units) {
    return place{place::sort::at_top, units * common.data_unit};
  };
  while (program.more()) {
    const auto word = program.take<std::uint8_t>();
    const std::uint64_t low = word & ~high_bits & 0xff;
    std::uint64_t step = 0;
    switch (word & high_bits) {
      case advance_loc: step = low; break;
      case offset_of: set(low, saved(static_cast<std::int64_t>(program.uleb()))); continue;
      case restore: put_back(low); continue;
      default:
        switch (word) {
          case nop: continue;
          case advance_loc1: step = program.take<std::uint8_t>(); break;
          case advance_loc2: step = program.take<std::uint16_t>(); break;
          case advance_loc4: step = program.take<std::uint32_t>(); break;
          case offset_extended: {
            const std::uint64_t number = program.uleb();
            set(number, saved(static_cast<std::int64_t>(program.uleb())));
            continue;
          }
          case offset_extended_sf: {
            const std::uint64_t number = program.uleb();
            set(number, saved(program.sleb()));
            continue;
          }
          case gnu_negative_offset_extended: {
            const std::uint64_t number = program.uleb();
            set(number, saved(-static_cast<std::int64_t>(program.uleb())));
            continue;
          }
          case restore_extended: put_back(program.uleb()); continue;
          case undefined: set(program.uleb(), {place::sort::undefined, 0}); continue;
          case same_value: set(program.uleb(), {place::sort::same, 0}); continue;
          case in_register: {
            const std::uint64_t number = program.uleb();
            program.uleb();
            set(number, {place::sort::other, 0});
            continue;
          }
          case val_offset:
          case val_offset_sf: {
            const std::uint64_t number = program.uleb();
            program.uleb();
            set(number, {place::sort::other, 0});
            continue;
          }
          case expression: {
            const std::uint64_t number = program.uleb();
            bytes words = program.block();
            place to{place::sort::other, 0};
            if (words.more() && words.take<std::uint8_t>() == op_breg6) {
              to = {place::sort::at_frame, words.sleb()};
              if (words.more() || !words.ok()) to.how = place::sort::other;
            }
            set(number, to);
            continue;
          }
          case val_expression: {
            const std::uint64_t number = program.uleb();
            program.block();
            set(number, {place::sort::other, 0});
            continue;
          }
          case remember_state:
            if (depth == kept.size()) return false;
            kept[depth++] = now;
            continue;
          case restore_state:
            if (depth == 0) return false;
            now = kept[--depth];
            continue;
          case def_cfa:
            now.base = program.uleb();
            now.offset = static_cast<std::int64_t>(program.uleb());
            now.how = row::sort::plain;
            continue;
          case def_cfa_sf:
            now.base = program.uleb();
            now.offset = program.sleb() * common.data_unit;
            now.how = row::sort::plain;
            continue;
          case def_cfa_register:
            now.base = program.uleb();
            now.how = row::sort::plain;
            continue;
          case def_cfa_offset:
            now.offset = static_cast<std::int64_t>(program.uleb());
            now.how = row::sort::plain;
            continue;
          case def_cfa_offset_sf:
            now.offset = program.sleb() * common.data_unit;
            now.how = row::sort::plain;
            continue;
          case def_cfa_expression: {
            bytes words = program.block();
            now.how = row::sort::other;
            if (words.more() && words.take<std::uint8_t>() == op_breg6) {
              const std::int64_t offset = words.sleb();
              if (words.more() && words.take<std::uint8_t>() == op_deref && !words.more()) {
                now.how = row::sort::load;
                now.base = rbp;
                now.offset = offset;
              }
            }
            continue;
          }
          case gnu_args_size: program.uleb(); continue;
          default: return false;
        }
    }
    at += step * common.code_unit;
    if (at > target) break;
  }
  return program.ok();
}

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
  if (!run(common.program, common, UINT64_MAX, first, first)) return made;
  now = first;
  if (!run(bytes(from.at(), entry + 4 + length), common, code - begin, first, now)) return made;
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
