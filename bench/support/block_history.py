"""A random history of blocks: which of 40,000 places is allocated or freed next.

The benchmarks that make long traces draw from it, so that their traces are alike.
"""

PLACES = 40_000
FIRST_ADDRESS = 0x7F0000000000
ADDRESSES_APART = 2_097_152


class block_history:
    def __init__(self, pick, grows):
        """Once half of the places are live, `grows` is how often an event allocates."""
        self._pick, self._grows = pick, grows
        self._sizes = [512 << pick.randrange(12) for _ in range(1000)]  # 512 bytes to 1 MiB
        self._free, self._live = list(range(PLACES)), []
        pick.shuffle(self._free)

    def next(self):
        """(place, whether it is allocated; else it is freed)"""
        if self._free and (len(self._live) < PLACES // 2 or self._pick.random() < self._grows):
            place = self._free.pop()
            self._live.append(place)
            return place, True
        n = self._pick.randrange(len(self._live))
        place = self._live[n]
        self._live[n] = self._live[-1]
        self._live.pop()
        self._free.append(place)
        return place, False

    def address(self, place):
        return FIRST_ADDRESS + place * ADDRESSES_APART

    def size(self, place):
        return self._sizes[place % len(self._sizes)]
