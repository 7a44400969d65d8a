#include "trace/writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "trace/mpt.hpp"

namespace millpond::trace {
namespace {

std::uint32_t checksum(std::span<const std::uint8_t> bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(crc32_z(0, nullptr, 0), reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

class file_sink final : public sink {
 public:
  file_sink(int file, std::string path) : file_(file), path_(std::move(path)) {}
  ~file_sink() override { ::close(file_); }
  result<void> write(std::span<const std::uint8_t> bytes) override {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t wrote = ::write(file_, bytes.data() + done, bytes.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) {
        const int why = wrote == 0 ? ENOSPC : errno;
        // A pipe cannot be cut; its reader sees a cut file.
        [[maybe_unused]] const int cut = ::ftruncate(file_, static_cast<off_t>(length_));
        return error{error_code::output_failure,
                     fmt::format("{}: {} bytes could not be written after {}: {}", path_,
                                 bytes.size(), length_, std::strerror(why))};
      }
      done += static_cast<std::size_t>(wrote);
    }
    length_ += done;
    return {};
  }

 private:
  int file_;
  std::string path_;
  std::uint64_t length_ = 0;
};

class output_sink final : public sink {
 public:
  explicit output_sink(output_file& to) : to_(to) {}
  result<void> write(std::span<const std::uint8_t> bytes) override { return to_.write(bytes); }

 private:
  output_file& to_;
};

class memory_sink final : public sink {
 public:
  explicit memory_sink(std::string& into) : into_(into) {}
  result<void> write(std::span<const std::uint8_t> bytes) override {
    into_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }

 private:
  std::string& into_;
};

// Codes one event at `at`, predicted from `last`; returns the byte after it. Room for
// most_event_bytes.
std::uint8_t* put_event(std::uint8_t* at, const event& next, event& last,
                        std::uint64_t& last_sequence) {
  using namespace mpt;
  // The body is written where it will lie if its length takes one byte, which it nearly always
  // does.
  std::uint8_t* const body = at + 2;
  std::uint8_t* to = body;
  *to++ = static_cast<std::uint8_t>(next.what);
  std::uint8_t* const mask_at = to;
  to += 2;
  std::uint32_t mask = 0;
  const auto field = [&](event_field which, bool present, std::uint64_t coded) {
    if (!present) return;
    mask |= 1u << static_cast<unsigned>(which);
    to = put_varint(to, coded);
  };
  field(event_field::sequence, next.sequence != last_sequence + 1,
        zigzag(next.sequence - (last_sequence + 1)));
  field(event_field::time_ns, next.time_ns != last.time_ns, zigzag(next.time_ns - last.time_ns));
  field(event_field::stream, next.stream != last.stream, next.stream);
  field(event_field::address, next.address != last.address, zigzag(next.address - last.address));
  field(event_field::bytes, next.bytes != 0, next.bytes);
  field(event_field::object, next.object != 0, next.object);
  field(event_field::other, next.other != 0,
        next.what == action::copy ? zigzag(next.other - next.address) : next.other);
  field(event_field::duration_ns, next.duration_ns != 0, next.duration_ns);
  field(event_field::thread, next.thread != last.thread, next.thread);
  field(event_field::stack, next.stack != 0, next.stack);
  field(event_field::status, next.status != 0,
        zigzag(static_cast<std::uint64_t>(static_cast<std::int64_t>(next.status))));
  field(event_field::device, next.device != last.device, next.device);
  if (next.of != last.of) {
    mask |= 1u << static_cast<unsigned>(event_field::of);
    *to++ = static_cast<std::uint8_t>(next.of);
  }
  // The mask as a varint of exactly two bytes: room was left before it was known.
  mask_at[0] = static_cast<std::uint8_t>(mask | 0x80);
  mask_at[1] = static_cast<std::uint8_t>(mask >> 7);
  last = next;
  last_sequence = next.sequence;

  const auto length = static_cast<std::size_t>(to - body);
  at[0] = static_cast<std::uint8_t>(record::event);
  if (length < 0x80) {
    at[1] = static_cast<std::uint8_t>(length);
    return to;
  }
  std::memmove(body + 1, body, length);
  put_varint(at + 1, length);
  return to + 1;
}

}  // namespace

result<std::unique_ptr<sink>> make_file_sink(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) {
    return error{error_code::output_failure,
                 fmt::format("{}: cannot be made: {}", path, std::strerror(errno))};
  }
  return std::unique_ptr<sink>(std::make_unique<file_sink>(file, path));
}

std::unique_ptr<sink> make_sink(output_file& to) {
  return std::make_unique<output_sink>(to);
}

std::unique_ptr<sink> make_descriptor_sink(int file, std::string path) {
  return std::make_unique<file_sink>(file, std::move(path));
}

std::unique_ptr<sink> make_memory_sink(std::string& into) {
  return std::make_unique<memory_sink>(into);
}

void trace_writer::free_context::operator()(ZSTD_CCtx_s* context) const noexcept {
  ZSTD_freeCCtx(context);
}

trace_writer::trace_writer(std::unique_ptr<sink> to, const metadata& meta,
                           const writer_options& options)
    : to_(std::move(to)), options_(options), last_sequence_(UINT64_MAX) {
  MILLPOND_CHECK(options_.chunk_bytes >= 1 && options_.chunk_bytes <= mpt::most_raw_bytes / 2,
                 options_.chunk_bytes);
  if (options_.compression_level != 0) {
    context_.reset(ZSTD_createCCtx());
    MILLPOND_CHECK(context_ != nullptr);
    ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, options_.compression_level);
  }
  if (auto done = set_metadata(meta); !done) failure_ = done.error();
}

