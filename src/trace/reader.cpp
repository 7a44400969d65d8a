#include "trace/reader.hpp"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/quote.hpp"
#include "trace/mpt.hpp"

namespace millpond::trace {
namespace {

using byte = std::uint8_t;

const byte* bytes_of(std::string_view text) {
  return reinterpret_cast<const byte*>(text.data());
}

std::uint32_t checksum(const byte* bytes, std::size_t count) {
  return static_cast<std::uint32_t>(crc32_z(crc32_z(0, nullptr, 0), bytes, count));
}

class mpt_reader final : public event_reader {
 public:
  mpt_reader(input_buffer from, const open_options& options)
      : from_(std::move(from)), options_(options) {
    info_.name = from_.name();
    info_.from = format::mpt;
  }

  // Reads the header and the records in front of the first event.
  result<void> open() {
    auto there = from_.fill(mpt::header_bytes);
    if (!there) return there.error();
    if (*there < mpt::header_bytes) return cut(0);
    const byte* const at = bytes_of(from_.view());
    const auto major = mpt::get_fixed<std::uint16_t>(at + 8);
    const auto minor = mpt::get_fixed<std::uint16_t>(at + 10);
    const std::uint32_t sum = checksum(at, mpt::header_bytes - 4);
    if (sum != mpt::get_fixed<std::uint32_t>(at + 12)) {
      return wrong_sum(12, sum, mpt::get_fixed<std::uint32_t>(at + 12), "the header");
    }
    if (major != mpt::major_version) {
      return bad(8, fmt::format("version {}.x", mpt::major_version),
                 fmt::format("version {}.{}: {}", major, minor,
                             major > mpt::major_version
                                 ? "a newer millpond wrote this file and can read it"
                                 : "no released millpond wrote it"));
    }
    from_.consume(mpt::header_bytes);
    while (info_.status == read_status::reading) {
      if (at_ == end_) {
        auto more = load_chunk();
        if (!more) return more.error();
        continue;
      }
      if (*at_ == static_cast<byte>(mpt::record::event)) break;
      bool delivered = false;
      event unused;
      if (auto done = next_record(unused, delivered); !done) return done;
    }
    return {};
  }

  result<std::size_t> read(std::span<event> into) override {
    if (failure_) return *failure_;
    std::size_t count = 0;
    while (count < into.size() && info_.status == read_status::reading) {
      if (at_ == end_) {
        auto more = load_chunk();
        if (!more) return failed(more.error(), count);
        continue;
      }
      bool delivered = false;
      if (auto done = next_record(into[count], delivered); !done)
        return failed(done.error(), count);
      count += delivered ? 1 : 0;
    }
    return count;
  }

 private:
  struct free_context {
    void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
  };

  result<std::size_t> failed(error why, std::size_t count) {
    failure_ = std::move(why);
    if (count > 0) return count;  // what came before it first
    return *failure_;
  }
  [[nodiscard]] error bad(std::uint64_t ahead, std::string_view expected,
                          std::string_view found) const {
    return bad_byte(from_.name(), from_.offset() + ahead, expected, found);
  }
  [[nodiscard]] error wrong_sum(std::uint64_t ahead, std::uint32_t sum, std::uint32_t stated,
                                std::string_view of) const {
    return bad(ahead, fmt::format("checksum {:08x} of {}", sum, of), fmt::format("{:08x}", stated));
  }
  // A record that is wrong though its chunk's checksum is right: the writer was broken, or hostile.
  [[nodiscard]] error bad_record(std::string_view expected, std::string_view found) const {
    return {error_code::bad_input,
            fmt::format("{}: in the chunk at byte {}, uncompressed byte {}: expected {}, found {}",
                        from_.name(), chunk_offset_, record_ - raw_.data(), expected, found)};
  }

  result<void> cut(std::uint64_t at) {
    info_.status = read_status::cut;
    info_.cut_at_byte = at;
    info_.warnings.push_back(
        fmt::format("{}: cut at byte {}: {} before it {} read", from_.name(), at,
                    events_ == 1 ? "the one event" : fmt::format("the {} events", events_),
                    events_ == 1 ? "was" : "were"));
    return {};
  }

