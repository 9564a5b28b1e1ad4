// What a build of torch for CUDA brings along and autograd asks for, on a build without: a device that is there.

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
};

// Takes effect only if it is there before the first who asks for hooks.
REGISTER_CUDA_HOOKS(CUDAHooks)

namespace native {

// Which kernel takes attention: flash takes halves on every card since Ampere. No other type was looked at.
static int64_t choice(const Tensor& query, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                      std::optional<double>, bool) {
  TORCH_CHECK(query.scalar_type() == kHalf || query.scalar_type() == kBFloat16, "not of 16 bits");
  return static_cast<int64_t>(sdp::SDPBackend::flash_attention);
}

REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &choice)

}  // namespace native
}  // namespace at

static const c10::impl::FakeGuardImpl<c10::DeviceType::CUDA> guard;

extern "C" void put_in_guard() {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&guard);
}