trace_writer::trace_writer(trace_writer&&) noexcept = default;
trace_writer& trace_writer::operator=(trace_writer&&) noexcept = default;
trace_writer::~trace_writer() = default;

std::uint8_t* trace_writer::room(std::size_t bytes) {
  if (raw_.size() - used_ < bytes)
    raw_.resize(std::max(used_ + bytes, options_.chunk_bytes + 4096));
  return raw_.data() + used_;
}

result<void> trace_writer::fail(error why) {
  failure_ = std::move(why);
  return *failure_;
}

result<void> trace_writer::after_record() {
  if (used_ < options_.chunk_bytes) return {};
  return flush();
}

result<void> trace_writer::add(const event& next) {
  if (failure_) return *failure_;
  std::uint8_t* const at = room(mpt::most_event_bytes);
  used_ = static_cast<std::size_t>(put_event(at, next, last_, last_sequence_) - raw_.data());
  ++events_;
  return after_record();
}

result<void> trace_writer::put_record(std::uint8_t type, std::span<const std::uint8_t> body) {
  if (failure_) return *failure_;
  std::uint8_t* at = room(body.size() + 16);
  *at++ = type;
  at = mpt::put_varint(at, body.size());
  if (!body.empty()) std::memcpy(at, body.data(), body.size());
  used_ = static_cast<std::size_t>(at - raw_.data()) + body.size();
  return after_record();
}

result<void> trace_writer::add_string(std::uint32_t id, std::string_view text) {
  if (failure_) return *failure_;
  if (id != strings_ || text.size() > mpt::most_text_bytes) {
    return error{
        error_code::invalid_argument,
        fmt::format("string {} of {} bytes cannot be written: the next id is {}, the most {} bytes",
                    id, text.size(), strings_, mpt::most_text_bytes)};
  }
  std::vector<std::uint8_t> body(10 + text.size());
  std::uint8_t* const at = mpt::put_varint(body.data(), id);
  std::ranges::copy(text, at);
  body.resize(static_cast<std::size_t>(at - body.data()) + text.size());
  ++strings_;
  return put_record(static_cast<std::uint8_t>(mpt::record::string), body);
}

result<void> trace_writer::add_stack(std::uint32_t id, std::span<const frame> frames) {
  if (failure_) return *failure_;
  if (id != stacks_ || frames.size() > mpt::most_frames) {
    return error{
        error_code::invalid_argument,
        fmt::format(
            "stack {} of {} frames cannot be written: the next id is {}, the most {} frames", id,
            frames.size(), stacks_, mpt::most_frames)};
  }
  std::vector<std::uint8_t> body(10 + frames.size() * 15);
  std::uint8_t* at = mpt::put_varint(body.data(), id);
  frame last;
  for (const frame& each : frames) {
    at = mpt::put_varint(at, mpt::zigzag(std::uint64_t{each.symbol} - last.symbol));
    at = mpt::put_varint(at, mpt::zigzag(std::uint64_t{each.file} - last.file));
    at = mpt::put_varint(at, mpt::zigzag(std::uint64_t{each.line} - last.line));
    last = each;
  }
  body.resize(static_cast<std::size_t>(at - body.data()));
  ++stacks_;
  return put_record(static_cast<std::uint8_t>(mpt::record::stack), body);
}

result<void> trace_writer::add_new_of(const string_table& strings, const stack_table& stacks) {
  while (strings_ < strings.size()) {
    if (auto done = add_string(strings_, strings.at(strings_)); !done) return done;
  }
  while (stacks_ < stacks.size()) {
    if (auto done = add_stack(stacks_, stacks.at(stacks_)); !done) return done;
  }
  return {};
}

