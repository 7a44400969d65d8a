// Mapped physical memory that goes away and comes back at the same addresses, with what is in it
// kept on the host.
//
// Each span is somewhere between two ends: mapped everywhere with its contents (awake), or released
// with its contents in the store (asleep). put_away and bring_back move every span from one end to
// the other; where a driver call fails, they move all of them back. Should that fail too, each
// span's own state says what is left to do, and a later call goes on from there: contents are in
// the span, in the store, or in both, and never nowhere.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "millpond/pool/sleep.hpp"

namespace millpond {

class sleeping_memory {
 public:
  struct piece {  // contents to keep, within one span
    device_address at = 0;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;  // in the store
  };
  struct span {
    std::uint64_t key = 0;  // the owner's name for it
    std::uint64_t bytes = 0;
    std::vector<device_address> addresses = {};  // the first `mapped` of them are mapped
    std::size_t mapped = 0;
    std::size_t accessible = 0;  // so many of the mapped ones may be used
    physical_handle handle = 0;
    bool held = false;  // the handle is a driver object of ours
    bool lost =
        false;  // what the device had is gone or was never brought back: the store alone has it
    // With room for as many as there are blocks in the span, so that forget() needs no memory.
    std::vector<piece> pieces = {};
  };
  // How memory is had from the driver and given back, within whoever's budget.
  struct ways {
    driver& gpu;
    memory_location location;
    std::function<call_result(physical_handle*, std::uint64_t)> create;
    std::function<call_result(physical_handle, std::uint64_t)> release;
  };
  // A failed call, and what it was for; `stuck`: going back failed too, so that the memory is
  // asleep or half asleep.
  struct failure {
    error what{};
    bool stuck = false;
  };

  // `spans` awake, nothing of the device using them; the store, taken for us, holds all pieces
  // (nullptr: there are none). True where all are asleep; otherwise all are awake again, some
  // perhaps under new handles, unless the failure says `stuck`. Throws nothing, as bring_back:
  // where there is no host memory either, the failure has no words.
  [[nodiscard]] bool put_away(const ways& by, std::vector<span> spans,
                              std::shared_ptr<pinned_store> store, failure* why) noexcept;
  // True where all are awake and their contents there; otherwise all are asleep as before, unless
  // `stuck`.
  [[nodiscard]] bool bring_back(const ways& by, failure* why) noexcept;
  // Gives the handles back that a half-finished call left, without contents. For the end.
  void abandon(const ways& by) noexcept;

  [[nodiscard]] const std::vector<span>& spans() const noexcept { return spans_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  [[nodiscard]] std::uint64_t kept_bytes() const noexcept;
  // Nothing sleeps any more: the spans are forgotten, and the store may serve another.
  void clear() noexcept;
  // False where another sleeper has the store.
  [[nodiscard]] static bool take_store(pinned_store& store) noexcept { return store.hold(); }
  // The block that began at this address was freed: what of it is kept need not come back.
  void forget(device_address at, std::uint64_t bytes) noexcept;

 private:
  class worker;  // a stream and events of our own, for the length of a call
  call_result save(const ways& by, worker& with);
  call_result unmap(const ways& by, span& of) noexcept;
  call_result release(const ways& by, span& of) noexcept;
  call_result restore(const ways& by, worker& with);
  call_result open(const ways& by, span& of) noexcept;

  std::vector<span> spans_;
  std::shared_ptr<pinned_store> store_;
};

}  // namespace millpond