  // Undoes the next chunk into raw_; at the end of the file sets the status.
  result<void> load_chunk() {
    auto there = from_.fill(mpt::chunk_header_bytes);
    if (!there) return there.error();
    chunk_offset_ = from_.offset();
    if (*there < mpt::chunk_header_bytes) return cut(chunk_offset_);
    const byte* head = bytes_of(from_.view());
    const auto marker = mpt::get_fixed<std::uint32_t>(head);
    if (marker != mpt::chunk_marker) {
      return bad(0, "a chunk's marker " + in_quotes("mpck"), in_quotes(from_.view().substr(0, 4)));
    }
    const std::uint32_t head_sum = checksum(head, mpt::chunk_header_bytes - 4);
    const auto stated_head_sum = mpt::get_fixed<std::uint32_t>(head + 24);
    if (head_sum != stated_head_sum)
      return wrong_sum(24, head_sum, stated_head_sum, "the chunk's header");
    const auto number = mpt::get_fixed<std::uint32_t>(head + 4);
    if (number != chunks_)
      return bad(4, fmt::format("chunk {}", chunks_), fmt::format("chunk {}", number));
    const auto coded = static_cast<mpt::codec>(mpt::get_fixed<std::uint16_t>(head + 8));
    const auto stored = mpt::get_fixed<std::uint32_t>(head + 12);
    const auto raw = mpt::get_fixed<std::uint32_t>(head + 16);
    if (coded != mpt::codec::none && coded != mpt::codec::zstd) {
      return bad(8, "codec 0 (none) or 1 (zstd)",
                 fmt::format("codec {}", static_cast<unsigned>(coded)));
    }
    if (raw > mpt::most_raw_bytes || stored > raw || (coded == mpt::codec::none && stored != raw)) {
      return bad(12,
                 fmt::format("a chunk of at most {} bytes, stored in no more", mpt::most_raw_bytes),
                 fmt::format("{} bytes stored in {}", raw, stored));
    }
    const auto stated_sum = mpt::get_fixed<std::uint32_t>(head + 20);

    there = from_.fill(mpt::chunk_header_bytes + stored);
    if (!there) return there.error();
    if (*there < mpt::chunk_header_bytes + stored) return cut(chunk_offset_);
    const byte* payload = bytes_of(from_.view()) + mpt::chunk_header_bytes;
    const std::uint32_t sum = checksum(payload, stored);
    if (sum != stated_sum) return wrong_sum(20, sum, stated_sum, "the chunk's payload");
    if (auto done = undo(coded, payload, stored, raw); !done) return done;
    from_.consume(mpt::chunk_header_bytes + stored);
    ++chunks_;
    at_ = raw_.data();
    end_ = at_ + raw;
    last_ = {};
    last_sequence_ = UINT64_MAX;
    return {};
  }

  result<void> undo(mpt::codec coded, const byte* payload, std::size_t stored, std::size_t raw) {
    if (raw_.size() < raw) raw_.resize(raw);
    if (coded == mpt::codec::none) {
      std::copy_n(payload, stored, raw_.data());
      return {};
    }
    if (context_ == nullptr) context_.reset(ZSTD_createDCtx());
    if (context_ == nullptr) return error{error_code::out_of_memory, "no memory to undo zstd"};
    const std::size_t made = ZSTD_decompressDCtx(context_.get(), raw_.data(), raw, payload, stored);
    if (ZSTD_isError(made) != 0) {
      return bad(mpt::chunk_header_bytes, "zstd data", ZSTD_getErrorName(made));
    }
    if (made != raw)
      return bad(16, fmt::format("{} bytes when uncompressed", raw), fmt::format("{}", made));
    return {};
  }

  // One record; `delivered` says whether it was an event, then in `into`.
  result<void> next_record(event& into, bool& delivered) {
    record_ = at_;
    const auto type = static_cast<mpt::record>(*at_);
    std::uint64_t type_number = 0, length = 0;
    const byte* body = mpt::get_varint(at_, end_, type_number);
    if (body != nullptr) body = mpt::get_varint(body, end_, length);
    if (body == nullptr || length > static_cast<std::uint64_t>(end_ - body)) {
      return bad_record("a record within its chunk", body == nullptr
                                                         ? "no whole type and length"
                                                         : fmt::format("{} bytes", length));
    }
    const byte* const body_end = body + length;
    at_ = body_end;
    if (ended_)
      return bad_record("nothing after the end record", fmt::format("record {}", type_number));
    if (type_number > 0x7f) return {};
    switch (type) {
      case mpt::record::event: return get_event(body, body_end, into, delivered);
      case mpt::record::string: return get_string(body, body_end);
      case mpt::record::stack: return get_stack(body, body_end);
      case mpt::record::metadata: return get_metadata(body, body_end);
      case mpt::record::end: return get_end(body, body_end);
    }
    return {};  // of a later minor version
  }

