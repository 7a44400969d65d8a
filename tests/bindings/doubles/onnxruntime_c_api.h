/* A test double of the part of onnxruntime_c_api.h that the adapter fills, by the layout of ONNX
 * Runtime 1.23. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define ORT_API_VERSION 23
#define ORT_API_CALL

struct OrtMemoryInfo;
struct OrtStatus;
struct OrtKeyValuePairs;
struct OrtSyncStream;

typedef struct OrtAllocator {
  uint32_t version;
  void*(ORT_API_CALL* Alloc)(struct OrtAllocator* self, size_t size);
  void(ORT_API_CALL* Free)(struct OrtAllocator* self, void* p);
  const struct OrtMemoryInfo*(ORT_API_CALL* Info)(const struct OrtAllocator* self);
  void*(ORT_API_CALL* Reserve)(struct OrtAllocator* self, size_t size);
  struct OrtStatus*(ORT_API_CALL* GetStats)(const struct OrtAllocator* self,
                                            struct OrtKeyValuePairs** out);
  void*(ORT_API_CALL* AllocOnStream)(struct OrtAllocator* self, size_t size,
                                     struct OrtSyncStream* stream);
} OrtAllocator;
