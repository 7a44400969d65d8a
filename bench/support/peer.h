/* What a benchmark asks of a peer: a plain C interface, so that a peer built with another compiler
   and another C++ library can be loaded at run time. */
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct millpond_peer {
  const char* name;
  /* A fresh allocator on the current device, or NULL with *why set. */
  void* (*create)(const char** why);
  void (*destroy)(void* self);
  /* NULL where it is out of memory. Stream-ordered where the peer is. */
  void* (*allocate)(void* self, uint64_t bytes, void* stream);
  void (*deallocate)(void* self, void* ptr, uint64_t bytes, void* stream);
  /* Bytes taken from the device, 0 where the peer does not tell. */
  uint64_t (*reserved)(void* self);
};

/* The one symbol that a plug-in exports: its peers, ended by one without a name. */
typedef const struct millpond_peer* (*millpond_peers_function)(void);

#ifdef __cplusplus
}
#endif