  result<void> get_event(const byte* at, const byte* end, event& into, bool& delivered) {
    using enum mpt::event_field;
    if (at == end) return bad_record("an event", "an empty record");
    const unsigned what = *at++;
    std::uint64_t mask = 0;
    at = mpt::get_varint(at, end, mask);
    event next = last_;
    next.bytes = next.object = next.other = 0;
    next.duration_ns = next.stack = 0;
    next.status = 0;
    next.sequence = last_sequence_ + 1;
    next.what = static_cast<action>(what);
    std::uint64_t value = 0;
    const auto field = [&](mpt::event_field which) {
      if ((mask >> static_cast<unsigned>(which) & 1) == 0 || at == nullptr) return false;
      at = mpt::get_varint(at, end, value);
      return at != nullptr;
    };
    // A value that its member cannot hold is as broken as a varint without end.
    const auto fits = [&](std::uint64_t most) {
      if (value > most) at = nullptr;
      return value <= most;
    };
    if (field(sequence)) next.sequence += mpt::undo_zigzag(value);
    if (field(time_ns)) next.time_ns += mpt::undo_zigzag(value);
    if (field(stream)) next.stream = value;
    if (field(address)) next.address += mpt::undo_zigzag(value);
    if (field(bytes)) next.bytes = value;
    if (field(object)) next.object = value;
    if (field(other))
      next.other = next.what == action::copy ? next.address + mpt::undo_zigzag(value) : value;
    if (field(duration_ns) && fits(UINT32_MAX))
      next.duration_ns = static_cast<std::uint32_t>(value);
    if (field(thread) && fits(UINT32_MAX)) next.thread = static_cast<std::uint32_t>(value);
    if (field(stack) && fits(UINT32_MAX)) next.stack = static_cast<std::uint32_t>(value);
    if (field(status) && fits(UINT32_MAX)) {
      next.status = static_cast<std::int32_t>(mpt::undo_zigzag(value));
    }
    if (field(device) && fits(UINT16_MAX)) next.device = static_cast<std::uint16_t>(value);
    unsigned of_kind = static_cast<unsigned>(next.of);
    if ((mask >> static_cast<unsigned>(of) & 1) != 0 && at != nullptr) {
      at = at == end ? nullptr : at;
      if (at != nullptr) of_kind = *at++;
      next.of = static_cast<kind>(of_kind);
    }
    if (at == nullptr)
      return bad_record("an event's fields", "a field that does not end or does not fit");
    last_ = next;
    last_sequence_ = next.sequence;
    ++events_;
    if (what >= action_count || of_kind > static_cast<unsigned>(kind::pageable)) {
      skipped_event(what, of_kind);
      return {};
    }
    into = next;
    delivered = true;
    return {};
  }

  void skipped_event(unsigned what, unsigned of_kind) {
    if (skip_warned_) return;
    skip_warned_ = true;
    info_.warnings.push_back(fmt::format(
        "{}: events that this version does not know are left out (the first: action {}, kind {})",
        from_.name(), what, of_kind));
  }

  result<void> get_string(const byte* at, const byte* end) {
    std::uint64_t id = 0;
    at = mpt::get_varint(at, end, id);
    if (at == nullptr || id != info_.strings.size()) {
      return bad_record(fmt::format("string {}", info_.strings.size()),
                        at == nullptr ? "no id" : fmt::format("string {}", id));
    }
    const auto size = static_cast<std::uint64_t>(end - at);
    if (size > mpt::most_text_bytes) {
      return bad_record(fmt::format("a text of at most {} bytes", mpt::most_text_bytes),
                        fmt::format("{} bytes", size));
    }
    info_.strings.append({reinterpret_cast<const char*>(at), static_cast<std::size_t>(size)});
    return check_tables();
  }

  result<void> get_stack(const byte* at, const byte* end) {
    std::uint64_t id = 0;
    at = mpt::get_varint(at, end, id);
    if (at == nullptr || id != info_.stacks.size()) {
      return bad_record(fmt::format("stack {}", info_.stacks.size()),
                        at == nullptr ? "no id" : fmt::format("stack {}", id));
    }
    frames_.clear();
    frame last;
    while (at != nullptr && at != end && frames_.size() < mpt::most_frames) {
      for (std::uint32_t* part : {&last.symbol, &last.file, &last.line}) {
        std::uint64_t difference = 0;
        if (at != nullptr) at = mpt::get_varint(at, end, difference);
        *part += static_cast<std::uint32_t>(mpt::undo_zigzag(difference));
      }
      frames_.push_back(last);
    }
    if (at != end) {
      return bad_record(fmt::format("at most {} whole frames", mpt::most_frames),
                        at == nullptr ? "a frame that does not end" : "more");
    }
    info_.stacks.append(frames_);
    return check_tables();
  }

