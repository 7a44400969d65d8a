#include "pool/sleep/sleeping_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>

#include "driver/insist.hpp"
#include "millpond/base/units.hpp"

namespace millpond {
namespace {

// So many spans may be copied while the host has not yet looked at the first of them.
constexpr std::size_t in_flight = 8;

// Told when all is undone that can be: words need memory, which may be what was missing.
void tell(sleeping_memory::failure* why, call_result answer, const char* doing, std::uint64_t bytes,
          call_result back) noexcept {
  why->stuck = !back.ok();
  why->what.code = answer.status == driver_status::out_of_memory ? error_code::out_of_memory
                                                                 : error_code::driver_failure;
  try {
    std::string words = doing;
    if (bytes != 0) words += " " + format_bytes(bytes);
    why->what = to_error(answer, words);
    if (why->stuck) why->what.message += "; going back failed too: " + to_string(back);
  } catch (const std::bad_alloc&) {
    // The code has to do.
  }
}

}  // namespace

class sleeping_memory::worker {
 public:
  explicit worker(driver& gpu) noexcept : gpu_(gpu) {}
  ~worker() {
    for (const event_handle e : made_)
      static_cast<void>(insist([&] { return gpu_.event_destroy(e); }));
    if (stream_ != nullptr) static_cast<void>(insist([&] { return gpu_.stream_destroy(stream_); }));
  }
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;

  call_result open(std::size_t events) noexcept {
    try {
      made_.reserve(events);
    } catch (const std::bad_alloc&) {
      return {driver_status::out_of_memory, "cuEventCreate"};
    }
    if (const call_result answer = gpu_.stream_create(&stream_); !answer.ok()) {
      stream_ = nullptr;
      return answer;
    }
    for (std::size_t i = 0; i < events; ++i) {
      event_handle e = nullptr;
      if (const call_result answer = gpu_.event_create(&e); !answer.ok()) return answer;
      made_.push_back(e);
    }
    return {};
  }
  [[nodiscard]] stream_handle stream() const noexcept { return stream_; }
  [[nodiscard]] event_handle event(std::size_t i) const noexcept { return made_[i % made_.size()]; }

 private:
  driver& gpu_;
  stream_handle stream_ = nullptr;
  std::vector<event_handle> made_;
};

std::uint64_t sleeping_memory::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const span& s : spans_) sum += s.bytes;
  return sum;
}

std::uint64_t sleeping_memory::kept_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const span& s : spans_) {
    for (const piece& p : s.pieces) sum += p.bytes;
  }
  return sum;
}

void sleeping_memory::clear() noexcept {
  if (store_ != nullptr) store_->let_go();
  store_.reset();
  spans_.clear();
}

void sleeping_memory::forget(device_address at, std::uint64_t bytes) noexcept {
  const device_address end = at + bytes;
  for (span& s : spans_) {
    for (std::size_t i = 0; i < s.pieces.size(); ++i) {
      piece& p = s.pieces[i];
      const device_address last = p.at + p.bytes;
      if (p.at >= end || last <= at) continue;
      // A piece may hold several blocks side by side: what lies outside of the freed one stays.
      const piece before{p.at, at > p.at ? at - p.at : 0, p.offset};
      const piece after{end, last > end ? last - end : 0, p.offset + (end - p.at)};
      if (before.bytes != 0 && after.bytes != 0) {
        // Without room for one more the freed block's contents are brought back: nobody has them.
        if (s.pieces.size() == s.pieces.capacity()) continue;
        p = before;
        s.pieces.insert(s.pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1, after);
        break;
      }
      if (before.bytes != 0) {
        p = before;
      } else if (after.bytes != 0) {
        p = after;
      } else {
        s.pieces.erase(s.pieces.begin() + static_cast<std::ptrdiff_t>(i--));
      }
    }
  }
}

// To sleep
// ---------------------------------------------------------------------------------------------

call_result sleeping_memory::unmap(const ways& by, span& of) noexcept {
  while (of.mapped > 0) {
    if (const call_result answer = by.gpu.unmap(of.addresses[of.mapped - 1], of.bytes);
        !answer.ok())
      return answer;
    --of.mapped;
    of.accessible = std::min(of.accessible, of.mapped);
  }
  return {};
}

call_result sleeping_memory::release(const ways& by, span& of) noexcept {
  if (!of.held) return {};
  const call_result answer = by.release(of.handle, of.bytes);
  if (!answer.ok()) return answer;
  of.held = false;
  of.lost = true;
  return {};
}