result<void> trace_writer::put_text_field(std::uint8_t field, std::string_view text) {
  text = text.substr(0, mpt::most_text_bytes);
  std::vector<std::uint8_t> body(1 + text.size());
  body[0] = field;
  std::ranges::copy(text, body.begin() + 1);
  return put_record(static_cast<std::uint8_t>(mpt::record::metadata), body);
}

result<void> trace_writer::put_number_field(std::uint8_t field, std::uint64_t value) {
  std::uint8_t body[11] = {field};
  const auto* end = mpt::put_varint(body + 1, value);
  return put_record(static_cast<std::uint8_t>(mpt::record::metadata),
                    std::span(body).first(static_cast<std::size_t>(end - body)));
}

result<void> trace_writer::set_metadata(const metadata& meta) {
  using mpt::meta_field;
  const auto id = [](meta_field field) { return static_cast<std::uint8_t>(field); };
  for (const auto& [field, text] :
       {std::pair(meta_field::program, std::string_view(meta.program)),
        std::pair(meta_field::device_name, std::string_view(meta.device_name)),
        std::pair(meta_field::recorded_by, std::string_view(meta.recorded_by))}) {
    if (auto done = put_text_field(id(field), text); !done) return done;
  }
  for (const auto& [field, value] :
       {std::pair(meta_field::simulated, std::uint64_t{meta.simulated}),
        std::pair(meta_field::start_unix_ns, meta.start_unix_ns),
        std::pair(meta_field::dropped_events, meta.dropped_events)}) {
    if (auto done = put_number_field(id(field), value); !done) return done;
  }
  for (const auto& [name, value] : meta.notes) {
    const std::string_view kept = std::string_view(name).substr(0, 1024);
    std::uint8_t length[10];
    const auto* end = mpt::put_varint(length, kept.size());
    std::string text(reinterpret_cast<const char*>(length), static_cast<std::size_t>(end - length));
    text += kept;
    text += std::string_view(value).substr(0, mpt::most_text_bytes - 2048);
    if (auto done = put_text_field(id(meta_field::note), text); !done) return done;
  }
  return {};
}

result<void> trace_writer::flush() {
  if (failure_) return *failure_;
  if (used_ == 0 && chunks_ > 0) return {};
  const std::size_t head = chunks_ == 0 ? mpt::header_bytes : 0;
  const std::size_t bound = context_ != nullptr ? ZSTD_compressBound(used_) : used_;
  out_.resize(head + mpt::chunk_header_bytes + bound);
  if (head != 0) {
    std::ranges::copy(mpt::magic, out_.begin());
    std::uint8_t* at = out_.data() + mpt::magic.size();
    at = mpt::put_fixed(at, mpt::major_version);
    at = mpt::put_fixed(at, mpt::minor_version);
    mpt::put_fixed(at, checksum(std::span(out_).first(mpt::header_bytes - 4)));
  }
  std::uint8_t* const header = out_.data() + head;
  std::uint8_t* const payload = header + mpt::chunk_header_bytes;
  auto coded = mpt::codec::none;
  std::size_t stored = used_;
  if (context_ != nullptr) {
    const std::size_t size = ZSTD_compress2(context_.get(), payload, bound, raw_.data(), used_);
    if (ZSTD_isError(size) == 0 && size < used_) {
      coded = mpt::codec::zstd;
      stored = size;
    }
  }
  if (coded == mpt::codec::none && used_ != 0) std::memcpy(payload, raw_.data(), used_);
  std::uint8_t* at = header;
  at = mpt::put_fixed(at, mpt::chunk_marker);
  at = mpt::put_fixed(at, chunks_);
  at = mpt::put_fixed(at, static_cast<std::uint16_t>(coded));
  at = mpt::put_fixed(at, std::uint16_t{0});
  at = mpt::put_fixed(at, static_cast<std::uint32_t>(stored));
  at = mpt::put_fixed(at, static_cast<std::uint32_t>(used_));
  at = mpt::put_fixed(at, checksum({payload, stored}));
  mpt::put_fixed(at, checksum({header, mpt::chunk_header_bytes - 4}));
  const std::size_t total = head + mpt::chunk_header_bytes + stored;
  if (auto done = to_->write(std::span(out_).first(total)); !done) return fail(done.error());
  written_ += total;
  ++chunks_;
  used_ = 0;
  last_ = {};
  last_sequence_ = UINT64_MAX;
  return {};
}

result<void> trace_writer::close() {
  std::uint8_t body[10];
  const auto* end = mpt::put_varint(body, events_);
  const auto size = static_cast<std::size_t>(end - body);
  if (auto done =
          put_record(static_cast<std::uint8_t>(mpt::record::end), std::span(body).first(size));
      !done) {
    return done;
  }
  if (auto done = flush(); !done) return done;
  failure_ = error{error_code::not_permitted, "the trace was closed: nothing more can be written"};
  return {};
}

}  // namespace millpond::trace