  result<void> check_tables() {
    const std::uint64_t used = info_.strings.memory_bytes() + info_.stacks.memory_bytes();
    if (used <= options_.table_limit_bytes) return {};
    return bad_record(
        fmt::format("strings and stacks of at most {} bytes in all", options_.table_limit_bytes),
        fmt::format("{}", used));
  }

  result<void> get_metadata(const byte* at, const byte* end) {
    if (at == end) return bad_record("a metadata field", "an empty record");
    const auto field = static_cast<mpt::meta_field>(*at++);
    const std::string_view text(reinterpret_cast<const char*>(at),
                                static_cast<std::size_t>(end - at));
    if (text.size() > mpt::most_text_bytes) {
      return bad_record(fmt::format("a value of at most {} bytes", mpt::most_text_bytes),
                        fmt::format("{} bytes", text.size()));
    }
    metadata& meta = info_.meta;
    switch (field) {
      case mpt::meta_field::program: meta.program = text; return {};
      case mpt::meta_field::device_name: meta.device_name = text; return {};
      case mpt::meta_field::recorded_by: meta.recorded_by = text; return {};
      case mpt::meta_field::note: return get_note(at, end);
      case mpt::meta_field::simulated:
      case mpt::meta_field::start_unix_ns:
      case mpt::meta_field::dropped_events: break;
      default: return {};
    }
    std::uint64_t value = 0;
    if (mpt::get_varint(at, end, value) == nullptr) return bad_record("a number", "none that ends");
    if (field == mpt::meta_field::simulated) meta.simulated = value != 0;
    if (field == mpt::meta_field::start_unix_ns) meta.start_unix_ns = value;
    if (field == mpt::meta_field::dropped_events) meta.dropped_events = value;
    return {};
  }

  result<void> get_note(const byte* at, const byte* end) {
    std::uint64_t size = 0;
    at = mpt::get_varint(at, end, size);
    if (at == nullptr || size > static_cast<std::uint64_t>(end - at)) {
      return bad_record("a note's name and value", "a name longer than the record");
    }
    const std::string_view text(reinterpret_cast<const char*>(at),
                                static_cast<std::size_t>(end - at));
    const std::string_view name = text.substr(0, size);
    const std::string_view value = text.substr(size);
    auto& notes = info_.meta.notes;
    const auto known = std::ranges::find(notes, name, &std::pair<std::string, std::string>::first);
    if (known != notes.end()) {
      known->second = value;
    } else if (notes.size() < most_notes) {
      notes.emplace_back(name, value);
    } else {
      return bad_record(fmt::format("at most {} notes", most_notes), "another");
    }
    return {};
  }

  result<void> get_end(const byte* at, const byte* end) {
    std::uint64_t stated = 0;
    if (mpt::get_varint(at, end, stated) == nullptr || stated != events_) {
      return bad_record(fmt::format("an end after {} events", events_),
                        fmt::format("after {}", stated));
    }
    ended_ = true;
    if (at_ != end_) return {};  // the next record says what is wrong
    if (options_.behind_the_end == open_options::rest::refused) {
      auto there = from_.fill(1);
      if (!there) return there.error();
      if (*there != 0) return bad(0, "the end of the file", in_quotes(from_.view().substr(0, 16)));
    }
    info_.status = read_status::complete;
    return {};
  }

  static constexpr std::size_t most_notes = 1024;

  input_buffer from_;
  open_options options_;
  std::unique_ptr<ZSTD_DCtx, free_context> context_;
  std::vector<byte> raw_;         // the chunk, undone
  const byte* at_ = nullptr;      // the next record
  const byte* end_ = nullptr;     // the end of the chunk
  const byte* record_ = nullptr;  // the record being read, for errors
  std::uint64_t chunk_offset_ = 0;
  std::uint32_t chunks_ = 0;
  event last_;
  std::uint64_t last_sequence_ = UINT64_MAX;
  std::uint64_t events_ = 0;  // in the file, those left out included
  std::vector<frame> frames_;
  std::optional<error> failure_;
  bool ended_ = false;
  bool skip_warned_ = false;
};

}  // namespace

bool is_mpt(std::string_view head) noexcept {
  return head.substr(0, mpt::magic.size()) == mpt::magic.substr(0, head.size()) && !head.empty();
}

result<std::unique_ptr<event_reader>> read_mpt(input_buffer from, const open_options& options) {
  auto reader = std::make_unique<mpt_reader>(std::move(from), options);
  if (auto done = reader->open(); !done) return done.error();
  return std::unique_ptr<event_reader>(std::move(reader));
}

}  // namespace millpond::trace