// Copies every piece to the store; a span is unmapped when its copies are done, while the next ones
// run. The handles stay until all is copied and unmapped: up to then, going back costs no memory
// and no copy.
call_result sleeping_memory::save(const ways& by, worker& with) {
  std::size_t done = 0;
  const auto finish = [&](std::size_t upto) -> call_result {
    for (; done < upto; ++done) {
      if (!spans_[done].pieces.empty()) {
        if (const call_result answer = by.gpu.event_synchronize(with.event(done)); !answer.ok())
          return answer;
      }
      if (const call_result answer = unmap(by, spans_[done]); !answer.ok()) return answer;
    }
    return {};
  };
  for (std::size_t k = 0; k < spans_.size(); ++k) {
    for (const piece& p : spans_[k].pieces) {
      const auto host = reinterpret_cast<device_address>(store_->data() + p.offset);
      if (const call_result answer = by.gpu.copy_async(host, p.at, p.bytes, with.stream());
          !answer.ok())
        return answer;
    }
    if (!spans_[k].pieces.empty()) {
      if (const call_result answer = by.gpu.event_record(with.event(k), with.stream());
          !answer.ok())
        return answer;
    }
    if (k + 1 > in_flight) {
      if (const call_result answer = finish(k + 1 - in_flight); !answer.ok()) return answer;
    }
  }
  return finish(spans_.size());
}

bool sleeping_memory::put_away(const ways& by, std::vector<span> spans,
                               std::shared_ptr<pinned_store> store, failure* why) noexcept {
  spans_ = std::move(spans);
  store_ = std::move(store);
  const auto undo = [&](call_result answer, const char* doing, std::uint64_t bytes = 0) {
    worker with(by.gpu);
    // All spans are held unless a release failed half-way; those released before come back from the
    // store.
    call_result back;
    const bool any_lost =
        std::any_of(spans_.begin(), spans_.end(), [](const span& s) { return s.lost; });
    if (any_lost)
      back = insist([&] { return with.stream() == nullptr ? with.open(0) : call_result{}; });
    if (back.ok()) back = insist([&] { return restore(by, with); });
    tell(why, answer, doing, bytes, back);
    return false;
  };
  {
    worker with(by.gpu);
    if (const call_result answer = with.open(in_flight); !answer.ok())
      return undo(answer, "a stream to copy on");
    if (const call_result answer = save(by, with); !answer.ok()) {
      // No copy may run when its memory is looked at again.
      static_cast<void>(insist([&] { return by.gpu.stream_synchronize(with.stream()); }));
      return undo(answer, "copying to the host and unmapping");
    }
  }
  for (span& s : spans_) {
    if (const call_result answer = insist([&] { return release(by, s); }); !answer.ok()) {
      return undo(answer, "giving back", s.bytes);
    }
  }
  return true;
}

// And back
// ---------------------------------------------------------------------------------------------

call_result sleeping_memory::open(const ways& by, span& of) noexcept {
  if (!of.held) {
    if (const call_result answer = by.create(&of.handle, of.bytes); !answer.ok()) return answer;
    of.held = true;
  }
  for (; of.mapped < of.addresses.size(); ++of.mapped) {
    if (const call_result answer = by.gpu.map(of.addresses[of.mapped], of.bytes, of.handle);
        !answer.ok())
      return answer;
  }
  for (; of.accessible < of.mapped; ++of.accessible) {
    if (const call_result answer =
            by.gpu.set_access(of.addresses[of.accessible], of.bytes, by.location);
        !answer.ok())
      return answer;
  }
  return {};
}

// Memory for every span, and the copies of a span while the next is mapped. A span that was brought
// back stays `lost` until all copies are done.
call_result sleeping_memory::restore(const ways& by, worker& with) {
  for (span& s : spans_) {
    if (const call_result answer = open(by, s); !answer.ok()) return answer;
    if (!s.lost) continue;
    for (const piece& p : s.pieces) {
      const auto host = reinterpret_cast<device_address>(store_->data() + p.offset);
      if (const call_result answer = by.gpu.copy_async(p.at, host, p.bytes, with.stream());
          !answer.ok())
        return answer;
    }
  }
  if (with.stream() != nullptr) {
    if (const call_result answer = by.gpu.stream_synchronize(with.stream()); !answer.ok())
      return answer;
  }
  for (span& s : spans_) s.lost = false;
  return {};
}

bool sleeping_memory::bring_back(const ways& by, failure* why) noexcept {
  constexpr const char* doing = "bringing back";
  worker with(by.gpu);
  call_result answer = with.open(0);
  if (answer.ok()) answer = restore(by, with);
  if (answer.ok()) return true;
  if (with.stream() != nullptr) {
    if (const call_result over = insist([&] { return by.gpu.stream_synchronize(with.stream()); });
        !over.ok()) {
      // Copies may still run: what is mapped stays so until the next try.
      tell(why, answer, doing, bytes(), over);
      return false;
    }
  }
  call_result first_refusal;
  for (span& s : spans_) {
    if (!s.lost) continue;  // the rest of an earlier failure: its contents are in it
    call_result back = insist([&] { return unmap(by, s); });
    if (back.ok()) back = insist([&] { return release(by, s); });
    if (first_refusal.ok()) first_refusal = back;
  }
  tell(why, answer, doing, bytes(), first_refusal);
  return false;
}

void sleeping_memory::abandon(const ways& by) noexcept {
  for (span& s : spans_) {
    static_cast<void>(insist([&] { return unmap(by, s); }));
    if (s.held && insist([&] { return by.release(s.handle, s.bytes); }).ok()) s.held = false;
  }
  clear();
}

}  // namespace millpond
