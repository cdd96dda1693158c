//! The program's allocator, and how long it keeps free memory.

use libmimalloc_sys::mi_option_t;

/// A payment allocates in one thread and frees in another, a pattern that this allocator is designed for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time that memory is free before it goes back to the kernel, in milliseconds.
///
/// Each batch takes some buffers of up to a few MiB. With the allocator's own second, they often went back and were
/// taken again, for which the kernel clears pages of 2 MiB (docs/internals/lab/2026-11-26-lanes-on-two-cores.md).
const PURGE_DELAY_MS: std::ffi::c_long = 10_000;

/// `mi_option_purge_delay` of `mimalloc.h`, for which the bindings have no name.
const PURGE_DELAY: mi_option_t = 15;

/// Sets how long free memory is kept, unless the environment says so (`MIMALLOC_PURGE_DELAY`).
#[allow(unsafe_code)]
pub fn set_up() {
    // SAFETY: the option exists. Setting options is not thread-safe, and this is called before there are threads.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) }
}

#[cfg(test)]
mod tests {
    /// If the number of the option changes, another one would be set.
    #[test]
    #[allow(unsafe_code)]
    fn the_option_is_the_delay() {
        // SAFETY: reading an option is safe.
        let value = unsafe { libmimalloc_sys::mi_option_get(super::PURGE_DELAY) };
        let kept = std::env::var("MIMALLOC_PURGE_DELAY").is_ok();
        assert!(value == 1_000 || kept, "the allocator's own delay is a second, and the option is {value}");
    }
}
